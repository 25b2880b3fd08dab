"""Whether concurrent worms can block each other for ever, and phases in which they cannot.

A long worm holds every output port it has reached until its tail has passed, and a fork passes
only when all its branches do; so it may hold port c while it waits for port d of its own tree
unless d lies above c (nearer to its source). If such hold-and-wait steps of different worms close
a circle, some timing deadlocks. Without a circle no timing does. Not in the paper, which claims
freedom from deadlock for reductions only; the RTL deadlocks as the simulator does.

A packet of one flit never holds a port. Two worms of the same source and virtual channel keep
their order everywhere: the first never waits for the second, and the second holds a port of a
router only when the tail of the first has left that router and all before it.

`check` answers for every timing, so it may refuse a set that happens to pass as it is issued (rows
and columns together do); `deadlocks_as_issued` answers for one timing, by simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ratrain.chip.noc.mesh import run
from ratrain.chip.noc.opcodes import Opcode
from ratrain.chip.noc.spec import MeshSpec, masked
from ratrain.chip.noc.workload import Place, Workload
from ratrain.errors import SpecError

T = TypeVar("T")
Port = tuple[int, int, str, int]
"""(x, y, N E S W or L, virtual channel)."""


@dataclass(frozen=True)
class Worm:
    """A unicast (mask (0, 0)) or multicast of `flits` that may be in flight with others."""

    src: Place
    dst: Place
    mask: Place = (0, 0)
    flits: int = 2
    vc: int = 0


@dataclass(frozen=True)
class Verdict:
    """`circle`: worms (by index) that each hold a port the one before waits for; empty if safe."""

    can_deadlock: bool
    circle: tuple[int, ...]
    ports: tuple[Port, ...]


def tree(mesh: MeshSpec, worm: Worm) -> dict[Port, Port | None]:
    """Every output port of the worm, and the port before it: rows first, then columns."""
    (sx, sy), (dx, dy), (mx, my) = worm.src, worm.dst, worm.mask
    columns, rows = masked(dx, mx), masked(dy, my)
    for corner in (worm.src, (columns[0], rows[0]), (columns[-1], rows[-1])):
        mesh.node(*corner)
    parents: dict[Port, Port | None] = {}

    def walk(
        x: int, y: int, step: int, end: int, vertical: bool, parent: Port | None
    ) -> Port | None:
        """Add the ports of a straight line from (x, y); the last one."""
        while (y if vertical else x) != end:
            name = ("N" if step > 0 else "S") if vertical else ("E" if step > 0 else "W")
            port = (x, y, name, worm.vc)
            parents[port] = parent
            parent = port
            x, y = (x, y + step) if vertical else (x + step, y)
            if not vertical:
                reached[x] = parent
        return parent

    reached: dict[int, Port | None] = {sx: None}
    walk(sx, sy, 1, max(columns[-1], sx), False, None)
    walk(sx, sy, -1, min(columns[0], sx), False, None)
    for x in columns:
        if sy in rows:
            parents[x, sy, "L", worm.vc] = reached[x]
        for step, end in ((1, rows[-1]), (-1, rows[0])):
            parent = reached[x]
            for y in range(sy, end, step):
                parent = walk(x, y, step, y + step, True, parent)
                if y + step in rows:
                    parents[x, y + step, "L", worm.vc] = parent
    return parents


def check(mesh: MeshSpec, worms: Sequence[Worm]) -> Verdict:
    """Whether any timing of these worms can deadlock."""
    blocking = [i for i, w in enumerate(worms) if w.flits > 1]
    trees = {i: tree(mesh, worms[i]) for i in blocking}
    users: dict[Port, list[int]] = {}
    for i in blocking:
        for port in trees[i]:
            users.setdefault(port, []).append(i)
    shared = {i: [p for p in trees[i] if len(users[p]) > 1] for i in blocking}
    ancestors = {i: {p: _ancestors(trees[i], p) for p in shared[i]} for i in blocking}
    steps: dict[tuple[int, Port], list[tuple[int, Port]]] = {}
    for i in blocking:
        for held_port in shared[i]:
            steps[i, held_port] = [
                (j, awaited_port)
                for awaited_port in shared[i]
                if awaited_port not in ancestors[i][held_port]
                for j in users[awaited_port]
                if j != i and not _ordered(worms, i, j, awaited_port, ancestors[i][held_port])
            ]
    found = circle(steps)
    return Verdict(bool(found), tuple(i for i, _ in found), tuple(p for _, p in found))


def deadlocks_as_issued(mesh: MeshSpec, worms: Sequence[Worm], at: Sequence[int]) -> bool:
    """Whether these worms deadlock when worm i is offered at cycle at[i] on an idle mesh."""
    workload = Workload(mesh)
    for worm, cycle in zip(worms, at, strict=True):
        op = Opcode.MULTICAST if worm.mask != (0, 0) else Opcode.UNICAST
        workload.packet(worm.src, worm.dst, worm.flits, op=op, mask=worm.mask, vc=worm.vc, at=cycle)
    return run(workload, check=False).status == "deadlock"


def serialise(mesh: MeshSpec, worms: Sequence[Worm]) -> list[list[int]]:
    """Phases (indices of worms) without any circle, to be run one after the other.

    Greedy, in the given order: each worm joins the first phase that stays safe with it.
    """
    phases: list[list[int]] = []
    for i in range(len(worms)):
        for phase in phases:
            if not check(mesh, [worms[j] for j in [*phase, i]]).can_deadlock:
                phase.append(i)
                break
        else:
            phases.append([i])
    return phases


@dataclass(frozen=True)
class RowReduction:
    """An arithmetic reduction: its sources' aligned submesh and its destination."""

    corner: Place
    mask: Place
    dst: Place


