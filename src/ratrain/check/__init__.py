"""A device's operators, units and losses compared with the CPU in fp64. `rows` and `report` need no
torch."""
