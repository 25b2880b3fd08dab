"""Simulates a program: verify, run on the clock, itemise."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from ratrain.program.bounds import PeakBound
from ratrain.program.kind import Lane, Waiting
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.table import Table
from ratrain.program.verify import Verdict, verify
from ratrain.simulate.costs import Costs, Floats, OpCosts, costs_of_ops
from ratrain.simulate.critical import CriticalPart, critical_path
from ratrain.simulate.engine import Progress, Run, run
from ratrain.simulate.memory import memory_curves
from ratrain.simulate.result import RankTimes, Window, rank_times, steady_window
from ratrain.simulate.step_bound import StepBound, step_bound
from ratrain.timeline.timeline import MemoryCurve, Span, Timeline

Vary = Callable[[Table, OpCosts], OpCosts]

STEPS = 4
"""Steps simulated, or periods of a program that spells out several steps: the first fills the
pipeline, the last two tell whether it is steady."""


@dataclass(frozen=True)
class Simulation:
    """A program's predicted step: the mean of its period's."""

    program: Program
    verdict: Verdict
    window: Window
    ranks: tuple[RankTimes, ...]
    run: Run
    wall_time_s: float  # of the simulation itself, without building and proving the program
    costs: OpCosts
    rates: Floats  # of links
    extrapolated_to: Repeating | None = None  # the longer program that all times are of
    extrapolated_path: tuple[CriticalPart, ...] | None = None

    @cached_property
    def critical(self) -> tuple[CriticalPart, ...]:
        """The critical path of the steady step."""
        if self.extrapolated_path is not None:
            return self.extrapolated_path
        return critical_path(self.program.table, self.run, self.window)

    @cached_property
    def bound(self) -> StepBound | None:
        """What no order of the step's work can beat; None for a program of several steps."""
        return step_bound(self.program.table, self.costs, self.rates, self.extrapolated_to)

    @property
    def step_time_s(self) -> float:
        return self.window.step_s

    @property
    def drawn_step(self) -> str:
        """Which step of its period the last one is, to follow a title: "" where it is alone."""
        steps = self.program.setup.period
        return f" (step {steps} of {steps})" if steps > 1 else ""

    @property
    def steps_simulated(self) -> int:
        return self.run.periods * self.program.setup.period

    @property
    def ops_simulated(self) -> int:
        return len(self.program.table) * self.run.periods

    @property
    def peak_bytes(self) -> int:
        """The worst rank's peak on this timing."""
        return max(times.peak_bytes for times in self.ranks)

    @property
    def bound_bytes(self) -> int:
        """The worst rank's peak on any timing."""
        return max((bound.total_bytes for bound in self.verdict.bounds), default=0)

    def fullest(self, among: Collection[int] | None = None) -> PeakBound | None:
        """Of these ranks, or of all, the bound that is nearest to its budget, or furthest beyond
        it; None where nothing is proved."""
        budget_of = self.program.setup.budget_of
        bounds = [b for b in self.verdict.bounds if among is None or b.rank in among]
        return max(bounds, key=lambda b: b.total_bytes / (budget_of(b.rank) or 1), default=None)

    @property
    def feasible(self) -> bool:
        return self.verdict.sound

    @property
    def bubble_fraction(self) -> float:
        """The mean over ranks of the part of the step spent waiting for other stages."""
        return sum(t.bubble_s for t in self.ranks) / (len(self.ranks) * self.step_time_s)

    @property
    def tail_s(self) -> float:
        """The longest finalization tail of any rank."""
        return max(times.tail_s for times in self.ranks)

    @property
    def mean_tail_s(self) -> float:
        """The mean finalization tail over ranks."""
        return sum(times.tail_s for times in self.ranks) / len(self.ranks)

    @property
    def exposed_s(self) -> dict[Waiting, float]:
        """Communication and updates that compute waits for: the worst rank's, by kind."""
        kinds = [kind for kind in Waiting if kind is not Waiting.BUBBLE]
        return {kind: max(times.waiting_s[kind] for times in self.ranks) for kind in kinds}


def simulate(
    program: Program,
    costs: Costs,
    *,
    steps: int = STEPS,
    verdict: Verdict | None = None,
    compiled: bool = True,
    progress: Progress | None = None,
    vary: Vary | None = None,
) -> Simulation:
    """The `Simulation` of a program. Proves it first, unless a verdict is given. `vary`: what an
    op's cost becomes that is not the same for all ops of its kind and unit."""
    verdict = verdict or verify(program)
    began = time.perf_counter()
    table = program.table
    op_costs = costs_of_ops(table, costs)
    if vary is not None:
        op_costs = vary(table, op_costs)
    rates = costs.link_rate_bytes_per_s
    ran = run(table, op_costs, rates, steps, compiled=compiled, progress=progress)
    window = steady_window(table, ran)
    ranks = rank_times(table, ran, op_costs.fixed_s, window)
    wall_time_s = time.perf_counter() - began
    return Simulation(program, verdict, window, ranks, ran, wall_time_s, op_costs, rates)


def step_time_s(program: Program, costs: Costs, *, steps: int = STEPS) -> float:
    """The step time of a program that is proved already, and nothing else."""
    table = program.table
    rates = costs.link_rate_bytes_per_s
    return steady_window(table, run(table, costs_of_ops(table, costs), rates, steps)).step_s


def timeline_of(simulation: Simulation, *, periods: int = 2) -> Timeline:
    """The last periods of a simulation as a timeline, starting at zero; most programs' are of one
    step."""
    table, ran, n = simulation.program.table, simulation.run, len(simulation.program.table)
    first = max(ran.periods - periods, 0)
    origin_s = float(ran.start_s[first * n :].min())
    spans = tuple(
        Span(
            step=(period - first) * table.setup.period + int(table.step[op]),
            rank=int(table.rank[op]),
            lane=Lane(int(table.lane[op])).word,
            word=table.word(op),
            start_s=float(ran.start_s[period * n + op]) - origin_s,
            end_s=float(ran.end_s[period * n + op]) - origin_s,
        )
        for period in range(first, ran.periods)
        for op in range(n)
    )
    return Timeline(
        source="simulate",
        spans=spans,
        memory=tuple(
            MemoryCurve(rank, tier or table.setup.tier, *curve)
            for tier in table.states.tiers
            for rank, curve in enumerate(memory_curves(table, ran, first, origin_s, tier))
        ),
    )
