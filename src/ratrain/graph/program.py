"""An epoch as a program of the house's form: ops on lanes over versions of states.

Lanes: one that computes, one that reads from the disk, one that writes to it; of several processes
each has them, and one that sends and one that receives. States: what lies on disk, what lies in
memory, the cells of memory that hold it, sums, weights and their gradients. Who
waits for whom follows from the uses (`program.edges`), so a read begins as soon as the cells that
it takes are free, however far ahead that is. `columns.py` proves it and puts it on the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from ratrain.errors import Infeasible
from ratrain.graph.cells import NEVER, Cells, NextUses
from ratrain.graph.trace import (
    ACTIVATION,
    ADD,
    ADD_B,
    BACKWARD,
    FORWARD,
    OPEN,
    OPEN_B,
    PACKED,
    RECEIVE,
    SEND,
    SNAPSHOT,
    STEP,
    SUM,
    Datum,
    Item,
    Shape,
    epoch,
)
from ratrain.program.uses import FREE, READ, WRITE
from ratrain.storage import PAGE, in_pages

COMPUTE_LANE, READ_LANE, WRITE_LANE, SEND_LANE, RECEIVE_LANE = range(5)
LANES = ("compute", "disk read", "disk write", "send", "receive")
FETCH, SPILL = "read", "write"
MODES = {
    "cache": "what is made stays, and the farthest next use leaves",
    "lru": "what is made stays, and the longest unused leaves",
    "bypass": "what is made goes straight to disk; what is read stays",
    "regather": "nothing stays from one source to the next",
    "packed": "as cache, and each partition's file holds what others sum, apart for each",
    "snapshots": "as bypass, and all rows that a sum was made of wait for its backward (HongTu)",
    "grinnder": "what a sum needs is there at once; the longest unused leaves (GriNNder)",
}
"""How memory is used between the ops that need it."""
NEEDED = ("packed", "snapshots")
"""Those for which it counts which rows partitions sum of each other."""
ONE_SUM = (*NEEDED, "grinnder")
"""Those of one process with one open sum: a snapshot fills without others between."""
MOST_CELLS = 16
"""Of the widest datum."""

Use = tuple[int, int, int]
"""Mode, state, version, as the training programs have them."""


@dataclass
class Op:
    """One op. `size_bytes`: what it moves to or from the disk, or between processes; `datum`: what
    it moves."""

    lane: int
    item: Item
    uses: list[Use] = field(default_factory=lambda: [])
    size_bytes: int = 0
    datum: Datum | None = None

    @property
    def word(self) -> str:
        """For people: `add 2.7 <- 3`, `read activation.1.3`."""
        if self.datum is not None:
            end = _ENDS.get(self.item.verb)
            towards = f" {end} {self.item.source}" if end else ""
            return f"{self.item.verb} {self.datum.name}{towards}"
        if self.item.part < 0:
            return self.item.verb
        source = f" <- {self.item.source}" if self.item.source >= 0 else ""
        return f"{self.item.verb} {self.item.unit}.{self.item.part}{source}"


_ENDS = {SEND: "to", RECEIVE: "from"}


@dataclass(frozen=True)
class State:
    """`tier`: where it lies; "" where its bytes are counted with a cell's."""

    name: str
    tier: str
    size_bytes: int
    given: bool  # is there before the epoch, and after it


