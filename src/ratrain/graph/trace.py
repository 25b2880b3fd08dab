"""What an epoch computes, in order: of every op the data that it needs in memory and makes.

Unit by unit, as a program of a transformer goes micro-batch by micro-batch. The partitions whose
sums are open at once are a group: a source is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ratrain.graph.csr import Ints
from ratrain.graph.units import Unit

ACTIVATION, GRADIENT, KEPT = "activation", "gradient", "kept"
OPEN, ADD, FORWARD, OPEN_B, ADD_B, BACKWARD, STEP = (
    "open",
    "add",
    "F",
    "open-B",
    "add-B",
    "B",
    "step",
)


class Datum(NamedTuple):
    """Rows of one partition: activations of a unit (0: the features), their gradients, or what
    attention keeps."""

    family: str
    unit: int
    part: int

    @property
    def name(self) -> str:
        return f"{self.family}.{self.unit}.{self.part}"


class Item(NamedTuple):
    """An op of the compute lane. `slot`: the sum it works on, -1: none."""

    verb: str
    unit: int
    part: int
    source: int
    slot: int
    reads: tuple[Datum, ...]
    makes: tuple[Datum, ...]


@dataclass(frozen=True)
class Shape:
    """What the order and the bytes of an epoch follow from. `entries`: of the block of each pair of
    partitions, 0: they share no edge; `entries_back` the same of the transposed matrix."""

    units: tuple[Unit, ...]
    sizes: Ints  # nodes of each partition
    entries: Ints  # parts x parts
    entries_back: Ints
    element_bytes: int

    @property
    def parts(self) -> int:
        return len(self.sizes)

    @property
    def largest(self) -> int:
        """Nodes of the largest partition."""
        return int(self.sizes.max())

    def columns(self, family: str, unit: int) -> int:
        if unit == 0:
            return self.units[0].width_in
        u = self.units[unit - 1]
        return {ACTIVATION: u.width_out, GRADIENT: u.gradient, KEPT: u.kept}[family]

    def size_bytes(self, datum: Datum) -> int:
        rows = int(self.sizes[datum.part])
        return rows * self.columns(datum.family, datum.unit) * self.element_bytes


def epoch(shape: Shape, group: int) -> list[Item]:
    """All ops of an epoch's compute lane, with groups of so many partitions."""
    parts = [part for part in range(shape.parts) if shape.sizes[part]]
    items: list[Item] = []
    turn = False  # sources in rising and falling order by turns: what was read last is read first
    for unit in shape.units:
        for members in _groups(parts, group if unit.sums else 1):
            items += _forward(shape, unit, members, _order(parts, turn))
            turn ^= unit.sums
    for unit in reversed(shape.units):
        for members in _groups(parts, group if unit.sums else 1):
            items += _backward(shape, unit, members, _order(parts, turn))
            turn ^= unit.sums
    items.append(Item(STEP, 0, -1, -1, -1, (), ()))
    return items


def _groups(parts: list[int], size: int) -> Iterator[list[int]]:
    return (parts[at : at + size] for at in range(0, len(parts), size))


def _order(parts: list[int], falling: bool) -> list[int]:
    return parts[::-1] if falling else parts


def _forward(
    shape: Shape, unit: Unit, members: Sequence[int], order: Sequence[int]
) -> Iterator[Item]:
    u, below = unit.number, unit.number - 1
    if unit.sums:
        yield from _sums(shape.entries, unit, members, order, (OPEN, ADD), (ACTIVATION, below))
    for slot, part in enumerate(members):
        reads = (Datum(ACTIVATION, below, part),) if unit.reads_own else ()
        made = GRADIENT if unit.last else ACTIVATION  # the loss follows at once
        makes = (Datum(made, u, part), *((Datum(KEPT, u, part),) if unit.attends else ()))
        yield Item(FORWARD, u, part, -1, slot if unit.sums else -1, reads, makes)


def _backward(
    shape: Shape, unit: Unit, members: Sequence[int], order: Sequence[int]
) -> Iterator[Item]:
    u, below = unit.number, unit.number - 1
    if unit.sums:
        yield from _sums(shape.entries_back, unit, members, order, (OPEN_B, ADD_B), (GRADIENT, u))
    for slot, part in enumerate(members):
        reads = [Datum(ACTIVATION, below, part)]
        if unit.reads_own_gradient:
            reads.append(Datum(GRADIENT, u, part))
        if unit.attends:
            reads.append(Datum(KEPT, u, part))
        if below and shape.units[below - 1].attends:
            reads.append(Datum(KEPT, below, part))
        makes = (Datum(GRADIENT, below, part),) if below else ()
        yield Item(BACKWARD, u, part, -1, slot if unit.sums else -1, tuple(reads), makes)


def _sums(
    entries: Ints,
    unit: Unit,
    members: Sequence[int],
    order: Sequence[int],
    verbs: tuple[str, str],
    summed: tuple[str, int],
) -> Iterator[Item]:
    u, below = unit.number, unit.number - 1
    for slot, part in enumerate(members):
        own = (Datum(ACTIVATION, below, part),) if unit.attends else ()
        yield Item(verbs[0], u, part, -1, slot, own, ())
    for source in order:
        for slot, part in enumerate(members):
            if entries[part, source]:
                yield Item(verbs[1], u, part, source, slot, (Datum(*summed, source),), ())


def missing_sums(items: Sequence[Item], shape: Shape) -> list[str]:
    """Blocks that an epoch does not add exactly once, in words."""
    wrong: list[str] = []
    for unit in shape.units:
        for verb, entries in ((ADD, shape.entries), (ADD_B, shape.entries_back)):
            counts = np.zeros_like(entries)
            for item in items:
                if item.verb == verb and item.unit == unit.number:
                    counts[item.part, item.source] += 1
            wanted = (entries > 0) * int(unit.sums)
            for part, source in zip(*np.nonzero(counts != wanted), strict=True):
                times = counts[part, source]
                wrong.append(f"{verb} {unit.number}.{part} <- {source} happens {times} times")
    return wrong
