"""The network inside a chip whose clusters are devices, as far as sums over them need it.

The figures of a collective are what `ratrain noc costs` fits to the simulated chip: cycles =
L (alpha + beta beats + hop distance), L 1 in hardware and the levels of a software tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from ratrain.describe.amounts import NOT_STATED, Count, NotNegative, Positive
from ratrain.errors import SpecError

By = Literal["hardware", "software"]
BY: tuple[By, ...] = ("hardware", "software")


@dataclass(frozen=True)
class ChipCollective:
    """What one collective takes. `by`: the network's own reductions and multicasts, or a tree of
    messages between clusters."""

    kind: Literal["reduce", "multicast"]
    by: By
    alpha_cycles: NotNegative  # of a transfer, whatever its size
    beta_cycles: NotNegative  # of each beat
    hop_cycles: NotNegative  # of each router between the farthest two


@dataclass(frozen=True)
class ChipNetwork:
    """A mesh of the chip's devices, numbered row by row."""

    columns: Count  # devices in a row
    rows: Count
    clock_ghz: Positive
    has: By  # what sums over its devices are made by
    collective: tuple[ChipCollective, ...]  # one of each kind, in hardware, in software or both
    beat_bytes: Count = 64  # that a link moves in a cycle
    source: str = NOT_STATED  # where the figures come from

    def __post_init__(self) -> None:
        pairs = [(each.kind, each.by) for each in self.collective]
        for kind in ("reduce", "multicast"):
            if pairs.count((kind, self.has)) != 1:
                raise SpecError(
                    f"the chip has {pairs.count((kind, self.has))} costs of {kind} in {self.has}",
                    place="collective",
                    fix="give one [[collective]] of each kind, as `ratrain noc costs --chip` does",
                )

    def sum_s(self, size_bytes: float, devices: int, by: By) -> float | None:
        """Seconds of a sum over the first devices of the mesh that all of them get: reduced to one
        of them, then multicast; None where its costs are not known."""
        costs = {each.kind: each for each in self.collective if each.by == by}
        if len(costs) < 2:
            return None
        columns = min(devices, self.columns)
        distance = columns - 1 + ceil(devices / columns) - 1
        levels = ceil(log2(devices)) if by == "software" else 1
        beats = ceil(size_bytes / self.beat_bytes)
        cycles = sum(
            levels * (each.alpha_cycles + each.beta_cycles * beats + each.hop_cycles * distance)
            for each in costs.values()
        )
        return cycles / (self.clock_ghz * 1e9)
