"""A mesh network on chip with multicast, in-network reduction and barriers, cycle by cycle.

A reading order:
    spec, opcodes   what a mesh is; what a flit may ask of it
    workload        packets and work that wait for each other
    core/*.c        the routers, compiled (tests/chip/noc/noc_reference.py is the same in Python)
    binding, mesh   running a workload; its results and faults
    numbers, arithmetic   the values on the wire, in every format
    chip, endpoint  clusters and memory tiles; DMA, stores, barriers
    schedules, software, collectives   collectives in software and hardware
    deadlock        which worms may not fly together
    gemm_simulation, traffic, costs    what is measured with all this
    analytic, gemm, energy, area       the published models
    reproduce, picture                 what is shown
"""
