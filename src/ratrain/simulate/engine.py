"""The event loop: several copies of a step on a clock, with shared links and memory.

An op begins when everything it waits for has ended (`program.edges`); ops of a group begin and
end together. Its transfer shares its links evenly with the transfers under way, and its fixed
time follows. Driving a transfer takes compute time: the compute op that runs when the transfer
begins, or else the next one, ends that much later. Events are ordered by (time, sequence), so a
run is deterministic. The compiled form stands in engine.c; the Python form here is its twin.
"""

from __future__ import annotations

import ctypes
import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratrain.compiled import address, c_long, library
from ratrain.errors import ProgramError
from ratrain.program.families import DEVICE
from ratrain.program.graph import Pairs
from ratrain.program.kind import Lane
from ratrain.program.table import Table
from ratrain.program.units import Ints
from ratrain.program.uses import FREE, WRITE
from ratrain.program.walk import dense_groups
from ratrain.simulate.costs import Floats, OpCosts

Progress = Callable[[int, int], None]
"""Called now and then with (ops run, ops in all)."""


@dataclass(frozen=True)
class Run:
    """What the clock said. Node `period * ops + op` is an op of a period: of a step, in most
    programs.

    `start_seq` and `end_seq` number all beginnings and endings in the order in which they
    happened; `cause` is the node whose end let a node begin (-1: none).
    """

    periods: int
    start_s: Floats
    end_s: Floats
    start_seq: Ints
    end_seq: Ints
    cause: Ints
    peak_bytes: Ints  # per rank
    peak_seq: Ints  # per rank: the beginning at which the peak was reached, -1: from the start


@dataclass(frozen=True)
class Nodes:
    """What the clock needs of a table: its ops, who waits for whom, and where memory changes."""

    inside: Pairs
    across: Pairs
    group: Ints  # of ops that happen together, numbered from 0; -1: alone
    group_sizes: Ints
    compute_rank: npt.NDArray[np.int32]  # -1: of no compute lane
    rank: npt.NDArray[np.int32]
    born_bytes: Ints
    freed_bytes: Ints
    standing_bytes: Ints  # of each rank

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def ranks(self) -> int:
        return len(self.standing_bytes)


def nodes_of(table: Table) -> Nodes:
    """The `Nodes` of a table."""
    inside, across = table.edges.inside, table.edges.across
    rank = table.rank.astype(np.int32)
    compute_rank = np.where(table.lane == Lane.COMPUTE, rank, -1).astype(np.int32)
    return Nodes(
        Pairs(inside.source, inside.target),
        Pairs(across.source, across.target),
        *dense_groups(table.group),
        compute_rank,
        rank,
        *memory_changes(table),
    )


def run(
    table: Table,
    costs: OpCosts,
    rates: Floats,
    steps: int,
    *,
    compiled: bool = True,
    progress: Progress | None = None,
) -> Run:
    """Runs `steps` copies of a program's step, or of its period where it spells out several. A
    program that cannot finish is an error."""
    return run_nodes(nodes_of(table), costs, rates, steps, compiled=compiled, progress=progress)


def run_nodes(
    nodes: Nodes,
    costs: OpCosts,
    rates: Floats,
    steps: int,
    *,
    compiled: bool = True,
    progress: Progress | None = None,
) -> Run:
    """The same of ops whose columns are at hand."""
    total = len(nodes) * steps
    result = _blank(total, nodes.ranks, steps)
    c = library("simulate", "engine_c") if compiled else None
    if c is None:
        ran = _Loop(nodes, costs, rates, steps, result).run(progress)
    else:
        ran = _run_compiled(c, nodes, costs, rates, result, progress)
    if ran < total:
        raise ProgramError(
            f"the program deadlocks after {ran} of {total} ops",
            fix="run `ratrain verify` on the program: it names the ops that wait for each other",
        )
    return result


def _blank(nodes: int, ranks: int, steps: int) -> Run:
    def floats(length: int) -> Floats:
        return np.zeros(length, dtype=np.float64)

    def ints(length: int) -> Ints:
        return np.zeros(length, dtype=np.int64)

    columns = floats(nodes), floats(nodes), ints(nodes), ints(nodes), ints(nodes)
    return Run(steps, *columns, ints(ranks), ints(ranks))


def memory_changes(table: Table, tier: str = DEVICE) -> tuple[Ints, Ints, Ints]:
    """Of one tier: (bytes born when an op begins, bytes freed when it ends, bytes standing on each
    rank)."""
    uses, states = table.uses, table.states
    here = states.in_tier(tier)
    passing = (here & ~states.persistent)[uses.state]
    size = states.size_bytes[uses.state]
    changes: list[Ints] = []
    for chosen in (
        passing & (uses.mode == WRITE) & (uses.version == 1),
        passing & (uses.mode == FREE),
    ):
        # float64 sums are exact below 2^53 bytes, far above any device
        summed = np.bincount(uses.op[chosen], weights=size[chosen], minlength=len(table))
        changes.append(summed.astype(np.int64))
    kept = here & states.persistent
    standing = np.bincount(
        states.rank[kept], weights=states.size_bytes[kept], minlength=table.setup.ranks
    )
    return changes[0], changes[1], standing.astype(np.int64)


