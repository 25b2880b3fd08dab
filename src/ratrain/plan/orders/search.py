"""A compute order found by local search, from the named orders of a job that fit.

Each strategy that the search begins with gives a board: its passes on its layout, with backward
whole and with backward split. Policies give first orders (`orders.seeds`); the best of all boards
are improved by small changes, most of them on the critical path (`Moves`), each timed by the
simulator's clock (`orders.clock`). Rounds are annealed: a change for the worse is sometimes kept.
What a round leads to is built and proved before it counts. The same seed makes the same changes.

The order that is found is made ready: proved and simulated as the job would run it from a file,
beside the named orders of the job, with what it gains and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp
from random import Random

from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible, ProgramError, RatrainError, SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.layout.plan import has_members
from ratrain.plan.orders.board import Board, TriedOrder
from ratrain.plan.orders.clock import PARTS, ClockedOrder, Order, OrderClock, Orders
from ratrain.plan.orders.schedules import ComparedSchedule, Comparison
from ratrain.program.kind import Kind, Lane
from ratrain.program.pipelining.fixed import order_for_now
from ratrain.program.plain import Step
from ratrain.program.skeletons import SKELETONS
from ratrain.simulate.simulate import Simulation


@dataclass(frozen=True)
class Critical:
    """A piece of compute on the critical path. `held_up`: it began when the piece before it on its
    rank ended, so that it may have been able to begin earlier."""

    place: int
    piece: Step
    held_up: bool


def critical_pieces(clock: OrderClock, timed: ClockedOrder) -> list[Critical]:
    """The pieces that end the last step of a run, back to where the step begins."""
    run, n = timed.run, len(clock)
    begin, node = (run.periods - 1) * n, clock.last_node(run)
    pieces: list[Critical] = []
    while node >= begin:
        here = clock.piece_of_node.get(node - begin)
        cause = int(run.cause[node])
        before = clock.piece_of_node.get(cause - begin) if cause >= begin else None
        if here is not None and here != before:
            held_up = before is not None and before[0] == here[0]
            pieces.append(Critical(clock.place_of[here[0]], here[1], held_up))
        node = cause
    return pieces


TRANSFERS = 0.1
"""The part of changes that give a reduction or a gather another turn, where turns are free."""


class Moves:
    """Draws changes of an order, at random by a seed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def changed(
        self, orders: Orders, critical: Sequence[Critical], places: int | None = None
    ) -> Orders | None:
        """The order with one change; None where the change drawn cannot be made. `places`: how many
        of the orders are of compute; the others are of transfers."""
        rng, draw = self._rng, self._rng.random()
        places = len(orders) if places is None else places
        if places < len(orders) and rng.random() < TRANSFERS:
            lane = rng.randrange(places, len(orders))
            return _with(orders, lane, self._turned(orders[lane]))
        held_up = [piece for piece in critical if piece.held_up]
        if draw < 0.45 and held_up:
            chosen = rng.choice(held_up)
            return _with(orders, chosen.place, self._moved(orders[chosen.place], chosen.piece, -1))
        if draw < 0.6 and critical:
            chosen = rng.choice(critical)
            return _with(orders, chosen.place, self._moved(orders[chosen.place], chosen.piece, 1))
        if draw < 0.7 and len({number for _, number, _ in orders[0]}) > 1:
            place = rng.randrange(places)
            return _with(orders, place, self._sorted(orders[place]))
        if draw < 0.85:
            place = rng.choice(critical).place if critical else rng.randrange(places)
            return _with(orders, place, self._run_moved(orders[place]))
        place = rng.randrange(places)
        piece = rng.choice(orders[place])
        return _with(orders, place, self._moved(orders[place], piece, rng.choice((-1, 1))))

    def _turned(self, lane: Order) -> Order:
        """A lane of transfers with one of them elsewhere, two swapped, or some the other way
        round."""
        rng, steps = self._rng, list(lane)
        first, last = sorted(rng.sample(range(len(steps)), 2))
        draw = rng.random()
        if draw < 0.4:
            steps.insert(first, steps.pop(last))
        elif draw < 0.8:
            steps.insert(last, steps.pop(first))
        elif draw < 0.9:
            steps[first], steps[last] = steps[last], steps[first]
        else:
            steps[first : last + 1] = reversed(steps[first : last + 1])
        return tuple(steps)

    def _moved(self, order: Order, piece: Step, way: int) -> Order | None:
        """One piece some turns earlier (-1) or later (1)."""
        turns = min(1 + int(self._rng.expovariate(0.5)), len(order))
        steps = list(order)
        return tuple(steps) if _shift(steps, steps.index(piece), way, turns) else None

    def _sorted(self, order: Order) -> Order | None:
        """Some turns in which a rank's stages, or its units, take all micro-batches before the next
        one does; or each micro-batch goes through all of them before the next one does."""
        rng = self._rng
        kind = rng.choice(order)[0]
        first = rng.randrange(len(order))
        last = first + 2 + int(rng.expovariate(0.05))
        turns = [turn for turn in range(first, min(last, len(order))) if order[turn][0] is kind]
        way, by_micro_batch = (1 if kind is Kind.F else -1), rng.random() < 0.5

        def key(piece: Step) -> tuple[int, int]:
            number, micro_batch = way * piece[1], piece[2]
            return (micro_batch, number) if by_micro_batch else (number, micro_batch)

        steps = list(order)
        for turn, piece in zip(
            turns, sorted((order[turn] for turn in turns), key=key), strict=True
        ):
            steps[turn] = piece
        changed = tuple(steps) != order and _keeps_order(steps, [steps[turn] for turn in turns])
        return tuple(steps) if changed else None

    def _run_moved(self, order: Order) -> Order | None:
        """A stage's pieces of one kind, over some micro-batches, one turn earlier or later each."""
        rng = self._rng
        kind, stage, first = rng.choice(order)
        last = first + 1 + int(rng.expovariate(0.15))
        run = [p for p in order if p[0] is kind and p[1] == stage and first <= p[2] <= last]
        way = rng.choice((-1, 1))
        steps = list(order)
        moved = False
        for piece in run if way < 0 else reversed(run):
            moved |= _shift(steps, steps.index(piece), way, 1)
        return tuple(steps) if moved else None


