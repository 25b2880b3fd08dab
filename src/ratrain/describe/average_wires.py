"""In what averages of weights are sent: each wire's bits, and the blocks that share a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TAKEN_BYTES = 1 << 20
"""Sites of unlike tensor degrees copy what they average into one row, so much at a time."""

AverageWire = Literal["fp32", "bf16", "int8", "int4"]
AskedWire = Literal["fp32", "bf16", "int8", "int4", "auto"]
"""As a job asks for it: "auto" leaves it to the planner."""
BLOCK, SCALE_BYTES = 64, 2
"""Integers have a scale in bf16 for so many of them, which are of one parameter: all parameters of
a unit begin at a multiple of it."""


@dataclass(frozen=True)
class WireForm:
    """`has_scales`: what is sent are integers."""

    bits: int
    has_scales: bool = False

    @property
    def bytes_per_param(self) -> float:
        return self.bits / 8 + (SCALE_BYTES / BLOCK if self.has_scales else 0)

    @property
    def told_bytes_per_param(self) -> float:
        """As ranks of one site tell each other their parts of a mean."""
        return 4.0 if self.has_scales else self.bytes_per_param


# The widest first.
AVERAGE_WIRES: Mapping[str, WireForm] = {
    "fp32": WireForm(32),
    "bf16": WireForm(16),
    "int8": WireForm(8, has_scales=True),
    "int4": WireForm(4, has_scales=True),
}
