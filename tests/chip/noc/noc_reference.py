"""The mesh in plain Python: slow, written for reading, and the judge of the compiled core.

It reads the same task table. Sets, dicts and deques stand where the core has bits and rings.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from ratrain.chip.noc.arithmetic import combine
from ratrain.chip.noc.opcodes import Format, Opcode
from ratrain.chip.noc.spec import MeshSpec
from ratrain.chip.noc.workload import TASK_FIELDS, Workload

N, E, S, W, L, UNIT = range(6)
STEP = {N: (0, 1), E: (1, 0), S: (0, -1), W: (-1, 0)}
BACK = {N: S, E: W, S: N, W: E}
STILL_CYCLES = 64


@dataclass(frozen=True)
class Flit:
    task: int
    seq: int
    values: bytes | None
    passes: int = 0


@dataclass
class Task:
    number: int
    row: dict[str, int]
    stream_at: list[int] | None = None

    def __getattr__(self, name: str) -> int:
        return self.row[name]


@dataclass
class Queue:
    """What is pushed in a cycle is seen in the next; room is judged by the cycle's start."""

    depth: int
    flits: deque[Flit] = field(default_factory=deque)
    start: int = 0

    def ready(self) -> bool:
        return self.start < self.depth

    def seen(self) -> bool:
        return self.start > 0


@dataclass
class Arbiter:
    """Round robin over whole packets, with the registers of the RTL."""

    snapshot: frozenset[int] = frozenset()
    ended: bool = False
    locked: bool = False
    held: frozenset[int] = frozenset()
    rr: int = 0

    def used(self, asking: frozenset[int]) -> frozenset[int]:
        seen = asking if not self.snapshot or self.ended else self.snapshot
        return self.held if self.locked else seen

    def select(self, asking: frozenset[int]) -> int | None:
        if not asking:
            return None
        pick = tree_pick(self.used(asking), self.rr, 0, 8)
        return pick if pick in asking else None

    def advance(self, asking: frozenset[int], granted: bool) -> None:
        used = self.used(asking)
        if not self.snapshot or self.ended:
            self.snapshot = asking
        self.ended = granted
        if granted:
            self.rr = next_rr(used, self.rr)
        self.locked = bool(used) and not granted
        self.held = used


def tree_pick(asking: frozenset[int], rr: int, low: int, width: int) -> int:
    if width == 1:
        return low
    half = width // 2
    left = frozenset(i for i in asking if low <= i < low + half)
    right = frozenset(i for i in asking if low + half <= i < low + width)
    if right and (not left or rr & half):
        return tree_pick(right, rr, low + half, half)
    return tree_pick(left, rr, low, half)


def next_rr(asking: frozenset[int], rr: int) -> int:
    above = [i for i in asking if i > rr]
    return min(above) if above else min(asking, default=rr)


@dataclass
class Unit:
    request: Queue = field(default_factory=lambda: Queue(2))
    response: Queue = field(default_factory=lambda: Queue(2))
    pipe: list[Flit | None] = field(default_factory=list)
    busy: int = 0
    group: int = -1


@dataclass
class Router:
    inputs: list[Queue]
    outputs: list[Queue]
    links: dict[int, list[Queue]]
    served: list[set[int]] = field(default_factory=lambda: [set() for _ in range(5)])
    arbiters: list[Arbiter] = field(default_factory=lambda: [Arbiter() for _ in range(5)])
    unit: Unit | None = None


