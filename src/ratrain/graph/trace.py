"""What an epoch computes, in order: of every op the data that it needs in memory and makes.

Unit by unit, as a program of a transformer goes micro-batch by micro-batch. The partitions whose
sums are open at once are a group: a source is read once for all of them.

Of several processes each computes its own partitions. What one makes goes to those that sum it as
soon as it is made, in rounds: in the i-th of a unit the i-th partition of every process. All go
through a round's exchanges in one order, so none waits for another that waits for it, however
little memory there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ratrain.graph.csr import Ints
from ratrain.graph.units import Unit
from ratrain.storage import in_pages

ACTIVATION, GRADIENT, KEPT, SNAPSHOT = "activation", "gradient", "kept", "snapshot"
WHOLE, PACKED = -1, -2
SEND, RECEIVE, SUM = "send", "receive", "sum"
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
    """Rows of one partition: activations of a unit (0: the features), their gradients, what
    attention keeps, or a snapshot of all rows that a sum was made of. `to`: the rows that this
    partition sums; PACKED: those of all other partitions, one behind the other."""

    family: str
    unit: int
    part: int
    to: int = WHOLE

    @property
    def name(self) -> str:
        end = {WHOLE: "", PACKED: ".packed"}.get(self.to, f".{self.to}")
        return f"{self.family}.{self.unit}.{self.part}{end}"

    @property
    def file(self) -> Datum:
        """That in whose file it lies."""
        return self if self.to == WHOLE else self._replace(to=PACKED)


class Item(NamedTuple):
    """An op of the compute lane, or one that sends or receives: `source` is then the process at the
    other end. `slot`: the sum it works on, -1: none."""

    verb: str
    unit: int
    part: int
    source: int
    slot: int
    reads: tuple[Datum, ...]
    makes: tuple[Datum, ...]


class Needs(NamedTuple):
    """Rows of a partition that another sums, 0 of its own: parts x parts, forward and backward."""

    forward: Ints
    backward: Ints


@dataclass(frozen=True)
class Shape:
    """What the order and the bytes of an epoch follow from. `entries`: of the block of each pair of
    partitions, 0: they share no edge; `entries_back` the same of the transposed matrix."""

    units: tuple[Unit, ...]
    sizes: Ints  # nodes of each partition
    entries: Ints  # parts x parts
    entries_back: Ints
    element_bytes: int
    owner: Ints  # the process of each partition
    boundary: Ints  # rows of a partition that a process needs of another: parts x processes
    process: int = 0  # whose epoch it is
    needs: Needs | None = None  # where partitions' rows are packed, or snapshots kept
    snapshots: bool = False

    @property
    def parts(self) -> int:
        return len(self.sizes)

    @property
    def processes(self) -> int:
        return self.boundary.shape[1]

    def of(self, process: int) -> Shape:
        """The same graph as another process has it."""
        return replace(self, process=process)

    def parts_of(self, process: int) -> list[int]:
        """Its partitions that have nodes."""
        mine = (self.owner == process) & (self.sizes > 0)
        return np.flatnonzero(mine).tolist()

    def rows(self, part: int) -> int:
        """Rows of a partition that the process has to do with: of another's those it needs."""
        if self.owner[part] == self.process:
            return int(self.sizes[part])
        return int(self.boundary[part, self.process])

    @property
    def largest(self) -> int:
        """Nodes of the largest partition."""
        return int(self.sizes.max())

    def columns(self, family: str, unit: int) -> int:
        if unit == 0:
            return self.units[0].width_in
        u = self.units[unit - 1]
        widths = {ACTIVATION: u.width_out, GRADIENT: u.gradient, KEPT: u.kept}
        return u.width_in if family == SNAPSHOT else widths[family]

    @property
    def packs(self) -> bool:
        """Whether rows are packed for those that sum them."""
        return self.needs is not None and not self.snapshots

    def size_bytes(self, datum: Datum) -> int:
        if datum.to == PACKED:
            return sum(size for _, _, size in self.segments(datum))
        return self.count(datum) * self.row_bytes(datum)

    def count(self, datum: Datum) -> int:
        """Its rows."""
        if datum.to >= 0:
            return int(self._needs(datum.family)[datum.part, datum.to])
        if datum.family == SNAPSHOT:
            return int(self.sizes[datum.part] + self._needs(ACTIVATION)[:, datum.part].sum())
        return self.rows(datum.part)

    def segments(self, datum: Datum) -> Iterator[tuple[int, int, int]]:
        """Of packed rows: for which partition, from which byte of the file, how many in pages."""
        at = 0
        for to in np.flatnonzero(self._needs(datum.family)[datum.part]).tolist():
            size = in_pages(self.size_bytes(datum._replace(to=to)))
            yield to, at, size
            at += size

    def _needs(self, family: str) -> Ints:
        assert self.needs is not None
        return self.needs.backward if family == GRADIENT else self.needs.forward

    def row_bytes(self, datum: Datum) -> int:
        return self.columns(datum.family, datum.unit) * self.element_bytes


