"""A device's operators, units and losses compared with the CPU in fp64."""

from ratrain.check.device import Checked
from ratrain.check.record import Record, Where
from ratrain.check.scatter import Scattered
from ratrain.check.units import INPUT_GRADIENT, OUTPUT, Given, compare_unit

__all__ = [
    "INPUT_GRADIENT",
    "OUTPUT",
    "Checked",
    "Given",
    "Record",
    "Scattered",
    "Where",
    "compare_unit",
]