class Reference:
    def __init__(self, workload: Workload) -> None:
        self.mesh: MeshSpec = workload.mesh
        self.router_spec = self.mesh.router
        table = workload.task_table().tolist()
        self.tasks = [
            Task(i, dict(zip(TASK_FIELDS, row, strict=True))) for i, row in enumerate(table)
        ]
        self.edges = workload.edge_table().tolist()
        self.streams = workload.stream_table().tolist()
        for _, _, task, _ in self.streams:
            self.tasks[task].stream_at = []
        self.memory = workload.memory.copy()
        self.vcs = self.router_spec.virtual_channels
        self.routers = {
            (plane, vc, node): self._router(vc)
            for plane in range(len(self.mesh.planes))
            for vc in range(self.vcs)
            for node in range(self.mesh.nodes)
        }
        self.sources: dict[tuple[int, int, int], deque[int]] = {k: deque() for k in self.routers}
        self.sent = dict.fromkeys(self.routers, 0)
        self.link_rr: dict[tuple[int, int, int], int] = {}
        self.inject_rr: dict[tuple[int, int], int] = {}
        self.unit_free: dict[int, int] = {}
        self.events: list[tuple[int, int, int]] = []
        self.event_seq = 0
        self.deliveries: list[tuple[int, int, int]] = []
        self.now = self.ejected = 0
        self.moved = self.lost = False
        self.open_tasks = len(self.tasks)
        for i, task in enumerate(self.tasks):
            if task.pending == 0:
                self._event(task.release, i)

    def _router(self, vc: int) -> Router:
        spec = self.router_spec
        return Router(
            inputs=[Queue(spec.input_fifo_flits) for _ in range(5)],
            outputs=[Queue(spec.output_fifo_flits) for _ in range(5)],
            links={p: [Queue(2) for _ in range(spec.link_stages)] for p in STEP},
            unit=Unit(pipe=[None] * spec.reduction_latency_cycles) if vc == 0 else None,
        )

    def _event(self, time: int, task: int) -> None:
        heapq.heappush(self.events, (time, self.event_seq, task))
        self.event_seq += 1

    # ---- routes ----

    def route(self, t: Task, x: int, y: int) -> set[int]:
        dx, dy = self.mesh.place(t.dst)
        if t.op != Opcode.MULTICAST:
            if x != dx:
                return {E if x < dx else W}
            if y != dy:
                return {N if y < dy else S}
            return {L}
        sx, sy = self.mesh.place(t.src)
        xs, ys = _span(dx, t.mask_x), _span(dy, t.mask_y)
        in_x, in_y = _same(x, dx, t.mask_x), _same(y, dy, t.mask_y)
        out: set[int] = {L} if in_x and in_y else set()
        if y == sy and sx <= x < xs[1]:
            out.add(E)
        if y == sy and sx >= x > xs[0]:
            out.add(W)
        if in_x and sy <= y < ys[1]:
            out.add(N)
        if in_x and sy >= y > ys[0]:
            out.add(S)
        return out

    def expected(self, t: Task, x: int, y: int) -> set[int]:
        (dx, dy), (sx, sy) = self.mesh.place(t.dst), self.mesh.place(t.src)
        xs, ys = _span(sx, t.from_x), _span(sy, t.from_y)
        in_x, in_y = _same(x, sx, t.from_x), _same(y, sy, t.from_y)
        need: set[int] = {L} if in_x and in_y else set()
        if x == dx and dy <= y < ys[1]:
            need.add(N)
        if x == dx and dy >= y > ys[0]:
            need.add(S)
        if in_y and dx <= x < xs[1]:
            need.add(E)
        if in_y and dx >= x > xs[0]:
            need.add(W)
        return need

    # ---- one router ----

    def last(self, flit: Flit) -> bool:
        return flit.seq == self.tasks[flit.task].flits - 1

    def merge(self, flits: list[Flit]) -> Flit:
        first = flits[0]
        t = self.tasks[first.task]
        values = first.values
        for other in flits[1:]:
            if values is not None and other.values is not None:
                values = merged(Opcode(t.op), Format(t.format), values, other.values)
        return replace(first, values=values)

    def same(self, a: Flit, b: Flit) -> bool:
        ta, tb = self.tasks[a.task], self.tasks[b.task]
        keys = ("op", "dst", "from_x", "from_y")
        return all(ta.row[k] == tb.row[k] for k in keys)

    def router_cycle(self, plane: int, vc: int, node: int) -> None:
        r = self.routers[plane, vc, node]
        x, y = self.mesh.place(node)
        heads = {i: q.flits[0] for i, q in enumerate(r.inputs) if q.seen()}
        routes = {i: self.route(self.tasks[f.task], x, y) for i, f in heads.items()}
        ops = {i: Opcode(self.tasks[f.task].op) for i, f in heads.items()}
        need = {
            i: self.expected(self.tasks[heads[i].task], x, y) for i in heads if ops[i].is_reduction
        }
        arithmetic = {i for i in heads if ops[i].is_arithmetic and len(need[i]) > 1}
        wants = {i: set() if i in arithmetic else routes[i] - r.served[i] for i in heads}
        for i in wants.keys() & {N, S}:
            wants[i] -= {E, W}
        unit_head = None
        if r.unit and r.unit.response.seen():
            unit_head = r.unit.response.flits[0]
            wants[UNIT] = self.route(self.tasks[unit_head.task], x, y)

        picks: dict[int, int] = {}
        merged: dict[int, set[int]] = {}
        asking: dict[int, frozenset[int]] = {}
        for o in range(5):
            wanting = {i for i in wants if o in wants[i]}
            together = {i for i in wanting if i != UNIT and ops[i].is_parallel}
            asking[o] = frozenset(wanting - together)
            whole = self.completable(heads, need, together)
            if not r.outputs[o].ready():
                continue
            if whole:
                merged[o] = whole
            else:
                pick = r.arbiters[o].select(asking[o])
                if pick is not None:
                    picks[o] = pick
        if self.router_spec.fork == "lockstep":
            lost = {i for i in wants if i != UNIT and any(picks.get(o) != i for o in wants[i])}
            picks = {o: i for o, i in picks.items() if i not in lost}
        current = dict(heads)
        if unit_head is not None:
            current[UNIT] = unit_head
        for o in range(5):
            r.arbiters[o].advance(asking[o], o in picks and self.last(current[picks[o]]))

        done: dict[int, set[int]] = {}
        for o, whole in merged.items():
            self.push(r.outputs[o], self.merge([heads[i] for i in sorted(whole)]))
            for i in whole:
                done.setdefault(i, set()).add(o)
        for o, i in picks.items():
            self.push(r.outputs[o], current[i])
            if i != UNIT:
                done.setdefault(i, set()).add(o)

        taken: set[int] = set()
        if r.unit:
            taken |= self.unit_accept(r.unit, heads, need, arithmetic)
            self.unit_pipe(r.unit)
            if UNIT in picks.values():
                r.unit.response.flits.popleft()
                r.unit.busy -= 1
        for i, outs in done.items():
            r.served[i] |= outs
            if r.served[i] >= routes[i]:
                taken.add(i)
        for i in taken:
            r.inputs[i].flits.popleft()
            r.served[i] = set()

    def push(self, queue: Queue, flit: Flit) -> None:
        queue.flits.append(flit)
        self.moved = True

    def completable(
        self, heads: dict[int, Flit], need: dict[int, set[int]], together: set[int]
    ) -> set[int] | None:
        for i in sorted(together):
            if need[i] <= together and all(self.same(heads[i], heads[j]) for j in need[i]):
                return need[i]
        return None

    def unit_accept(
        self,
        unit: Unit,
        heads: dict[int, Flit],
        need: dict[int, set[int]],
        arithmetic: set[int],
    ) -> set[int]:
        if not arithmetic:
            return set()
        a = min(arithmetic)
        inputs = sorted(need[a])
        if any(i not in arithmetic or not self.same(heads[a], heads[i]) for i in inputs):
            return set()
        if not unit.request.ready():
            return set()
        mode = self.router_spec.reduction
        task = self.tasks[heads[a].task]
        if len(inputs) > 2 and mode == "rtl080":
            self.lost = True
            return set()
        if mode == "kinput" and unit.busy and unit.group != task.group:
            return set()
        operands = [heads[i] for i in inputs]
        flit = self.merge(operands[:2] if mode == "lossy" else operands)
        passes = len(inputs) - 2 if mode == "kinput" and not self.header(flit) else 0
        self.push(unit.request, replace(flit, passes=passes))
        unit.busy += 1
        unit.group = task.group
        return set(inputs)

    def unit_pipe(self, unit: Unit) -> None:
        again = None
        if unit.pipe and unit.pipe[-1] is not None:
            out = unit.pipe[-1]
            if out.passes:
                again = replace(out, passes=out.passes - 1)
            elif unit.response.ready():
                self.push(unit.response, out)
            else:
                return
        if unit.pipe:
            unit.pipe = [again, *unit.pipe[:-1]]
            if any(unit.pipe):
                self.moved = True
        if again is not None or not unit.request.seen():
            return
        head = unit.request.flits[0]
        fp = Opcode.FP_ADD <= self.tasks[head.task].op <= Opcode.FP_MAX
        if fp and not self.header(head) and self.core_takes_slot():
            self.moved = True
            return
        if unit.pipe:
            unit.pipe[0] = head
        elif unit.response.ready():
            self.push(unit.response, head)
        else:
            return
        self.moved = True
        unit.request.flits.popleft()

    def header(self, flit: Flit) -> bool:
        task = self.tasks[flit.task]
        return task.op == Opcode.SEQ_AW or flit.seq < task.header_flits

    def core_takes_slot(self) -> bool:
        load = round(1000 * self.router_spec.core_fpu_load)
        return self.now * load // 1000 != (self.now + 1) * load // 1000

    # ---- links ----

    def links(self, plane: int, node: int) -> None:
        for port in range(5):
            ready = [vc for vc in range(self.vcs) if self.link_ready(plane, vc, node, port)]
            for vc in range(self.vcs):
                if port != L:
                    self.relay(plane, vc, node, port)
            if not ready:
                continue
            key = (plane, node, port)
            rr = self.link_rr.get(key, 0)
            vc = tree_pick(frozenset(ready), rr, 0, 4)
            self.link_rr[key] = next_rr(frozenset(ready), rr)
            r = self.routers[plane, vc, node]
            flit = r.outputs[port].flits.popleft()
            self.moved = True
            if port == L:
                self.eject(plane, node, flit)
            else:
                self.push(self.target(plane, vc, node, port), flit)

    def target(self, plane: int, vc: int, node: int, port: int) -> Queue:
        stages = self.routers[plane, vc, node].links[port]
        return stages[0] if stages else self.arrival(plane, vc, node, port)

    def arrival(self, plane: int, vc: int, node: int, port: int) -> Queue:
        x, y = self.mesh.place(node)
        dx, dy = STEP[port]
        return self.routers[plane, vc, self.mesh.node(x + dx, y + dy)].inputs[BACK[port]]

    def link_ready(self, plane: int, vc: int, node: int, port: int) -> bool:
        if not self.routers[plane, vc, node].outputs[port].seen():
            return False
        return port == L or self.target(plane, vc, node, port).ready()

    def relay(self, plane: int, vc: int, node: int, port: int) -> None:
        stages = self.routers[plane, vc, node].links[port]
        for i in reversed(range(len(stages))):
            if not stages[i].seen():
                continue
            end = i + 1 == len(stages)
            into = self.arrival(plane, vc, node, port) if end else stages[i + 1]
            if into.ready():
                self.push(into, stages[i].flits.popleft())

    def eject(self, plane: int, node: int, flit: Flit) -> None:
        t = self.tasks[flit.task]
        self.ejected += 1
        if t.first_at < 0:
            t.row["first_at"] = self.now
        t.row["last_at"] = self.now
        index = flit.seq - t.header_flits
        if flit.values is not None and t.write_at >= 0:
            at = index * self.mesh.planes[plane].flit_bytes
            data = flit.values[: t.bytes - at]
            place = t.write_at + at
            self.memory[node, place : place + len(data)] = np.frombuffer(data, np.uint8)
        if index >= 0:
            for group, where, task, delay in self.streams:
                if (group, where) == (t.group, node):
                    self.feed(self.tasks[task], delay)
        if self.last(flit):
            self.complete(t.group, node)

    def feed(self, t: Task, delay: int) -> None:
        assert t.stream_at is not None
        if not t.stream_at:
            t.stream_at += [self.now + delay] * t.header_flits
            self.satisfy(t, delay)
        if len(t.stream_at) < t.flits:
            t.stream_at.append(self.now + delay)

    # ---- tasks ----

    def complete(self, group: int, node: int) -> None:
        self.deliveries.append((group, node, self.now))
        for only in (-1, node):
            for g, where, task, delay in self.edges:
                if g == group and where == only:
                    self.satisfy(self.tasks[task], delay)

    def satisfy(self, t: Task, delay: int) -> None:
        t.row["release"] = max(t.release, self.now + delay)
        t.row["pending"] -= 1
        if t.pending == 0:
            self._event(t.release, t.number)

    def run_events(self) -> None:
        while self.events and self.events[0][0] <= self.now:
            _, _, number = heapq.heappop(self.events)
            t = self.tasks[number]
            if t.kind == 0:
                self.sources[t.plane, t.vc, t.src].append(number)
            elif t.injected_at < 0:
                start = max(self.now, self.unit_free.get(t.unit, 0) if t.unit >= 0 else 0)
                if t.unit >= 0:
                    self.unit_free[t.unit] = start + t.cycles
                t.row["injected_at"] = start
                self._event(start + t.cycles, number)
            else:
                self.work_done(t)

    def work_done(self, t: Task) -> None:
        if t.read_at >= 0 and t.bytes:
            mine = self.memory[t.src]
            source = mine[t.read_at : t.read_at + t.bytes].tobytes()
            into = mine[t.write_at : t.write_at + t.bytes].tobytes()
            if t.op != Opcode.UNICAST:
                source = merged(Opcode(t.op), Format(t.format), into, source)
            mine[t.write_at : t.write_at + t.bytes] = np.frombuffer(source, np.uint8)
        t.row["first_at"] = t.row["last_at"] = self.now
        self.open_tasks -= 1
        self.complete(t.group, t.src)

    def can_send(self, key: tuple[int, int, int]) -> bool:
        if not self.sources[key] or not self.routers[key].inputs[L].ready():
            return False
        t = self.tasks[self.sources[key][0]]
        if t.stream_at is None:
            return True
        seq = self.sent[key]
        if seq < len(t.stream_at) and t.stream_at[seq] > self.now:
            self.moved = True
            return False
        return seq < len(t.stream_at)

    def inject(self) -> None:
        for plane in range(len(self.mesh.planes)):
            for node in range(self.mesh.nodes):
                ready = [vc for vc in range(self.vcs) if self.can_send((plane, vc, node))]
                if not ready:
                    continue
                rr = self.inject_rr.get((plane, node), 0)
                vc = tree_pick(frozenset(ready), rr, 0, 4)
                self.inject_rr[plane, node] = next_rr(frozenset(ready), rr)
                self.send(plane, vc, node)

    def send(self, plane: int, vc: int, node: int) -> None:
        key = (plane, vc, node)
        t = self.tasks[self.sources[key][0]]
        seq = self.sent[key]
        self.sent[key] += 1
        values = None
        index = seq - t.header_flits
        if t.read_at >= 0 and index >= 0:
            width = self.mesh.planes[plane].flit_bytes
            at = index * width
            size = min(width, t.bytes - at)
            raw = self.memory[node, t.read_at + at : t.read_at + at + size].tobytes()
            values = raw.ljust(width, b"\0")
        if seq == 0:
            t.row["injected_at"] = self.now
        self.push(self.routers[key].inputs[L], Flit(t.number, seq, values))
        if seq == t.flits - 1:
            self.sources[key].popleft()
            self.open_tasks -= 1
            self.sent[key] = 0

    # ---- the clock ----

    def queues(self) -> list[Queue]:
        queues: list[Queue] = []
        for r in self.routers.values():
            queues += r.inputs + r.outputs + [q for stages in r.links.values() for q in stages]
            if r.unit:
                queues += [r.unit.request, r.unit.response]
        return queues

    def run(self) -> str:
        queues, still = self.queues(), 0
        while True:
            self.run_events()
            busy = any(r.unit and any(r.unit.pipe) for r in self.routers.values())
            in_network = busy or any(q.flits for q in queues)
            if not in_network and not any(self.sources.values()):
                if not self.events:
                    return "wedged" if self.open_tasks else "done"
                self.now = self.events[0][0]
                continue
            self.moved = False
            for q in queues:
                q.start = len(q.flits)
            for plane, vc, node in self.routers:
                self.router_cycle(plane, vc, node)
            for plane in range(len(self.mesh.planes)):
                for node in range(self.mesh.nodes):
                    self.links(plane, node)
            self.inject()
            if self.lost:
                return "lost operand"
            still = 0 if self.moved or self.events else still + 1
            if still >= STILL_CYCLES:
                return "deadlock"
            self.now += 1


def _span(at: int, mask: int) -> tuple[int, int]:
    return at & ~mask, at | mask


def _same(a: int, b: int, mask: int) -> bool:
    return (a ^ b) & ~mask == 0


def merged(op: Opcode, form: Format, a: bytes, b: bytes) -> bytes:
    x, y = (np.frombuffer(v, np.uint8) for v in (a, b))
    return combine(op, form, x, y).tobytes()