def _run_compiled(
    c: ctypes.CDLL,
    nodes: Nodes,
    costs: OpCosts,
    rates: Floats,
    out: Run,
    progress: Progress | None,
) -> int:
    inside, across, sizes = nodes.inside, nodes.across, nodes.group_sizes
    memory = nodes.standing_bytes.copy()
    counter = ctypes.c_int64(0)
    edges = (c_long(len(inside.source)), address(inside.source), address(inside.target))
    edges += (c_long(len(across.source)), address(across.source), address(across.target))
    c.ratrain_simulate.restype = ctypes.c_int64

    def call() -> int:
        return c.ratrain_simulate(
            *(c_long(len(nodes)), c_long(out.periods), *edges),
            *(c_long(len(sizes)), address(nodes.group), address(sizes)),
            *(c_long(nodes.ranks), c_long(len(rates))),
            *(address(costs.fixed_s), address(costs.interrupt_s), address(costs.volume_bytes)),
            *(
                address(costs.link),
                address(costs.peer_link),
                address(rates),
                address(nodes.compute_rank),
                address(nodes.rank),
            ),
            *(address(nodes.born_bytes), address(nodes.freed_bytes), address(memory)),
            *(
                address(out.start_s),
                address(out.end_s),
                address(out.start_seq),
                address(out.end_seq),
            ),
            *(
                address(out.cause),
                address(out.peak_bytes),
                address(out.peak_seq),
                ctypes.byref(counter),
            ),
        )

    ran = call() if progress is None else _watched(call, counter, len(out.end_s), progress)
    if ran < 0:
        raise MemoryError("simulating the program")
    return ran


def _watched(
    call: Callable[[], int], counter: ctypes.c_int64, total: int, progress: Progress
) -> int:
    """Makes the call on a thread of its own (it releases the lock) and reports how far it is."""
    answer: list[int] = []
    worker = threading.Thread(target=lambda: answer.append(call()))
    worker.start()
    running = True
    while running:  # at least once: a short run may have ended before anybody looks
        worker.join(0.2)
        running = worker.is_alive()
        progress(counter.value, total)
    return answer[0]


FLOW_ENDS, OP_ENDS = 0, 1