def _shift(steps: list[Step], at: int, way: int, turns: int) -> bool:
    """Moves a piece past at most this many others, as far as its stage's order allows."""
    piece, to = steps[at], at
    for _ in range(turns):
        beside = to + way
        if not 0 <= beside < len(steps) or _in_order(steps[beside], piece):
            break
        to = beside
    if to == at:
        return False
    steps.insert(to, steps.pop(at))
    return True


def _in_order(step: Step, other: Step) -> bool:
    """Whether two pieces must keep their order: those of a stage, or unit, that are of one kind
    (gradients add up from micro-batch 0 on) or of one micro-batch; and of one micro-batch and kind
    those of neighbours on the same rank, one of which makes what the other takes."""
    if step[1] == other[1]:
        return step[0] is other[0] or step[2] == other[2]
    beside = abs(step[1] - other[1]) == 1 and step[2] == other[2]
    return beside and step[0] is other[0] and step[0] is not Kind.W


def _keeps_order(steps: Sequence[Step], moved: Sequence[Step]) -> bool:
    """Whether pieces that moved still come behind what they wait for, and ahead of what waits for
    them, on their own rank."""
    turn = {step: at for at, step in enumerate(steps)}
    for kind, number, micro_batch in moved:
        at, way = turn[kind, number, micro_batch], 1 if kind is Kind.F else -1
        before = [(kind, number - way, micro_batch), (kind, number, micro_batch - 1)]
        after = [(kind, number + way, micro_batch), (kind, number, micro_batch + 1)]
        if kind is Kind.W:
            before, after = before[1:], after[1:]
        for other in PARTS:
            beside = before if PARTS[other] < PARTS[kind] else after
            if other is not kind:
                beside.append((other, number, micro_batch))
        if any(turn.get(step, -1) > at for step in before):
            return False
        if any(turn.get(step, at) < at for step in after):
            return False
    return True


def _with(orders: Orders, place: int, order: Order | None) -> Orders | None:
    return None if order is None else (*orders[:place], order, *orders[place + 1 :])


def forwards_ahead(order: Order) -> int:
    """Forwards that a rank computes before its first backward."""
    return next((turn for turn, step in enumerate(order) if step[0] is not Kind.F), len(order))


# ---- the search ------------------------------------------------------------------------------


Progress = Callable[[int, int], None]
CALMS = (0.0, 0.002, 0.0005, 0.004)
"""How warm rounds are, in turn: the part of a step by which a change for the worse is e times less
often kept. The first keeps none."""
CHANGES = 400
"""Changes tried in a round."""
POOL = 10
"""Orders that are improved side by side."""
NEAR = 1e-3
"""A search ends this near to what no order of the same work can go below."""
SEEDED = 0.5
"""The part of a search that may go into orders to begin with."""
OF_A_BOARD = 4
"""Of these, at most from one board at the beginning."""


@dataclass(frozen=True)
class Limits:
    """When a search ends: after this many seconds or this many orders timed, whichever is first.
    `clock`: what counts the seconds; a loaded machine counts its processor's."""

    seconds: float = 30.0
    evaluations: int | None = None
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class OrderEffort:
    """What a search took. `begun_s`: the fastest step among the orders that it began with."""

    evaluations: int
    seconds: float
    begun_s: float | None


