"""Kinds of values that files hold, each with the least and the most that it may be.

The upper bounds are far above what exists. They are there so that a slip of the finger is one
error, and neither an overflow nor a machine that swaps.
"""

from __future__ import annotations

from typing import Annotated

from ratrain.describe.strict import Rule

Name = Annotated[str, Rule(high=255)]
Note = Annotated[str, Rule(low=0)]  # may be empty
NOT_STATED = "not stated"  # where a figure comes from, in a file that does not say it
Message = Annotated[str, Rule(low=0, high=100_000, lines=True)]
FileName = Annotated[str, Rule(high=4096)]

Count = Annotated[int, Rule(low=1, high=1_000_000)]  # micro-batches, degrees, devices of a host
Period = Annotated[int, Rule(low=1, high=1000)]  # steps, each spelled out in the program
Turn = Annotated[int, Rule(low=0, high=999)]  # a step of a period
Natural = Annotated[int, Rule(low=0, high=1_000_000_000)]
Steps = Annotated[int, Rule(low=1, high=1_000_000_000)]
Sequences = Annotated[int, Rule(low=1, high=1_000_000_000, sample="64")]
Tokens = Annotated[int, Rule(low=1, high=1 << 27, sample="2048")]  # of one sequence
Devices = Annotated[int, Rule(low=1, high=1 << 18)]
Seed = Annotated[int, Rule(low=0, high=(1 << 63) - 1)]  # what torch takes

Layers = Annotated[int, Rule(low=1, high=10_000)]
Heads = Annotated[int, Rule(low=1, high=1 << 16)]
Width = Annotated[int, Rule(low=1, high=1 << 20)]
WideWidth = Annotated[int, Rule(low=1, high=1 << 24)]  # of an MLP; ids of a vocabulary
Positions = Annotated[int, Rule(low=1, high=1 << 30)]

SizeBytes = Annotated[int, Rule("bytes", low=1)]
RateBytesPerS = Annotated[float, Rule("bytes_per_s", low=1)]
TimeS = Annotated[float, Rule("s", low=0)]
RateFlops = Annotated[float, Rule("flops", low=1)]

Positive = Annotated[float, Rule(low=1e-12, high=1e12)]
NotNegative = Annotated[float, Rule(low=0, high=1e12)]
Part = Annotated[float, Rule(low=0, high=1)]
BelowOne = Annotated[float, Rule(low=0, high=0.999999)]
Fraction = Annotated[float, Rule(low=0.01, high=1)]