def lost_operands(reduction: RowReduction) -> list[tuple[Place, str]]:
    """Routers where more than two inputs meet: the two-input unit would lose operands there."""
    (x0, y0), (mx, my), (dx, dy) = reduction.corner, reduction.mask, reduction.dst
    xs, ys = masked(x0, mx), masked(y0, my)
    lost: list[tuple[Place, str]] = []
    for y in ys:
        for x in range(min(*xs, dx), max(*xs, dx) + 1):
            lost += _crowded(x, y, xs, ys, (dx, dy))
    for y in set(range(min(*ys, dy), max(*ys, dy) + 1)) - set(ys):
        lost += _crowded(dx, y, xs, ys, (dx, dy))
    return lost


def serialise_reductions(reductions: Sequence[RowReduction]) -> list[list[int]]:
    """Phases in which no router combines for two reductions: it has one reduction unit.

    Raises SpecError for a reduction that would lose an operand.
    """
    for number, reduction in enumerate(reductions):
        lost = lost_operands(reduction)
        if lost:
            raise SpecError(
                f"router {lost[0][0]} would get {len(lost[0][1])} operands ({lost[0][1]})",
                place=f"reduction {number}",
                fix="reduce rows to one end first, then columns",
            )
    phases: list[tuple[set[Place], list[int]]] = []
    for i, reduction in enumerate(reductions):
        routers = _routers(reduction)
        for used_routers, members in phases:
            if not used_routers & routers:
                used_routers |= routers
                members.append(i)
                break
        else:
            phases.append((set(routers), [i]))
    return [members for _, members in phases]


def _crowded(x: int, y: int, xs: list[int], ys: list[int], dst: Place) -> list[tuple[Place, str]]:
    dx, dy = dst
    inputs = "L" if x in xs and y in ys else ""
    if x == dx:
        inputs += "N" * (dy <= y < ys[-1]) + "S" * (dy >= y > ys[0])
    if y in ys:
        inputs += "E" * (dx <= x < xs[-1]) + "W" * (dx >= x > xs[0])
    return [((x, y), inputs)] if len(inputs) > 2 else []


def _routers(reduction: RowReduction) -> set[Place]:
    (x0, y0), (mx, my), (dx, dy) = reduction.corner, reduction.mask, reduction.dst
    xs, ys = masked(x0, mx), masked(y0, my)
    routers = {(x, y) for y in ys for x in range(min(*xs, dx), max(*xs, dx) + 1)}
    return routers | {(dx, y) for y in range(min(*ys, dy), max(*ys, dy) + 1)}


def _ancestors(parents: dict[Port, Port | None], port: Port) -> set[Port]:
    ancestors: set[Port] = set()
    at: Port | None = port
    while at is not None:
        ancestors.add(at)
        at = parents[at]
    return ancestors


def _ordered(
    worms: Sequence[Worm], waiter: int, holder: int, awaited: Port, passed: set[Port]
) -> bool:
    """Whether `waiter`, beyond the ports `passed`, can never wait for `awaited`, which `holder`
    holds."""
    a, b = worms[waiter], worms[holder]
    if a.src != b.src or a.vc != b.vc:
        return False
    return waiter < holder or awaited[:2] in {port[:2] for port in passed}


def circle(steps: Mapping[T, Sequence[T]]) -> list[T]:
    """A cycle of the graph, found by depth-first search without recursion; empty if none. `steps`:
    from each of its nodes."""
    state: dict[T, int] = {}
    for root in steps:
        if root in state:
            continue
        path, stack = [root], [iter(steps[root])]
        state[root] = 1
        while stack:
            following = next(stack[-1], None)
            if following is None:
                state[path.pop()] = 2
                stack.pop()
            elif state.get(following) == 1:
                return path[path.index(following) :]
            elif following not in state:
                state[following] = 1
                path.append(following)
                stack.append(iter(steps[following]))
    return []
