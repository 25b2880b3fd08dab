"""Runs a process's part of a proved epoch: a thread for each lane, every op when those that it
waits for have ended, data of partitions in page-aligned buffers and in the tier store's files."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from ratrain.graph.links import ALONE, Links
from ratrain.graph.network import Network
from ratrain.graph.program import (
    COMPUTE_LANE,
    LANES,
    READ_LANE,
    RECEIVE_LANE,
    SEND_LANE,
    WRITE_LANE,
    GraphProgram,
)
from ratrain.graph.prove import Columns
from ratrain.graph.share import Boundary
from ratrain.graph.trace import (
    ACTIVATION,
    ADD,
    GRADIENT,
    OPEN,
    PACKED,
    SNAPSHOT,
    SUM,
    WHOLE,
    Datum,
    Item,
)
from ratrain.program.uses import FREE
from ratrain.storage import Key, TierStore, in_pages, page_buffer
from ratrain.timeline.timeline import Span, Timeline

Progress = Callable[[int, int], None]
PIECE_BYTES = 1 << 20
"""Of rows that are gathered from a partition at once, to be sent."""


def key_of(datum: Datum) -> Key:
    """The name of its file in the store."""
    end = "-packed" if datum.to != WHOLE else ""
    return Key(datum.family, f"{datum.unit}-{datum.part}{end}")


@dataclass
class Buffers:
    """Page-aligned memory, used again by the next datum of the same length; never more than
    `most_bytes` of it."""

    most_bytes: int
    held_bytes: int = 0
    peak_bytes: int = 0
    _idle: dict[int, list[memoryview]] = field(default_factory=lambda: defaultdict(list))

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of that size in whole pages."""
        length = in_pages(size_bytes)
        if self._idle[length]:
            return self._idle[length].pop()
        for idle in self._idle.values():  # of other lengths, which nobody has now
            while idle and self.held_bytes + length > self.most_bytes:
                self.held_bytes -= len(idle.pop())
        self.held_bytes += length
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return page_buffer(length)

    def give_back(self, buffer: memoryview) -> None:
        self._idle[len(buffer)].append(buffer)


@dataclass
class Lanes:
    """Seconds of each lane: at work, and waiting for another lane."""

    busy_s: list[float] = field(default_factory=lambda: [0.0] * len(LANES))
    waited_s: list[float] = field(default_factory=lambda: [0.0] * len(LANES))


