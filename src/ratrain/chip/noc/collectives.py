"""Collectives on a simulated chip, in hardware and in software, with the values they compute.

Every run starts from seeded random values in each cluster's memory and compares what is there in
the end with numpy, added in the order in which this algorithm adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc import schedules
from ratrain.chip.noc.arithmetic import fold
from ratrain.chip.noc.chip import ChipSpec
from ratrain.chip.noc.deadlock import Worm, serialise
from ratrain.chip.noc.endpoint import Group, System, submesh
from ratrain.chip.noc.mesh import Run, run
from ratrain.chip.noc.numbers import encode
from ratrain.chip.noc.opcodes import FP_OPCODES, INT_OPCODES, Format, Opcode
from ratrain.chip.noc.schedules import Step
from ratrain.chip.noc.software import StepPlayer, Waiting
from ratrain.chip.noc.workload import Place
from ratrain.errors import ChipError, SpecError

Kind = Literal["multicast", "reduce", "barrier", "all-gather", "reduce-scatter", "all-reduce"]
Algorithm = Literal["hw", "naive", "seq", "tree"]
KINDS: tuple[Kind, ...] = (
    "multicast",
    "reduce",
    "barrier",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
)
ALGORITHMS: dict[Kind, tuple[Algorithm, ...]] = {
    "multicast": ("hw", "seq", "tree", "naive"),
    "reduce": ("hw", "seq", "tree"),
    "barrier": ("hw", "naive"),
    "all-gather": ("hw",),
    "reduce-scatter": ("hw",),
    "all-reduce": ("hw", "tree"),
}


@dataclass(frozen=True)
class Request:
    """What to run: on the clusters from (0, 0), `columns` x `rows` of them."""

    kind: Kind
    algorithm: Algorithm = "hw"
    size_bytes: int = 4096
    columns: int = 4
    rows: int = 1
    op: str = "add"
    form: Format = Format.FP64
    batches: int = 4
    """Pieces of a software pipeline (seq, and reduce tree)."""
    from_memory: bool = False
    """multicast: the payload is in the memory tile of row 0, as in the published experiment."""
    values: bool = True
    """Carry and check values; without them only the cycles are simulated."""
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """`cycles`: from the start of the first cluster to the end of the last."""

    request: Request
    cycles: int
    values_checked: int
    """Clusters whose memory was compared with numpy and found equal, bit for bit."""
    run: Run

    @property
    def payload_rate_bytes_per_cycle(self) -> float:
        return self.request.size_bytes / max(1, self.cycles)


def opcode(op: str, form: Format) -> Opcode:
    """The opcode of an operation by name, in a format."""
    table = FP_OPCODES if form.is_float else INT_OPCODES
    if op not in table:
        raise SpecError(
            f"no operation {op!r} on {form.name}", place="--op", fix="use " + ", ".join(table)
        )
    return table[op]


def collective(chip: ChipSpec, request: Request, *, trace: bool = False) -> Outcome:
    """Simulate one collective; ChipError if it cannot end, or if a value is wrong."""
    if request.algorithm not in ALGORITHMS[request.kind]:
        raise SpecError(
            f"{request.kind} has no algorithm {request.algorithm!r}",
            place="collective",
            fix="use " + ", ".join(ALGORITHMS[request.kind]),
        )
    if request.size_bytes < 1 or request.size_bytes % request.form.width_bytes:
        raise SpecError(
            f"{request.size_bytes} bytes of {request.form.name}",
            place="collective",
            fix=f"use a positive multiple of {request.form.width_bytes}",
        )
    if request.batches < 1:
        raise SpecError(f"{request.batches} batches", place="collective", fix="use 1 or more")
    return _Collective(chip, request).simulate(trace=trace)


class _Collective:
    """Builds one request on a system, runs it, and compares the memories."""

    def __init__(self, chip: ChipSpec, request: Request) -> None:
        self.chip, self.request = chip, request
        self.group = submesh(chip, 0, 0, request.columns, request.rows)
        count = len(self.group.members)
        self.block = request.size_bytes
        blocks = count if request.kind in ("all-gather", "reduce-scatter") else 1
        # [0, room): own values; [room, 2 room): received; [2 room, ..): results of phase two.
        self.room = -(-self.block * blocks // 64) * 64
        self.system = System(chip, memory_bytes=4 * self.room if request.values else 0)
        self.op = opcode(request.op, request.form)
        self.start = self._values() if request.values else {}
        self.expected: dict[Place, tuple[int, NDArray[np.uint8]]] = {}

    def simulate(self, *, trace: bool) -> Outcome:
        build: dict[Kind, Callable[[], Waiting]] = {
            "multicast": self.multicast,
            "reduce": self.reduce,
            "barrier": self.barrier,
            "all-gather": self.all_gather,
            "reduce-scatter": self.reduce_scatter,
            "all-reduce": self.all_reduce,
        }
        build[self.request.kind]()
        result = run(self.system.workload, trace=trace)
        checked = self._check() if self.request.values else 0
        return Outcome(self.request, max(0, result.last_cycle), checked, result)

    # ---- values ----

    def _values(self) -> dict[Place, NDArray[np.uint8]]:
        rng = np.random.default_rng(self.request.seed)
        form, count = self.request.form, self.room // self.request.form.width_bytes
        payloads: dict[Place, NDArray[np.uint8]] = {}
        for place in self.group.members:
            drawn = rng.standard_normal(count) if form.is_float else rng.integers(-50, 50, count)
            payloads[place] = encode(drawn, form)
            self.system.workload.write(place, 0, payloads[place])
        return payloads

    def _expect(self, place: Place, offset: int, data: NDArray[np.uint8]) -> None:
        if self.request.values:
            self.expected[place] = (offset, data)

    def _check(self) -> int:
        for place, (offset, data) in self.expected.items():
            received = self.system.workload.read(place, offset, data.size)
            if not np.array_equal(received, data):
                wrong = int(np.flatnonzero(received != data)[0])
                raise ChipError(
                    f"byte {wrong} differs from numpy", place=f"cluster {place}", fix="report this"
                )
        return len(self.expected)

    def _sum(self, order: list[Place], start: int, size: int) -> NDArray[np.uint8]:
        """op(op(v[0], v[1]), v[2]).. of the members' start values, in the given order."""
        return fold(
            [self.start[p][start : start + size] for p in order], self.op, self.request.form
        )

    # ---- the collectives ----

    def multicast(self) -> Waiting:
        r, group = self.request, self.group
        if r.values:
            payload = self.start[group.corner][: self.block]
            for place in group.members:
                self._expect(place, self.room if r.algorithm == "hw" else 0, payload)
        corner, tile = group.corner, self.chip.memory_tile(0)
        if r.from_memory and r.values:
            self.system.workload.write(tile, 0, self.start[corner][: self.block])
            self.system.workload.write(corner, 0, np.zeros(self.block, np.uint8))
        if r.algorithm == "hw":
            done = self.system.multicast(
                corner,
                group,
                0,
                self.room,
                self.block,
                [],
                from_memory_row=0 if r.from_memory else None,
            )
            return dict.fromkeys(group.members, done)
        beat = self.chip.wide_bytes
        steps = {
            "naive": lambda: schedules.naive_multicast(group, self.block),
            "tree": lambda: schedules.tree_multicast(group, self.block),
            "seq": lambda: schedules.chain_multicast(group, self.block, r.batches, beat),
        }[r.algorithm]()
        start: Waiting = {}
        if r.from_memory:
            start = {corner: self.system.load(corner, 0, 0, 0, self.block, [])}
        return self._steps(steps, start, in_place=True)

    def reduce(self) -> Waiting:
        if self.request.algorithm == "hw":
            return self._hardware_reduce()
        r, group, beat = self.request, self.group, self.chip.wide_bytes
        build = schedules.tree_reduce if r.algorithm == "tree" else schedules.chain_reduce
        steps = build(group, self.block, r.batches, beat)
        if r.values:
            blocks = {p: v[: self.block].copy() for p, v in self.start.items()}
            summed = schedules.replay_sums(steps, blocks, group.corner, self.op, r.form)
            self._expect(group.corner, 0, summed)
        return self._steps(steps, {}, in_place=False)

    @property
    def _in_one_go(self) -> bool:
        """A unit with k inputs can reduce rows and columns at once."""
        takes_k_inputs = self.chip.router.reduction in ("kinput", "ideal")
        return takes_k_inputs and self.request.columns > 1 and self.request.rows > 1

    def _hardware_reduce(self) -> Waiting:
        """Rows to the first column, a barrier, then that column: the unit takes two inputs."""
        if self._in_one_go:
            return self._reduce_in_one_go()
        (x0, y0), (mx, my) = self.group.corner, self.group.mask
        result, waiting = (self.room if mx else 0), cast(Waiting, {})
        for y in range(y0, y0 + my + 1):
            row = Group((x0, y), (mx, 0))
            if mx:
                waiting |= self._reduce(row, (x0, y), 0, self.room)
        if my:
            read = self.room if mx else 0
            after = self.system.barrier(self.group, waiting) if mx else {}
            result = 2 * self.room
            waiting |= self._reduce(Group((x0, y0), (0, my)), (x0, y0), read, result, after)
        if self.request.values:
            sums = [
                self._sum([(x, y) for x in _order(x0, mx)], 0, self.block) for y in _order(y0, my)
            ]
            self._expect(self.group.corner, result, fold(sums, self.op, self.request.form))
        return waiting

    def _reduce_in_one_go(self) -> Waiting:
        """Three inputs meet in the first column: from the north, the east and its own cluster."""
        (x0, y0), (mx, my) = self.group.corner, self.group.mask
        if self.request.values:
            sums: list[NDArray[np.uint8]] = []
            for y in _order(y0, my):
                row = self._sum([(x, y) for x in _order(x0 + 1, mx - 1)], 0, self.block)
                parts = [*sums[-1:], row, self.start[x0, y][: self.block]]
                sums.append(fold(parts, self.op, self.request.form))
            self._expect(self.group.corner, self.room, sums[-1])
        return self._reduce(self.group, self.group.corner, 0, self.room)

    def _reduce(
        self, group: Group, dst: Place, read: int, write: int, after: Waiting | None = None
    ) -> Waiting:
        form = self.request.form
        return self.system.reduce(group, dst, read, write, self.block, self.op, form, after or {})

    def barrier(self) -> Waiting:
        if self.request.algorithm == "hw":
            return self.system.barrier(self.group, {})
        return self.system.software_barrier(self.group, {})

    def all_reduce(self) -> Waiting:
        """Reduce to the corner, then multicast the result."""
        waiting = self.reduce()
        corner = self.group.corner
        offset, data = self.expected.get(corner, (self._result_at(), np.zeros(0, np.uint8)))
        ready = waiting.get(corner, [])
        if self.request.algorithm == "hw":
            target = 3 * self.room
            done = self.system.multicast(corner, self.group, offset, target, self.block, ready)
            for place in self.group.members:
                self._expect(place, target, data)
            return dict.fromkeys(self.group.members, done)
        for place in self.group.members:
            self._expect(place, 0, data)
        return self._steps(
            schedules.tree_multicast(self.group, self.block),
            self.system.barrier(self.group, waiting),
            in_place=True,
        )

    def _result_at(self) -> int:
        if self.request.algorithm != "hw":
            return 0
        both = self.request.columns > 1 and self.request.rows > 1
        return self.room * (2 if both and not self._in_one_go else 1)

    def all_gather(self) -> Waiting:
        """Every member multicasts its block; in phases that cannot deadlock."""
        members, done = self.group.members, cast(Waiting, {})
        flits = 1 + -(-self.block // self.chip.wide_bytes)
        worms = [Worm(m, self.group.corner, self.group.mask, flits) for m in members]
        for phase in serialise(self.chip.mesh, worms):
            after = self.system.barrier(self.group, done) if done else {}
            for i in phase:
                place, write = members[i], self.room + i * self.block
                ready = after.get(place, [])
                transfers = self.system.multicast(place, self.group, 0, write, self.block, ready)
                for member in members:
                    done[member] = [*done.get(member, []), *transfers]
        if self.request.values:
            whole = np.concatenate([self.start[m][: self.block] for m in members])
            for place in members:
                self._expect(place, self.room, whole)
        return done

    def reduce_scatter(self) -> Waiting:
        """All blocks are reduced to the corner, which hands each member its own.

        A reduction that ends inside a row needs three inputs, which the two-input unit of the RTL
        cannot take; so the blocks do not go to their owners at once.
        """
        members, corner, block = self.group.members, self.group.corner, self.block
        self.block = block * len(members)
        waiting = self._hardware_reduce()
        offset, data = self.expected.pop(corner, (self._result_at(), np.zeros(0, np.uint8)))
        target, done, ready = 3 * self.room, cast(Waiting, {}), waiting.get(corner, [])
        for i, place in enumerate(members):
            at = offset + i * block
            done[place] = self.system.copy(corner, place, at, target, block, ready)
            if self.request.values:
                self._expect(place, target, data[i * block : (i + 1) * block])
        self.block = block
        return done

    # ---- software steps ----

    def _steps(self, steps: list[Step], waiting: Waiting, *, in_place: bool) -> Waiting:
        player = StepPlayer(
            self.system,
            incoming_at=0 if in_place else self.room,
            op=self.op,
            form=self.request.form,
            is_pipeline=self.request.algorithm == "seq",
        )
        return player.play(self.group, steps, waiting)


def _order(start: int, mask: int) -> list[int]:
    """The order in which a line of members toward its first one is added: the far end first.

    At each router the operand from the neighbour (port E or N) is the lower port, so it is
    operand a and the router's own value is operand b.
    """
    return list(reversed(range(start, start + mask + 1)))