class _Loop:
    """The event loop in Python. Statement by statement the same as engine.c."""

    def __init__(self, nodes: Nodes, costs: OpCosts, rates: Floats, steps: int, out: Run) -> None:
        self.n, self.steps, self.out = len(nodes), steps, out
        self.fixed = [float(value) for value in costs.fixed_s]
        self.interrupt = [float(value) for value in costs.interrupt_s]
        self.volume = [float(value) for value in costs.volume_bytes]
        self.link_a = [int(link) for link in costs.link]
        self.link_b = [int(link) for link in costs.peer_link]
        self.rate = [float(rate) for rate in rates]
        self.compute = [int(r) for r in nodes.compute_rank]
        self.rank = [int(r) for r in nodes.rank]
        self.born, self.freed = nodes.born_bytes.tolist(), nodes.freed_bytes.tolist()
        self.memory = nodes.standing_bytes.tolist()
        self.group, self.sizes = nodes.group.tolist(), nodes.group_sizes.tolist()
        self.inside = _followers(nodes.inside, self.n)
        self.across = _followers(nodes.across, self.n)
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.seq = self.history = 0
        self.now = 0.0
        self.debt = [0.0] * len(self.memory)
        # Since when debt is worked off; negative while a compute op runs.
        self.idle = [0.0] * len(self.memory)
        self.flows: list[list[int]] = [[] for _ in self.rate]  # nodes, the newest first
        self.left: dict[int, float] = {}
        self.speed: dict[int, float] = {}
        self.since: dict[int, float] = {}
        self.stamp: dict[int, int] = {}
        self.ready_members: dict[tuple[int, int], list[int]] = {}
        self.ended_members: dict[tuple[int, int], int] = {}
        self.waits = self._count_waits()

    def _count_waits(self) -> list[int]:
        waits = [0] * (self.n * self.steps)
        for step in range(self.steps):
            for op in range(self.n):
                for target in self.inside[op]:
                    waits[step * self.n + target] += 1
                if step + 1 < self.steps:
                    for target in self.across[op]:
                        waits[(step + 1) * self.n + target] += 1
        return waits

    def push(self, time: float, node: int, stamp: int, what: int) -> None:
        heapq.heappush(self.heap, (time, self.seq, node, stamp, what))
        self.seq += 1

    def share(self, op: int) -> float:
        a, b = self.link_a[op], self.link_b[op]
        speed = self.rate[a] / len(self.flows[a])
        return min(speed, self.rate[b] / len(self.flows[b])) if b >= 0 else speed

    def repace(self, link: int) -> None:
        for node in self.flows[link]:
            speed = self.share(node % self.n)
            if speed == self.speed[node]:
                continue
            self.left[node] -= self.speed[node] * (self.now - self.since[node])
            self.left[node] = max(self.left[node], 0.0)
            self.since[node], self.speed[node] = self.now, speed
            self.stamp[node] = self.stamp.get(node, 0) + 1
            self.push(self.now + self.left[node] / speed, node, self.stamp[node], FLOW_ENDS)

    def links(self, op: int) -> list[int]:
        return [link for link in (self.link_a[op], self.link_b[op]) if link >= 0]

    def work_off(self, rank: int) -> None:
        """While no compute op runs, a rank works off the driving that it owes."""
        if self.idle[rank] < 0:
            return
        if self.debt[rank] > 0:
            self.debt[rank] = max(0.0, self.debt[rank] - (self.now - self.idle[rank]))
        self.idle[rank] = self.now

    def begin(self, node: int) -> None:
        op, out = node % self.n, self.out
        rank = self.rank[op]
        out.start_s[node], out.start_seq[node] = self.now, self.history
        self.history += 1
        self.memory[rank] += self.born[op]
        if self.memory[rank] > out.peak_bytes[rank]:
            out.peak_bytes[rank], out.peak_seq[rank] = self.memory[rank], out.start_seq[node]
        self.work_off(rank)
        self.debt[rank] += self.interrupt[op]
        if self.compute[op] >= 0:
            self.idle[rank] = -1.0
        if self.volume[op] > 0:
            self.left[node], self.since[node], self.speed[node] = self.volume[op], self.now, 0.0
            for link in self.links(op):
                self.flows[link].insert(0, node)
            for link in self.links(op):
                self.repace(link)
            return
        self.push(self.now + self.fixed[op], node, 0, OP_ENDS)

    def ready(self, node: int) -> None:
        group = self.group[node % self.n]
        if group < 0:
            self.begin(node)
            return
        members = self.ready_members.setdefault((node // self.n, group), [])
        members.insert(0, node)
        if len(members) == self.sizes[group]:
            for member in members:
                if member != node:
                    self.out.cause[member] = node
                self.begin(member)

    def release(self, source: int) -> None:
        step, op = divmod(source, self.n)
        targets = [(step * self.n + target) for target in self.inside[op]]
        if step + 1 < self.steps:
            targets += [(step + 1) * self.n + target for target in self.across[op]]
        for target in targets:
            self.waits[target] -= 1
            if not self.waits[target]:
                self.out.cause[target] = source
                self.ready(target)

    def run(self, progress: Progress | None) -> int:
        out, ran = self.out, 0
        out.peak_bytes[:], out.peak_seq[:], out.cause[:] = self.memory, -1, -1
        for node in [node for node, count in enumerate(self.waits) if not count]:
            self.ready(node)
        while self.heap:
            self.now, _, node, stamp, what = heapq.heappop(self.heap)
            op = node % self.n
            if what == FLOW_ENDS:
                if stamp != self.stamp[node]:
                    continue
                for link in self.links(op):
                    self.flows[link].remove(node)
                for link in self.links(op):
                    self.repace(link)
                self.push(self.now + self.fixed[op], node, 0, OP_ENDS)
                continue
            if self.compute[op] >= 0 and self.debt[self.rank[op]] > 0:
                longer, self.debt[self.rank[op]] = self.debt[self.rank[op]], 0.0
                self.push(self.now + longer, node, 0, OP_ENDS)
                continue
            members = [node]
            if self.group[op] >= 0:
                key = node // self.n, self.group[op]
                self.ended_members[key] = self.ended_members.get(key, 0) + 1
                if self.ended_members[key] < self.sizes[self.group[op]]:
                    continue
                members = self.ready_members[key]
            for member in members:
                out.end_s[member], out.end_seq[member] = self.now, self.history
                if self.compute[member % self.n] >= 0:
                    self.idle[self.rank[member % self.n]] = self.now
                self.history += 1
                self.memory[self.rank[member % self.n]] -= self.freed[member % self.n]
                ran += 1
            for member in members:
                self.release(member)
            if progress is not None and ran % 4096 < len(members):
                progress(ran, self.n * self.steps)
        return ran


def _followers(edges: Pairs, n: int) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in range(n)]
    for source, target in zip(edges.source, edges.target, strict=True):
        followers[int(source)].append(int(target))
    return followers