class _Search:
    """Of the fastest order over all cases that is proved to fit."""

    def __init__(
        self, cases: Sequence[Case], limits: Limits, seed: int, progress: Progress | None
    ) -> None:
        self._limits, self._progress, self._reported_s = limits, progress, 0
        self._began_s = limits.clock()
        self._rng = Random(seed)
        self._moves = Moves(self._rng)
        self._boards = [Board(case, split=split) for case in cases for split in (True, False)]
        self._least_s = min(board.least_s for board in self._boards)
        self._pool: list[TriedOrder] = []  # proved
        self._best: TriedOrder | None = None

    def run(self) -> tuple[TriedOrder | None, OrderEffort]:
        """The order, None where there is none, and what it took."""
        self._begin()
        begun_s = None if self._best is None else self._best.step_s
        rounds = 0
        while self._pool and not self._over():
            chosen = self._chosen()
            entry = self._pool[chosen]
            tried = self._round(entry, CALMS[rounds % len(CALMS)])
            if tried.step_s < entry.step_s:
                proved = self._proved(tried)
                if proved is not None and proved.step_s < entry.step_s:
                    self._pool[chosen] = proved
            self._pool.sort(key=lambda entry: entry.step_s)
            rounds += 1
        spent_s = self._limits.clock() - self._began_s
        return self._best, OrderEffort(self._evaluations, spent_s, begun_s)

    @property
    def _evaluations(self) -> int:
        return sum(board.evaluations for board in self._boards)

    def _over(self, part: float = 1.0) -> bool:
        """Whether a part of what the search may take is spent, or nothing is left to gain."""
        spent_s, limits = self._limits.clock() - self._began_s, self._limits
        if self._progress is not None and int(spent_s) > self._reported_s:
            self._reported_s = int(spent_s)
            self._progress(min(self._reported_s, int(limits.seconds)), int(limits.seconds))
        most = limits.evaluations
        if most is not None and self._evaluations >= part * most:
            return True
        ended = self._best is not None and self._best.step_s <= (1 + NEAR) * self._least_s
        return ended or spent_s >= part * limits.seconds

    def _begin(self) -> None:
        """Fills the pool: of every board the fastest orders to begin with that are proved."""
        seeds = {board: board.seeds() for board in self._boards}
        by_time: dict[Board, dict[str, TriedOrder]] = {board: {} for board in self._boards}
        while seeds:
            for board, orders in list(seeds.items()):
                seed = next(orders, None)
                if seed is None or self._over(SEEDED):
                    del seeds[board]
                elif (tried := board.tried(seed)) is not None:
                    if tried.step_s <= (1 + NEAR) * self._least_s:
                        self._proved(tried)
                    alike = by_time[board].setdefault(f"{tried.step_s:.5g}", tried)
                    if board.held_bytes(seed) < board.held_bytes(alike.orders):
                        by_time[board][f"{tried.step_s:.5g}"] = tried
        for seeded in by_time.values():
            ranked = sorted(seeded.values(), key=lambda tried: tried.step_s)
            proved = map(self._proved, ranked)
            self._pool += islice((entry for entry in proved if entry is not None), OF_A_BOARD)
        self._pool.sort(key=lambda entry: entry.step_s)
        del self._pool[POOL:]

    def _chosen(self) -> int:
        """Which order of the pool is improved next: each half as often as the one before."""
        return min(int(self._rng.expovariate(0.7)), len(self._pool) - 1)

    def _round(self, entry: TriedOrder, calm: float) -> TriedOrder:
        """The best order that changes of an entry lead to."""
        board = entry.board
        here = best = entry
        critical = critical_pieces(board.clock, here.timed)
        warmth_s = calm * here.step_s
        for turn in range(CHANGES):
            orders = self._moves.changed(here.orders, critical, board.places)
            tried = None if orders is None else board.tried(orders, here.orders)
            if tried is None:
                continue
            worse_s = tried.step_s - here.step_s
            limit_s = warmth_s * (1 - turn / CHANGES)
            if worse_s <= 0 or (limit_s > 0 and self._rng.random() < exp(-worse_s / limit_s)):
                here = tried
                critical = critical_pieces(board.clock, here.timed)
                if here.step_s < best.step_s:
                    best = here
            if self._over():
                break
        return best

    def _proved(self, tried: TriedOrder) -> TriedOrder | None:
        """An order as an entry of the pool; None where it cannot be proved."""
        proved = tried.board.proved(tried.orders)
        if proved is not None and (self._best is None or proved.step_s < self._best.step_s):
            self._best = proved
        return proved


MOST_OPS = 200_000
"""The most ops of a program whose order is searched: every order is timed whole."""