Transfers = Sequence[tuple[int, int, int]]
"""Partitions of which rows go from one process to another."""


def rounds(shape: Shape) -> list[Transfers]:
    """What processes send each other of what they make of a unit, round by round: for each of them
    the same, in the same order."""
    parts = [shape.parts_of(process) for process in range(shape.processes)]
    return [
        [
            (part, sender, receiver)
            for sender, own in enumerate(parts)
            for part in own[number : number + 1]
            for receiver in np.flatnonzero(shape.boundary[part]).tolist()
        ]
        for number in range(max(map(len, parts)))
    ]


def epoch(shape: Shape, group: int, *, turns: bool = True) -> list[Item]:
    """All ops of an epoch's compute lane, with groups of so many partitions; and in their places
    what is sent and received. `turns`: whether what was read last is read first."""
    parts = shape.parts_of(shape.process)
    sources = [part for part in range(shape.parts) if shape.rows(part)]
    every_round = rounds(shape)
    items: list[Item] = []
    turn = False  # sources in rising and falling order by turns
    for unit, ops, made in _passes(shape):
        left = iter(every_round if _is_summed(shape, made) else [])
        for members in _groups(parts, group if unit.sums else 1):
            for item in ops(shape, unit, members, _order(sources, turn)):
                items.append(item)
                if item.makes:
                    items += _exchanged(shape, made, next(left, ()))
            turn ^= unit.sums and turns
        for transfers in left:  # others have more partitions
            items += _exchanged(shape, made, transfers)
    if shape.processes > 1:
        items.append(Item(SUM, 0, -1, -1, -1, (), ()))
    items.append(Item(STEP, 0, -1, -1, -1, (), ()))
    return items


Pass = Callable[[Shape, Unit, Sequence[int], Sequence[int]], Iterator[Item]]


def _passes(shape: Shape) -> Iterator[tuple[Unit, Pass, tuple[str, int]]]:
    """Forward of every unit, and backward: with family and unit of what each makes."""
    for unit in shape.units:
        yield unit, _forward, (GRADIENT if unit.last else ACTIVATION, unit.number)
    for unit in reversed(shape.units):
        yield unit, _backward, (GRADIENT, unit.number - 1)


def _is_summed(shape: Shape, made: tuple[str, int]) -> bool:
    """Whether others sum such rows: a unit sums the activations below it, and its gradients."""
    family, unit = made
    if family == ACTIVATION:
        return shape.units[unit].sums
    return unit > 0 and shape.units[unit - 1].sums


def _exchanged(shape: Shape, made: tuple[str, int], transfers: Transfers) -> Iterator[Item]:
    family, unit = made
    for part, sender, receiver in transfers:
        datum = Datum(family, unit, part)
        if sender == shape.process:
            yield Item(SEND, unit, part, receiver, -1, (datum,), ())
        elif receiver == shape.process:
            yield Item(RECEIVE, unit, part, sender, -1, (), (datum,))


def _groups(parts: list[int], size: int) -> Iterator[list[int]]:
    return (parts[at : at + size] for at in range(0, len(parts), size))


def _order(parts: list[int], falling: bool) -> list[int]:
    return parts[::-1] if falling else parts


