"""The network inside a chip whose clusters are devices, as far as sums over them need it.

The figures of a collective are what `ratrain noc costs` fits to the simulated chip: cycles =
L (alpha + beta beats + hop distance), L 1 in hardware and the levels of a software tree. A network
of another shape (`ratrain noc topology`) has trees alone, whose messages may share links.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from ratrain.describe.amounts import NOT_STATED, Count, Natural, NotNegative, Positive
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
    """A mesh of the chip's devices, numbered row by row, or a network of another shape."""

    columns: Count  # devices in a row; of another shape, all
    rows: Count
    clock_ghz: Positive
    has: By  # what sums over its devices are made by
    collective: tuple[ChipCollective, ...]  # one of each kind, in hardware, in software or both
    beat_bytes: Count = 64  # that a link moves in a cycle
    source: str = NOT_STATED  # where the figures come from
    # of another shape, by number of devices from 1 on, what a tree's levels add up to: hops of the
    # farthest message, and the most messages that go over one link
    tree_hops: tuple[Natural, ...] = ()
    tree_shares: tuple[Natural, ...] = ()

    def __post_init__(self) -> None:
        pairs = [(each.kind, each.by) for each in self.collective]
        for kind in ("reduce", "multicast"):
            if pairs.count((kind, self.has)) != 1:
                raise SpecError(
                    f"the chip has {pairs.count((kind, self.has))} costs of {kind} in {self.has}",
                    place="collective",
                    fix="give one [[collective]] of each kind, as `ratrain noc costs --chip` does",
                )
        lengths = {len(self.tree_hops), len(self.tree_shares)}
        if lengths == {0}:
            return
        if lengths != {self.columns * self.rows} or self.has != "software":
            raise SpecError(
                f"{self.columns * self.rows} devices on a network of another shape have "
                f"{' and '.join(map(str, sorted(lengths)))} trees, and sums in {self.has}",
                place="tree_hops",
                fix="write the file with `ratrain noc topology --chip`",
            )

    def sum_s(self, size_bytes: float, devices: int, by: By) -> float | None:
        """Seconds of a sum over the first devices of the mesh that all of them get: reduced to one
        of them, then multicast; None where its costs are not known."""
        costs = {each.kind: each for each in self.collective if each.by == by}
        if len(costs) < 2 or (self.tree_hops and by == "hardware"):
            return None
        columns = min(devices, self.columns)
        distance = columns - 1 + ceil(devices / columns) - 1
        levels = ceil(log2(devices)) if by == "software" else 1
        beats = ceil(size_bytes / self.beat_bytes)
        hops, shares = levels * distance, levels
        if self.tree_hops:
            hops, shares = self.tree_hops[devices - 1], self.tree_shares[devices - 1]
        cycles = sum(
            levels * each.alpha_cycles + shares * each.beta_cycles * beats + hops * each.hop_cycles
            for each in costs.values()
        )
        return cycles / (self.clock_ghz * 1e9)