@dataclass(frozen=True)
class Layout:
    """How memory is cut: `group` sums are open at once, beside `cells` of `cell_bytes`."""

    mode: str
    group: int
    cells: int
    cell_bytes: int

    def cells_of(self, size_bytes: int) -> int:
        return -(-size_bytes // self.cell_bytes)


@dataclass(frozen=True)
class GraphProgram:
    """An epoch. `ops`: lane by lane, in order; `items`: the ops of the compute lane."""

    shape: Shape
    layout: Layout
    items: tuple[Item, ...]
    states: tuple[State, ...]
    ops: tuple[Op, ...]

    @property
    def read_bytes(self) -> int:
        return sum(op.size_bytes for op in self.ops if op.lane == READ_LANE)

    @property
    def written_bytes(self) -> int:
        return sum(op.size_bytes for op in self.ops if op.lane == WRITE_LANE)

    @property
    def sent_bytes(self) -> int:
        """To other processes: rows of partitions, and gradients of weights."""
        moves = (SEND, SUM)
        return sum(op.size_bytes for op in self.ops if op.item.verb in moves)

    @property
    def features(self) -> list[Datum]:
        """Those that the epoch reads."""
        read = {datum.file for item in self.items for datum in item.reads if datum.unit == 0}
        return sorted(read)

    @property
    def on_disk(self) -> list[Datum]:
        """What has a place on the disk, the features first."""
        spilled = [op.datum for op in self.ops if op.lane == WRITE_LANE and op.datum]
        return self.features + spilled


def moved_bytes(size_bytes: int) -> int:
    """What the store moves for a datum: its pages, and the one that names its version."""
    return in_pages(size_bytes) + PAGE


def cell_bytes_of(shape: Shape) -> int:
    """A cell holds the narrowest rows of the largest partition, or a sixteenth of the widest."""
    widths = [
        shape.columns(family, unit)
        for family, first in ((ACTIVATION, 0), ("gradient", 1), ("kept", 1))
        for unit in range(first, len(shape.units) + 1)
        if family != ACTIVATION or unit < len(shape.units)
    ]
    row_bytes = shape.largest * shape.element_bytes
    widest = max(widths) * row_bytes
    narrow = min(width for width in widths if width) * row_bytes
    return in_pages(max(narrow, -(-widest // MOST_CELLS)))


def build(shape: Shape, layout: Layout) -> GraphProgram:
    """The program of an epoch, or `Infeasible` where one op's data do not fit in the cells."""
    assert layout.group == 1 or layout.mode not in ONE_SUM, layout
    items = epoch(shape, layout.group, turns=layout.mode != "grinnder")
    return _Builder(shape, layout, items).program()


def _holds_layers(shape: Shape, layout: Layout) -> bool:
    """Whether GriNNder would keep a layer's activations beside the next one's and two of gradients;
    else what it makes goes to the disk."""
    rows_bytes, units = int(shape.sizes.sum()) * shape.element_bytes, shape.units
    activations = max(units[0].width_in, *(u.width_out for u in units)) * rows_bytes
    gradients = max(u.gradient for u in units) * rows_bytes
    return layout.cells * layout.cell_bytes >= activations + 2 * gradients


class _Builder:
    """Goes over the items once, with the cells as they will be at each."""

    def __init__(self, shape: Shape, layout: Layout, items: list[Item]) -> None:
        self._shape, self._layout, self._items = shape, layout, items
        self._next = NextUses(items)
        self._cells = Cells(layout.cells, recent=layout.mode in ("lru", "grinnder"))
        self._leaves_at_once = layout.mode in ("bypass", "regather", "snapshots") or (
            layout.mode == "grinnder" and not _holds_layers(shape, layout)
        )
        self._numbers: dict[str, int] = {}
        self._states: list[State] = []
        self._version: dict[int, int] = defaultdict(int)
        self._lanes: tuple[list[Op], ...] = tuple([] for _ in LANES)
        self._last_op: dict[Datum, Op] = {}  # the op that used a resident datum last
        self._spill: dict[Datum, Op] = {}  # its write, which counts if it is read back
        self._spilled: set[Datum] = set()
        self._previous: tuple[Datum, ...] = ()
        self._together: tuple[Datum, ...] = ()  # what the sum under way needs

    def program(self) -> GraphProgram:
        for at, item in enumerate(self._items):
            self._take(at, item)
        for datum in list(self._cells.held):
            self._free(datum)
        self._lanes[WRITE_LANE][:] = [
            op for op in self._lanes[WRITE_LANE] if op.datum in self._spilled
        ]
        ops = tuple(op for lane in self._lanes for op in lane)
        return GraphProgram(self._shape, self._layout, tuple(self._items), tuple(self._states), ops)

    def _op(self, item: Item) -> Op:
        """An item's op, on its lane."""
        if item.verb == SEND:
            datum, rows = item.reads[0], int(self._shape.boundary[item.part, item.source])
            return Op(SEND_LANE, item, [], rows * self._shape.row_bytes(datum), datum)
        if item.verb == RECEIVE:
            datum = item.makes[0]
            return Op(RECEIVE_LANE, item, [], self._shape.size_bytes(datum), datum)
        if item.verb == SUM:  # everybody's gradients to everybody
            own_bytes = sum(u.parameters for u in self._shape.units) * self._shape.element_bytes
            return Op(COMPUTE_LANE, item, [], own_bytes * (self._shape.processes - 1))
        return Op(COMPUTE_LANE, item)

    def _take(self, at: int, item: Item) -> None:
        """Puts an item on its lane, after the reads that it needs."""
        op = self._op(item)
        if item.verb in (OPEN, OPEN_B) and self._layout.mode == "grinnder":
            self._together = self._needed(at)
        kept = (*item.reads, *item.makes, *(self._together if item.source >= 0 else ()))
        for datum in item.reads:
            if datum not in self._cells.held:
                self._fetch(at, item, datum, kept)
        self._lanes[op.lane].append(op)
        for datum in item.reads:
            host = self._host(datum)
            op.uses.append((READ, host, self._version[host]))
            self._last_op[datum] = op
        for datum in item.makes:
            if datum not in self._cells.held:
                self._make(at, op, datum, kept)
            if datum.family == SNAPSHOT:
                self._fill(op, datum)
        self._work(op, item)
        for datum in item.reads:
            self._settle(at, datum)
        for datum in item.makes:
            leaves = self._leaves_at_once and item.verb in (FORWARD, BACKWARD, RECEIVE)
            if (leaves or datum.to == PACKED) and not self._is_sent_next(datum, at):
                self._free(datum)
        self._previous = item.reads

    def _needed(self, at: int) -> tuple[Datum, ...]:
        """By the sum that an item opens."""
        adds = takewhile(lambda item: item.source >= 0, self._items[at + 1 :])
        return tuple(datum for item in adds for datum in item.reads)

    def _is_sent_next(self, datum: Datum, at: int) -> bool:
        use = self._next.after(datum, at)
        return use != NEVER and self._items[use].verb == SEND

    def _settle(self, at: int, datum: Datum) -> None:
        """What becomes of a datum that an item has used."""
        use = self._next.after(datum, at)
        at_once = use == at + 1 or self._is_sent_next(datum, at)
        if use == NEVER or (self._layout.mode == "regather" and not at_once):
            self._free(datum)
        else:
            self._cells.used(datum, at, use)

    # ---- memory -------------------------------------------------------------------------

    def _fetch(self, at: int, item: Item, datum: Datum, kept: tuple[Datum, ...]) -> None:
        size = moved_bytes(self._shape.size_bytes(datum))
        op = Op(READ_LANE, Item(FETCH, *item[1:]), size_bytes=size, datum=datum)
        self._room(datum, kept)
        self._lanes[READ_LANE].append(op)
        if datum.file in self._spill:
            self._spilled.add(datum.file)
        disk = self._disk(datum.file)
        op.uses.append((READ, disk, self._version[disk]))
        self._claim(op, datum)

    def _make(self, at: int, op: Op, datum: Datum, kept: tuple[Datum, ...]) -> None:
        self._room(datum, kept)
        self._claim(op, datum)
        size = moved_bytes(self._shape.size_bytes(datum))
        spill = Op(WRITE_LANE, Item(SPILL, *op.item[1:]), size_bytes=size, datum=datum)
        host, disk = self._host(datum), self._disk(datum)
        self._version[disk] += 1
        spill.uses += [(READ, host, self._version[host]), (WRITE, disk, self._version[disk])]
        self._spill[datum] = spill
        self._lanes[WRITE_LANE].append(spill)
        self._last_op[datum] = op
        self._cells.used(datum, at, self._next.after(datum, at))

    def _fill(self, op: Op, datum: Datum) -> None:
        """One of the ops that make a snapshot together: its write waits for the last."""
        filling = self._state(f"{datum.name} filling", "", 0, given=False)
        if self._version[filling]:
            self._read(op, filling)
        self._write(op, filling)
        self._spill[datum].uses[2:] = [(READ, filling, self._version[filling])]

    def _room(self, datum: Datum, kept: tuple[Datum, ...]) -> None:
        """Makes room for a datum. What the item before used stays if anything else can leave: so
        the read need not wait for that item."""
        count = self._count(datum)
        while len(self._cells.free) < count:
            leaver = self._cells.leaver((*kept, *self._previous)) or self._cells.leaver(kept)
            if leaver is None:
                raise self._too_small(kept)
            for each in self._with(leaver, kept):
                self._free(each)

    def _with(self, leaver: Datum, kept: tuple[Datum, ...]) -> Iterator[Datum]:
        """Who leaves with a datum: where GriNNder holds layers, all of its layer."""
        layers = self._layout.mode == "grinnder" and not self._leaves_at_once
        for datum in [*self._cells.held] if layers else [leaver]:
            if datum[:2] == leaver[:2] and datum not in kept:
                yield datum

    def _too_small(self, kept: tuple[Datum, ...]) -> Infeasible:
        needed = sum(self._count(datum) for datum in kept) * self._layout.cell_bytes
        have = self._layout.cells * self._layout.cell_bytes
        return Infeasible(
            f"an op needs {needed:,} bytes of partitions at once, and {have:,} are left for them",
            place="[memory] budget",
            fix="raise the budget, or cut the nodes into more `parts`",
        )

    def _claim(self, op: Op, datum: Datum) -> None:
        host = self._host(datum)
        self._version[host] += 1
        op.uses.append((WRITE, host, self._version[host]))
        for cell in self._cells.take(datum, self._count(datum)):
            number = self._cell(cell)
            self._version[number] += 1
            op.uses.append((WRITE, number, self._version[number]))

    def _free(self, datum: Datum) -> None:
        """Frees a datum's cells after its last use; what nobody has used yet, but will, after its
        write."""
        op = self._last_op[datum]
        if datum in op.item.makes and datum not in op.item.reads:
            op = self._spill[datum]
            self._spilled.add(datum)
        host = self._host(datum)
        op.uses.append((FREE, host, self._version[host]))
        for cell in self._cells.leave(datum):
            number = self._cell(cell)
            op.uses.append((FREE, number, self._version[number]))

    def _count(self, datum: Datum) -> int:
        return self._layout.cells_of(self._shape.size_bytes(datum))

    # ---- sums and weights ---------------------------------------------------------------

    def _work(self, op: Op, item: Item) -> None:
        """The uses of sums, weights and their gradients, and of connections."""
        if item.verb in (SEND, RECEIVE):
            self._write(op, self._connection(op.lane))
            return
        if item.verb == SUM:
            for lane in (SEND_LANE, RECEIVE_LANE):  # what they had to move comes first
                if self._version[self._connection(lane)]:
                    self._read(op, self._connection(lane))
        if item.verb in (SUM, STEP):
            for unit in self._shape.units:
                gradients = self._gradients(unit.number)
                if self._version[gradients]:
                    self._read(op, gradients, last=item.verb == STEP)
                target = self._weights if item.verb == STEP else self._gradients
                self._write(op, target(unit.number))
            return
        if item.slot >= 0:
            slot = self._state(f"sum.{item.slot}", "", 0, given=False)
            if item.verb not in (OPEN, OPEN_B):
                self._read(op, slot)
            if item.verb in (OPEN, OPEN_B, ADD, ADD_B):
                self._write(op, slot)
        if item.verb in (FORWARD, BACKWARD):
            weights = self._weights(item.unit)
            op.uses.append((READ, weights, 0))
            loss = item.verb == FORWARD and self._shape.units[item.unit - 1].last
            below = item.unit - 1 if item.verb == BACKWARD else 0
            changed = [item.unit] if loss or item.verb == BACKWARD else []
            for unit in changed + ([below] if below else []):  # its bias, from what is made here
                gradients = self._gradients(unit)
                if self._version[gradients]:
                    self._read(op, gradients)
                self._write(op, gradients)

    def _read(self, op: Op, state: int, *, last: bool = False) -> None:
        op.uses.append((READ, state, self._version[state]))
        if last:
            op.uses.append((FREE, state, self._version[state]))

    def _write(self, op: Op, state: int) -> None:
        self._version[state] += 1
        op.uses.append((WRITE, state, self._version[state]))

    # ---- states by name -----------------------------------------------------------------

    def _host(self, datum: Datum) -> int:
        return self._state(f"{datum.name}@host", "", 0, given=False)

    def _disk(self, datum: Datum) -> int:
        size = moved_bytes(self._shape.size_bytes(datum))
        return self._state(f"{datum.name}@disk", "disk", size, given=datum.unit == 0)

    def _cell(self, number: int) -> int:
        return self._state(f"cell.{number}", "host", self._layout.cell_bytes, given=False)

    def _weights(self, unit: int) -> int:
        return self._state(f"weights.{unit}", "", 0, given=True)

    def _connection(self, lane: int) -> int:
        return self._state(LANES[lane], "", 0, given=False)

    def _gradients(self, unit: int) -> int:
        return self._state(f"weight gradients.{unit}", "", 0, given=False)

    def _state(self, name: str, tier: str, size_bytes: int, *, given: bool) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._states)
            self._states.append(State(name, tier, size_bytes, given))
        return self._numbers[name]
