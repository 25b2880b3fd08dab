"""Why a plan is as it is: memory against the budget, time, what binds, what came next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ratrain.describe.units import format_bytes, format_time
from ratrain.plan.build import Candidate
from ratrain.plan.durations import costs_of
from ratrain.plan.misfit import Misfit, misfits
from ratrain.plan.search import Search
from ratrain.plan.tables import (
    WIDTH,
    candidate_json,
    degrees,
    headline,
    search_json,
    table,
    wrapped,
)
from ratrain.plan.trial import proof
from ratrain.program.bounds import PeakBound
from ratrain.program.kind import Waiting
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation

NEAR = 3
"""Rejected configurations shown."""
_BAR = 30
_SHOWN = 16
_MARKS = {
    "view": "w",
    "shard_view": "w",
    "gathered": "w",
    "optimizer": "o",
    "gradient": "g",
    "shard": "g",
    "transit": "g",
    "input": "i",
    "saved": "s",
}
_LEGEND = "w weights  o optimizer  g gradients  i inputs  s saved  m messages, sums"


@dataclass(frozen=True)
class Explanation:
    """A plan, its simulation, and the search it is judged by."""

    candidate: Candidate
    simulation: Simulation
    search: Search
    near: tuple[Misfit, ...]

    def budget_of(self, rank: int) -> int:
        """The memory budget of a rank of the program."""
        return self.simulation.program.setup.budget_of(rank) or 0

    @property
    def fullest(self) -> PeakBound:
        """The rank that is nearest to its budget."""
        return max(self.bounds, key=lambda b: b.total_bytes / max(self.budget_of(b.rank), 1))

    @property
    def bounds(self) -> tuple[PeakBound, ...]:
        return self.simulation.verdict.bounds

    @property
    def busiest(self) -> RankTimes:
        """The rank with the most work of its own."""
        return max(self.simulation.ranks, key=_work_s)


def explain(candidate: Candidate, search: Search) -> Explanation:
    """The `Explanation` of a candidate: proved and simulated in full."""
    proved = proof(candidate.strategy, candidate.setup, candidate.choices)
    costs = costs_of(candidate.job, candidate.placement, proved.short.setup)
    simulation = simulate_proved(proved, costs)
    return Explanation(candidate, simulation, search, tuple(misfits(search, NEAR)))


def _work_s(times: RankTimes) -> float:
    return times.compute_s + times.recovery_s + times.driving_s


def binding(explained: Explanation) -> str:
    """The constraint that a faster plan would have to break, in one sentence."""
    step_s, busiest = explained.simulation.step_time_s, explained.busiest
    if not explained.simulation.feasible and explained.bounds:
        fullest = explained.fullest
        over = fullest.total_bytes - explained.budget_of(fullest.rank)
        return f"memory: stage {fullest.rank} is {format_bytes(over)} over its budget"
    faster = [near for near in explained.near if near.step_s < step_s]
    if faster:
        gain = max(faster, key=lambda near: step_s - near.step_s)
        return (
            f"memory: with {format_bytes(gain.missing_bytes)} more, {degrees(gain.candidate)} "
            f"would take {format_time(gain.step_s)} ({100 * (1 - gain.step_s / step_s):.1f} % less)"
        )
    kind, exposed_s = max(explained.simulation.exposed_s.items(), key=lambda pair: pair[1])
    if exposed_s > step_s - _work_s(busiest) / 2 - step_s / 2:
        return f"communication: {kind.value} keeps a stage waiting for {format_time(exposed_s)}"
    share = 100 * _work_s(busiest) / step_s
    return f"compute: stage {busiest.rank} is busy for {share:.1f} % of the step"


def explanation_text(explained: Explanation) -> list[str]:
    """In lines of at most 80 columns."""
    candidate, search = explained.candidate, explained.search
    job = candidate.job
    lines = [
        f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}",
        *headline(candidate),
        "",
        *_memory(explained),
        "",
        *_bill(explained),
        "",
        *_time(explained),
        "",
        *wrapped(f"What binds: {binding(explained)}."),
        "",
        *_runner_ups(explained),
    ]
    if explained.near:
        lines += ["", "Did not fit, and would be faster" if search.tried else "Did not fit"]
        for near in explained.near:
            lines += _near(near)
    return lines


def _memory(explained: Explanation) -> Iterator[str]:
    """A bar for each stage: the whole width is its budget."""
    budgets = sorted({explained.budget_of(bound.rank) for bound in explained.bounds})
    sizes = " or ".join(format_bytes(size) for size in budgets)
    yield f"Proven peak memory of each rank; the bar's width is its budget ({sizes}):"
    rows = explained.bounds
    shown = rows if len(rows) <= _SHOWN else (*rows[:8], *rows[-7:])
    for bound in shown:
        if len(rows) > _SHOWN and bound is rows[-7]:
            yield f"  ...    {len(rows) - len(shown)} more ranks"
        budget = explained.budget_of(bound.rank)
        share = 100 * bound.total_bytes / budget
        over = "  OVER" if bound.total_bytes > budget else ""
        yield (
            f"rank {bound.rank:3d} |{_bar(bound, budget)}| {format_bytes(bound.total_bytes):>8}"
            f" {share:5.1f} %{over}"
        )[:WIDTH]
    yield f"  {_LEGEND}"


def _bar(bound: PeakBound, budget: int) -> str:
    groups = dict.fromkeys("wogism", 0)
    for family, size in bound.by_family.items():
        groups[_MARKS.get(family, "m")] += size
    bar, done = "", 0
    for mark, size in groups.items():
        done += size
        bar += mark * (round(_BAR * done / budget) - len(bar))
    return bar.ljust(_BAR, ".")[:_BAR]


def _bill(explained: Explanation) -> Iterator[str]:
    """The items of the fullest stage and of the emptiest."""
    fullest = explained.fullest
    emptiest = min(explained.bounds, key=lambda bound: bound.total_bytes)
    shown = [fullest] if fullest is emptiest else [fullest, emptiest]
    titles = ["(fullest)", "(emptiest)"]
    heads = [f"rank {b.rank} {title}" for b, title in zip(shown, titles, strict=False)]
    yield "Bill            " + "".join(f"{head:>20}" for head in heads)
    names = sorted(
        {*fullest.by_family, *emptiest.by_family},
        key=lambda name: -fullest.by_family.get(name, 0),
    )
    for name in names:
        sizes = [format_bytes(bound.by_family.get(name, 0)) for bound in shown]
        yield f"  {name:<14}" + "".join(f"{size:>20}" for size in sizes)


def _time(explained: Explanation) -> Iterator[str]:
    simulation, busiest = explained.simulation, explained.busiest
    step_s = simulation.step_time_s
    tokens = explained.candidate.job.batch.sequences * explained.candidate.job.model.sequence_length
    yield f"Time: a step takes {format_time(step_s)}, {tokens / step_s:,.1f} tokens/s"
    yield f"On rank {busiest.rank}, the busiest:"
    parts = {
        "forward and backward": busiest.compute_s,
        "recovery": busiest.recovery_s,
        "driving messages": busiest.driving_s,
        **{f"waits for {kind.value}": s for kind, s in busiest.waiting_s.items()},
    }
    for name, time_s in parts.items():
        if time_s > 5e-4 * step_s:
            bar = "#" * round(_BAR * time_s / step_s)
            yield f"  {name:<22} {100 * time_s / step_s:5.1f} %  {format_time(time_s):>8}  {bar}"


def _runner_ups(explained: Explanation) -> Iterator[str]:
    search, step_s = explained.search, explained.simulation.step_time_s
    if not search.tried:
        yield "No configuration of this job fits."
        return
    loses = 100 * (step_s / search.best.step_s - 1)
    if loses > 0.05:
        yield f"This plan is {loses:.1f} % slower than the best one found:"
    else:
        yield "Plans that were simulated, and how much slower they are:"
    yield from table(search.tried[:6])


def _near(near: Misfit) -> list[str]:
    candidate = near.candidate
    lines = wrapped(
        f"- {degrees(candidate)}, micro-batch {candidate.job.batch.micro_batch}: "
        f"{format_time(near.step_s)} by "
        f"closed form; needs {format_bytes(near.missing_bytes)} more on stage {near.stage}, where "
        f"{near.item} takes {format_bytes(near.item_bytes)}"
    )
    change = near.change or "other degrees"
    return [*lines, *wrapped(f"  would fit with {change}", "    ")]


def explanation_json(explained: Explanation) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    simulation = explained.simulation
    return {
        "plan": candidate_json(explained.candidate),
        "feasible": simulation.feasible,
        "step_time_s": simulation.step_time_s,
        "budget_bytes": [explained.budget_of(bound.rank) for bound in explained.bounds],
        "binding": binding(explained),
        "memory": [
            {"rank": b.rank, "bound_bytes": b.total_bytes, "items_bytes": b.by_family}
            for b in explained.bounds
        ],
        "time": [
            {
                "rank": times.rank,
                "compute_s": times.compute_s,
                "recovery_s": times.recovery_s,
                "driving_s": times.driving_s,
                "bubble_s": times.bubble_s,
                "exposed_s": {
                    kind.value: s
                    for kind, s in times.waiting_s.items()
                    if kind is not Waiting.BUBBLE
                },
            }
            for times in simulation.ranks
        ],
        "search": search_json(explained.search, 24) if explained.search.tried else None,
        "rejected": [
            {
                "plan": candidate_json(near.candidate),
                "estimate_s": near.step_s,
                "stage": near.stage,
                "missing_bytes": near.missing_bytes,
                "item": near.item,
                "item_bytes": near.item_bytes,
                "change": near.change,
            }
            for near in explained.near
        ],
    }