def _forward(
    shape: Shape, unit: Unit, members: Sequence[int], order: Sequence[int]
) -> Iterator[Item]:
    u, below = unit.number, unit.number - 1
    if unit.sums:
        yield from _sums(
            shape, shape.entries, unit, members, order, (OPEN, ADD), (ACTIVATION, below)
        )
    for slot, part in enumerate(members):
        reads = (Datum(ACTIVATION, below, part),) if unit.reads_own else ()
        made = Datum(GRADIENT if unit.last else ACTIVATION, u, part)  # the loss follows at once
        makes = (made, *_packed(shape, made), *_snapshot(shape, unit, part))
        makes += (Datum(KEPT, u, part),) if unit.attends else ()
        yield Item(FORWARD, u, part, -1, slot if unit.sums else -1, reads, makes)


def _packed(shape: Shape, made: Datum) -> tuple[Datum, ...]:
    """What is made beside it for the partitions that sum it."""
    summed = shape.packs and _is_summed(shape, (made.family, made.unit))
    packed = made._replace(to=PACKED)
    return (packed,) if summed and shape.size_bytes(packed) else ()


def _snapshot(shape: Shape, unit: Unit, part: int) -> tuple[Datum, ...]:
    return (Datum(SNAPSHOT, unit.number, part),) if shape.snapshots and unit.sums else ()


def _backward(
    shape: Shape, unit: Unit, members: Sequence[int], order: Sequence[int]
) -> Iterator[Item]:
    u, below = unit.number, unit.number - 1
    if unit.sums:
        yield from _sums(
            shape, shape.entries_back, unit, members, order, (OPEN_B, ADD_B), (GRADIENT, u)
        )
    for slot, part in enumerate(members):
        reads = [*(_snapshot(shape, unit, part) or (Datum(ACTIVATION, below, part),))]
        if unit.reads_own_gradient:
            reads.append(Datum(GRADIENT, u, part))
        if unit.attends:
            reads.append(Datum(KEPT, u, part))
        if below and shape.units[below - 1].attends:
            reads.append(Datum(KEPT, below, part))
        made = Datum(GRADIENT, below, part)
        makes = (made, *_packed(shape, made)) if below else ()
        yield Item(BACKWARD, u, part, -1, slot if unit.sums else -1, tuple(reads), makes)


def _sums(
    shape: Shape,
    entries: Ints,
    unit: Unit,
    members: Sequence[int],
    order: Sequence[int],
    verbs: tuple[str, str],
    summed: tuple[str, int],
) -> Iterator[Item]:
    """Sums, source by source; a snapshot of what they are made of fills on the way."""
    u, below = unit.number, unit.number - 1
    for slot, part in enumerate(members):
        fills = _snapshot(shape, unit, part) if verbs[0] == OPEN else ()
        own = (Datum(ACTIVATION, below, part),) if unit.attends or fills else ()
        yield Item(verbs[0], u, part, -1, slot, own, fills)
    for source in order:
        for slot, part in enumerate(members):
            if entries[part, source]:
                rows = Datum(*summed, source, part if shape.packs and part != source else WHOLE)
                fills = _snapshot(shape, unit, part) if verbs[1] == ADD else ()
                yield Item(verbs[1], u, part, source, slot, (rows,), fills)


def missing_sums(items: Sequence[Item], shape: Shape) -> list[str]:
    """Blocks that an epoch does not add exactly once, in words."""
    wrong: list[str] = []
    for unit in shape.units:
        for verb, entries in ((ADD, shape.entries), (ADD_B, shape.entries_back)):
            counts = np.zeros_like(entries)
            for item in items:
                if item.verb == verb and item.unit == unit.number:
                    counts[item.part, item.source] += 1
            own = shape.owner[:, None] == shape.process
            wanted = ((entries > 0) & own) * int(unit.sums)
            for part, source in zip(*np.nonzero(counts != wanted), strict=True):
                times = counts[part, source]
                wrong.append(f"{verb} {unit.number}.{part} <- {source} happens {times} times")
    return wrong