class Executor:
    """Runs epochs of one process's program, one after the other. `boundary`: the rows that others
    need of its partitions; `needed`: those that its partitions need of each other."""

    def __init__(
        self,
        program: GraphProgram,
        network: Network,
        store: TierStore,
        dtype: torch.dtype,
        boundary: Boundary,
        links: Links = ALONE,
        needed: tuple[Boundary, Boundary] | None = None,
    ) -> None:
        self._program, self._network, self._store, self._dtype = program, network, store, dtype
        self._boundary, self._links, self._needed = boundary, links, needed
        layout = program.layout
        self.buffers = Buffers(layout.cells * layout.cell_bytes)
        shape = program.shape
        widest = max(max(u.sum_forward, u.sum_backward) for u in shape.units)
        self._sums = [torch.zeros(shape.largest * widest, dtype=dtype) for _ in range(layout.group)]
        self._waits = _waits(Columns((program,)))
        self._frees = _freed(program)
        self._made: list[list[Datum]] = [
            list(op.item.makes) if op.lane == COMPUTE_LANE else [] for op in program.ops
        ]
        self._held: dict[Datum, memoryview] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._done = [False] * len(program.ops)
        self._failed: BaseException | None = None
        self.spans: list[Span] = []

    def epoch(self, progress: Progress | None = None) -> Lanes:
        """One epoch; an error of any lane ends all."""
        self._network.begin_epoch()
        self._done = [False] * len(self._program.ops)
        self._failed, self.spans = None, []
        lanes = Lanes()
        began_s = time.perf_counter()
        others = [
            threading.Thread(target=self._lane, args=(lane, lanes, began_s, None), daemon=True)
            for lane in range(1, len(LANES))
        ]
        for thread in others:
            thread.start()
        self._lane(COMPUTE_LANE, lanes, began_s, progress)
        for thread in others:
            thread.join()
        if self._failed is not None:
            raise self._failed
        return lanes

    def timeline(self) -> Timeline:
        """The last epoch's ops as they ran."""
        return Timeline("runtime", tuple(sorted(self.spans, key=lambda span: span.start_s)))

    # ---- lanes --------------------------------------------------------------------------

    def _lane(self, lane: int, lanes: Lanes, began_s: float, progress: Progress | None) -> None:
        ops = self._program.ops
        numbers = [at for at, op in enumerate(ops) if op.lane == lane]
        try:
            for place, number in enumerate(numbers):
                asked_s = time.perf_counter()
                if not self._wait(self._waits[number]):
                    return
                self._meet(number)
                start_s = time.perf_counter()
                self._run(number)
                end_s = time.perf_counter()
                lanes.waited_s[lane] += start_s - asked_s
                lanes.busy_s[lane] += end_s - start_s
                times = start_s - began_s, end_s - began_s
                process = self._program.shape.process
                span = Span(0, process, LANES[lane], ops[number].word, *times)
                self._end(number, span)
                if progress is not None:
                    progress(place + 1, len(numbers))
        except BaseException as error:  # raised again by `epoch`
            with self._changed:
                self._failed = self._failed or error
                self._changed.notify_all()
            self._links.close()  # lanes may wait for others, which may wait for this process

    def _wait(self, sources: list[int]) -> bool:
        """Until these ops have ended; False where a lane has failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failed is not None or all(self._done[at] for at in sources)
            )
            return self._failed is None

    def _meet(self, number: int) -> None:
        """What is received begins when it is sent."""
        op = self._program.ops[number]
        if op.lane == RECEIVE_LANE and op.datum is not None:
            self._links.meet(op.item.source, op.datum.name, op.size_bytes)

    def _end(self, number: int, span: Span) -> None:
        with self._changed:
            for datum in self._frees[number]:
                self.buffers.give_back(self._held.pop(datum))
            self._done[number] = True
            self.spans.append(span)
            self._changed.notify_all()

    # ---- ops ----------------------------------------------------------------------------

    def _run(self, number: int) -> None:
        op = self._program.ops[number]
        if op.lane == COMPUTE_LANE:
            self._compute(number)
            return
        datum = op.datum
        assert datum is not None
        if op.lane == READ_LANE:
            self._store.read(key_of(datum), self._take(datum), self._begin(datum))
        elif op.lane == WRITE_LANE:
            self._store.write(key_of(datum), self._held[datum])
        elif op.lane == RECEIVE_LANE:
            self._links.fill(op.item.source, self._take(datum)[: op.size_bytes])
        elif op.lane == SEND_LANE:
            pieces = self._pieces(datum, op.item.source)
            self._links.send(op.item.source, datum.name, op.size_bytes, pieces)

    def _pieces(self, datum: Datum, process: int) -> Iterator[memoryview]:
        """The rows of a datum that a process needs, some at a time."""
        rows, places = self._rows(datum).numpy(), self._boundary[datum.part, process]
        step = max(1, PIECE_BYTES // self._program.shape.row_bytes(datum))
        for at in range(0, len(places), step):
            yield rows[places[at : at + step]].data.cast("B")

    def _compute(self, number: int) -> None:
        item = self._program.ops[number].item
        if item.verb == SUM:
            self._sum_up()
        if item.part < 0:
            return  # the optimizer's step is its caller's
        for datum in self._made[number]:
            if datum not in self._held:
                self._take(datum)
        used = (datum for datum in (*item.reads, *item.makes) if datum.to != PACKED)
        rows = {datum: self._rows(datum) for datum in used}
        self._network.run(item, rows, self._sum(item.slot, item.unit, item.part, item.verb))
        for datum in item.makes:
            if datum.to == PACKED:
                self._pack(datum, rows[datum._replace(to=WHOLE)])
            elif datum.family == SNAPSHOT and item.reads:
                self._snap(item, rows[datum], rows[item.reads[0]])

    def _pack(self, datum: Datum, rows: torch.Tensor) -> None:
        """Copies the rows that others sum, for each of them from a page on."""
        for to, at, _ in self._program.shape.segments(datum):
            places = self._needed_rows(datum.family)[datum.part, to]
            count = len(places) * rows.shape[1]
            room = torch.frombuffer(self._held[datum], dtype=self._dtype, count=count, offset=at)
            out = room.view(len(places), -1).numpy()
            np.take(rows.numpy(), places, axis=0, out=out, mode="clip")

    def _snap(self, item: Item, snapshot: torch.Tensor, rows: torch.Tensor) -> None:
        """Copies what an op reads: the partition's own rows, or those that it sums of another."""
        own = int(self._program.shape.sizes[item.part])
        if item.verb == OPEN:
            snapshot[:own] = rows
        elif item.verb == ADD and item.source != item.part:
            needs = self._program.shape.needs
            assert needs is not None
            begin = own + int(needs.forward[: item.source, item.part].sum())
            places = self._needed_rows(ACTIVATION)[item.source, item.part]
            out = snapshot[begin : begin + len(places)].numpy()
            np.take(rows.numpy(), places, axis=0, out=out, mode="clip")

    def _needed_rows(self, family: str) -> Boundary:
        assert self._needed is not None
        return self._needed[family == GRADIENT]

    def _begin(self, datum: Datum) -> int:
        """Where in its file a datum begins."""
        if datum.to == WHOLE:
            return 0
        return next(at for to, at, _ in self._program.shape.segments(datum) if to == datum.to)

    def _sum_up(self) -> None:
        """Adds up the processes' gradients of weights, in their order: the same bits in each."""
        own = self._network.flat_gradients()
        total, *others = self._links.gather("gradients", own)
        for other in others:
            total += other
        self._network.set_gradients(total)

    def _take(self, datum: Datum) -> memoryview:
        layout, size = self._program.layout, self._program.shape.size_bytes(datum)
        with self._lock:  # by cells, so that what comes next can have it whatever its length
            length = layout.cells_of(size) * layout.cell_bytes
            buffer = self._held[datum] = self.buffers.take(length)
        return buffer[: in_pages(size)]

    def _rows(self, datum: Datum) -> torch.Tensor:
        shape = self._program.shape
        columns, count = shape.columns(datum.family, datum.unit), shape.count(datum)
        flat = torch.frombuffer(self._held[datum], dtype=self._dtype, count=count * columns)
        return flat.view(count, columns)

    def _sum(self, slot: int, unit: int, part: int, verb: str) -> torch.Tensor | None:
        if slot < 0:
            return None
        shape = self._program.shape
        u, count = shape.units[unit - 1], int(shape.sizes[part])
        columns = u.sum_backward if verb.endswith("B") else u.sum_forward
        return self._sums[slot][: count * columns].view(count, columns)


def _waits(columns: Columns) -> list[list[int]]:
    """For each op those of other lanes that it waits for."""
    inside, lane = columns.edges.inside, columns.lane
    waits: list[list[int]] = [[] for _ in columns.program.ops]
    for source, target in zip(inside.source.tolist(), inside.target.tolist(), strict=True):
        if lane[source] != lane[target]:
            waits[target].append(source)
    return waits


def _freed(program: GraphProgram) -> list[list[Datum]]:
    """For each op the data that leave memory after it, as its uses say."""
    by_name: dict[str, Datum] = {}
    for op in program.ops:
        for datum in (*op.item.reads, *op.item.makes, *((op.datum,) if op.datum else ())):
            by_name[f"{datum.name}@host"] = datum
    return [
        [
            by_name[program.states[state].name]
            for mode, state, _ in op.uses
            if mode == FREE and program.states[state].name in by_name
        ]
        for op in program.ops
    ]