@dataclass(frozen=True)
class SearchedOrder:
    """The order, on the job that takes it out of a file."""

    job: JobSpec  # of the strategy and layout that it was searched on; its skeleton is left to name
    csv: str
    by_unit: bool  # its orders are of units: ranks hold the whole model
    orders: Orders
    turned: Mapping[tuple[int, Lane], Order]  # lanes of transfers with turns of their own
    simulation: Simulation
    named: ComparedSchedule  # the fastest named order that fits
    named_orders: Orders
    named_simulation: Simulation
    same_passes: tuple[str, float] | None  # the fastest named order with the searched one's passes

    @property
    def step_s(self) -> float:
        return self.simulation.step_time_s

    def gain_over(self, step_s: float) -> float:
        """The part of another order's step that it takes less."""
        return 1 - self.step_s / step_s


@dataclass(frozen=True)
class SearchResult:
    """What a search led to: the order, where it is faster than all that have a name."""

    order: SearchedOrder | None
    effort: OrderEffort


def search_compared(
    compared: Comparison, limits: Limits, seed: int, progress: Progress | None = None
) -> SearchResult:
    """Searches an order that is faster than all of these, from the fastest that fit. In a plan
    every replica that differs from the others has an order of its own."""
    rows = compared.fitting
    if not rows:
        raise Infeasible(
            "no named order fits, and a search begins with one that does",
            place=compared.place("schedule", "memory_budget"),
            fix="raise the budget, or let `ratrain plan` look for a plan that fits",
        )
    cases = [compared.case(row.name) for row in _beginnings(compared)]
    for case in cases:
        _require_searchable(compared, case)
    best, effort = _Search(cases, limits, seed, progress).run()
    if best is None:
        return SearchResult(None, effort)
    board, job, named = best.board, best.board.case.job, compared.case(rows[0].name)
    csv = board.csv(best.orders)
    with order_for_now(csv) as skeleton:  # as it is taken from a file
        simulation = _simulated(compared, job, skeleton)
    before = named.simulation
    if simulation is None or simulation.step_time_s >= before.step_time_s:
        return SearchResult(None, effort)
    order = SearchedOrder(
        job,
        csv,
        board.by_unit,
        best.orders[: board.places],
        board.turned(best.orders),
        simulation,
        rows[0],
        _computed(named),
        before,
        _same_passes(compared, job) if compared.plan is None else None,
    )
    return SearchResult(order, effort)


def _beginnings(compared: Comparison) -> Iterator[ComparedSchedule]:
    """The fastest for each number of stages per rank, and a job's own strategy."""
    stages: set[int] = set()
    for row in compared.fitting:
        assert row.predicted is not None
        own = compared.plan is None and row.name == compared.job.schedule.name
        if row.predicted.stages_per_rank not in stages or own:
            yield row
        stages.add(row.predicted.stages_per_rank)


def _require_searchable(compared: Comparison, case: Case) -> None:
    """Refuses plans whose ranks do not each compute every micro-batch of one stage one by one, and
    programs of which too few orders could be timed."""
    plan = case.plan
    looped = compared.plan is not None and any(r.layout.virtual > 1 for r in plan.replicas)
    refused = (
        (has_members(plan), "stages of several members", "members"),
        (any(r.joined for r in plan.replicas), "stages that differ in micro_batch", "micro_batch"),
        (looped, "several stages on a device", "stages"),
        (plan.job.schedule.average_every is not None, "several steps", "average_every"),
    )
    for is_so, what, key in refused:
        if is_so:
            raise SpecError(
                f"an order cannot be searched for {what} yet",
                place=compared.place("schedule", key),
                fix="use a named order, or another plan",
            )
    if (ops := case.proved.program_ops) > MOST_OPS:
        raise ProgramError(
            f"the program has {ops:,} ops; a search times orders of at most {MOST_OPS:,}",
            place=compared.place("batch", "sequences"),
            fix="search with fewer micro-batches",
        )


def _computed(case: Case) -> Orders:
    """What the places of a case's pipeline compute, or where replicas differ every rank."""
    clock = OrderClock(case.program, case.costs, apart=case.apart)
    return clock.orders[: clock.places]


def _simulated(compared: Comparison, job: JobSpec, order: str) -> Simulation | None:
    """The job or plan in another order; None where it cannot run, or does not fit."""
    try:
        case = compared.in_order(job, order)
        return case.simulation if case.proved.verdict.sound else None
    except RatrainError:
        return None


def _same_passes(compared: Comparison, job: JobSpec) -> tuple[str, float] | None:
    """The fastest order with a name on the job's own passes and layout."""
    names = [name for name, skeleton in SKELETONS.items() if skeleton.fixed is None]
    ran = {name: _simulated(compared, job, name) for name in names}
    times = {name: each.step_time_s for name, each in ran.items() if each is not None}
    return min(times.items(), key=lambda item: item[1], default=None)
