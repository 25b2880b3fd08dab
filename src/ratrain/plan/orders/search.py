"""A compute order found by local search, from the named orders of a job that fit.

Each strategy that the search begins with gives a board: its passes on its layout, with backward
whole and with backward split. Policies give first orders (`orders.seeds`); the best of all boards
are improved by small changes, most of them on the critical path (`orders.moves`), each timed by the
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
from ratrain.plan.layout.orders import order_for_now
from ratrain.plan.layout.plan import has_members
from ratrain.plan.orders.board import Board, Tried
from ratrain.plan.orders.clock import Order, OrderClock, Orders
from ratrain.plan.orders.moves import Moves, critical_pieces
from ratrain.plan.orders.schedules import ComparedSchedule, Comparison
from ratrain.program.kind import Lane
from ratrain.program.skeletons import SKELETONS
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import Simulation

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
class Found:
    """The fastest order proved, and how it was found."""

    case: Case
    by_unit: bool
    orders: Orders  # of compute
    turned: Mapping[tuple[int, Lane], Order]  # lanes of transfers with turns of their own
    csv: str  # as a file that a job takes


@dataclass(frozen=True)
class Effort:
    """What a search took. `begun_s`: the fastest step among the orders that it began with."""

    evaluations: int
    seconds: float
    begun_s: float | None


@dataclass(frozen=True)
class _Entry:
    """A proved order of the pool."""

    board: Board
    tried: Tried

    @property
    def step_s(self) -> float:
        return self.tried.step_s


def search_orders(
    cases: Sequence[Case], limits: Limits, seed: int, progress: Progress | None = None
) -> tuple[Found | None, Effort]:
    """The fastest order that is proved to fit, over all cases; None where there is none."""
    return _Search(cases, limits, seed, progress).run()


class _Search:
    def __init__(
        self,
        cases: Sequence[Case],
        limits: Limits,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self._limits, self._progress, self._reported_s = limits, progress, 0
        self._began_s = limits.clock()
        self._rng = Random(seed)
        self._moves = Moves(self._rng)
        self._boards = [Board(case, split=split) for case in cases for split in (True, False)]
        self._least_s = min(board.least_s for board in self._boards)
        self._pool: list[_Entry] = []
        self._best: _Entry | None = None

    def run(self) -> tuple[Found | None, Effort]:
        self._begin()
        begun_s = None if self._best is None else self._best.step_s
        rounds = 0
        while self._pool and not self._over():
            chosen = self._chosen()
            entry = self._pool[chosen]
            tried = self._round(entry, CALMS[rounds % len(CALMS)])
            if tried.step_s < entry.step_s:
                proved = self._proved(entry.board, tried)
                if proved is not None and proved.step_s < entry.step_s:
                    self._pool[chosen] = proved
            self._pool.sort(key=lambda entry: entry.step_s)
            rounds += 1
        effort = Effort(self._evaluations, self._limits.clock() - self._began_s, begun_s)
        if self._best is None:
            return None, effort
        board, orders = self._best.board, self._best.tried.orders
        compute, turned = orders[: board.places], board.turned(orders)
        return Found(board.case, board.by_unit, compute, turned, board.csv(orders)), effort

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
        by_time: dict[Board, dict[str, Tried]] = {board: {} for board in self._boards}
        while seeds:
            for board, orders in list(seeds.items()):
                seed = next(orders, None)
                if seed is None or self._over(SEEDED):
                    del seeds[board]
                elif (tried := board.tried(seed)) is not None:
                    if tried.step_s <= (1 + NEAR) * self._least_s:
                        self._proved(board, tried)
                    alike = by_time[board].setdefault(f"{tried.step_s:.5g}", tried)
                    if board.held_bytes(seed) < board.held_bytes(alike.orders):
                        by_time[board][f"{tried.step_s:.5g}"] = tried
        for board, seeded in by_time.items():
            ranked = sorted(seeded.values(), key=lambda tried: tried.step_s)
            proved = (self._proved(board, tried) for tried in ranked)
            self._pool += islice((entry for entry in proved if entry is not None), OF_A_BOARD)
        self._pool.sort(key=lambda entry: entry.step_s)
        del self._pool[POOL:]

    def _chosen(self) -> int:
        """Which order of the pool is improved next: each half as often as the one before."""
        return min(int(self._rng.expovariate(0.7)), len(self._pool) - 1)

    def _round(self, entry: _Entry, calm: float) -> Tried:
        """The best order that changes of an entry lead to."""
        board = entry.board
        here = best = entry.tried
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

    def _proved(self, board: Board, tried: Tried) -> _Entry | None:
        """An order as an entry of the pool; None where it cannot be proved."""
        proved = board.proved(tried.orders)
        if proved is None:
            return None
        entry = _Entry(board, proved)
        if self._best is None or entry.step_s < self._best.step_s:
            self._best = entry
        return entry


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
    same_passes: tuple[str, float] | None = (
        None  # the fastest named order with the searched one's passes
    )

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
    effort: Effort


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
    best, effort = search_orders(cases, limits, seed, progress)
    if best is None:
        return SearchResult(None, effort)
    job, named = best.case.job, compared.case(rows[0].name)
    with order_for_now(best.csv) as skeleton:  # as it is taken from a file
        simulation = _simulated(compared, job, skeleton)
    before = simulate_proved(named.proved, named.costs)
    if simulation is None or simulation.step_time_s >= before.step_time_s:
        return SearchResult(None, effort)
    order = SearchedOrder(
        job,
        best.csv,
        best.by_unit,
        best.orders,
        best.turned,
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
    ops = case.proved.program_ops
    if ops > MOST_OPS:
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
        return simulate_proved(case.proved, case.costs) if case.proved.verdict.sound else None
    except RatrainError:
        return None


def _same_passes(compared: Comparison, job: JobSpec) -> tuple[str, float] | None:
    """The fastest order with a name on the job's own passes and layout."""
    names = [name for name, skeleton in SKELETONS.items() if skeleton.fixed is None]
    ran = {name: _simulated(compared, job, name) for name in names}
    times = {name: each.step_time_s for name, each in ran.items() if each is not None}
    return min(times.items(), key=lambda item: item[1], default=None)
