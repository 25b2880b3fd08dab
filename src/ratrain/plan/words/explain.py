"""Why a plan is as it is: memory against the budget, time, what binds, what came next, and the
plans beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan.case.case import Case
from ratrain.plan.case.kinds import KindPart, OnChip, kind_parts, sums_on_chip
from ratrain.plan.layout.plan import Plan
from ratrain.plan.search.every_plan import EveryPlan, with_order_open
from ratrain.plan.search.misfit import Misfit, misfits
from ratrain.plan.search.moves import MoveTried
from ratrain.plan.search.other_devices import (
    Added,
    Speedup,
    Watch,
    added_hosts,
    speedup_of,
    unwatched,
)
from ratrain.plan.search.periods import Period, periods
from ratrain.plan.search.plan_moves import plan_moves_of
from ratrain.plan.search.tried import step_of
from ratrain.plan.words.explain_kinds import (
    added_json,
    added_text,
    gain_words,
    kinds_text,
    on_chip_json,
    on_chip_text,
    part_json,
    speedup_json,
    speedup_text,
)
from ratrain.plan.words.planned import (
    WIDTH,
    move_json,
    periods_json,
    periods_text,
    search_json,
    table,
    table_lines,
    unequal_json,
    wrapped,
)
from ratrain.program.bounds import PeakBound
from ratrain.program.families import GROUPS
from ratrain.program.text.family_groups import grouped, takes
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation
from ratrain.simulate.summary import times_json

SHOWN = 6
"""Plans of each sort."""
ALIKE = 5e-4
"""Steps that differ by less of one are called equal."""


def others_text(subject: Plan, step_s: float, known: EveryPlan) -> Iterator[str]:
    """How the plan stands among those that the planner found, and these."""
    yield from _unequal_text(subject, step_s, known)
    moves = known.unequal.moves if known.unequal is not None else ()
    yield from moves_text("One change more of the best plan, at the grain of stages:", moves)
    alike = known.alike
    if alike is None:
        yield "The planner knows no layout of this job that takes all of its devices."
        return
    if not alike.tried:
        yield "None of the configurations that the planner tried for this job fits."
        return
    best = "the best plan with identical replicas" if known.unequal else "the best plan found"
    best_s = alike.best.step_s
    if step_s > best_s * (1 + ALIKE):
        yield f"This plan is {100 * (step_s / best_s - 1):.1f} % slower than {best}:"
    elif step_s < best_s * (1 - ALIKE):
        yield f"This plan takes {100 * (1 - step_s / best_s):.1f} % less time than {best}:"
    else:
        yield "Plans with identical replicas, and how much slower than their best they are:"
    yield from table(alike.tried, alike.best.step_s, SHOWN)


def _unequal_text(subject: Plan, step_s: float, known: EveryPlan) -> Iterator[str]:
    """The plans whose stages or replicas differ, beside the plan itself."""
    if known.unequal is None:
        return
    itself = Case(subject).short_name
    others = [
        plan
        for plan in (*known.unequal.trainable, *known.unequal.others)
        if abs(plan.step_s / step_s - 1) > 1e-9 or Case(plan.plan).short_name != itself
    ]
    others.sort(key=step_of)
    faster = sum(plan.step_s < step_s * (1 - ALIKE) for plan in others)
    if not others:
        yield "No other plan whose stages or replicas differ is faster than identical replicas."
    elif faster:
        yield f"{counted(faster, 'plan')} whose stages or replicas differ would be faster:"
    else:
        more = others[0].step_s / step_s - 1
        slower = "as much time" if abs(more) < ALIKE else f"{100 * more:.1f} % more time"
        yield from wrapped(f"The runner-up whose stages or replicas differ takes {slower}:")
    if others:
        yield from table(others, step_s, SHOWN)
    yield ""


def moves_text(title: str, moves: Sequence[MoveTried]) -> Iterator[str]:
    """What each move of the search would make of a plan."""
    if not moves:
        return
    yield title
    columns = ("plans", True), ("best", True), ("step", True), ("move: what changes", False)
    rows: list[tuple[str, ...]] = []
    for move in moves:
        figures = "-", "-"
        if move.best_s is not None:
            figures = f"{100 * (move.best_s / move.step_s - 1):+.2f} %", format_time(move.best_s)
        rows.append((str(move.drafts), *figures, f"{move.name}: {move.words}"))
    yield from table_lines(columns, rows)
    yield ""


NEAR = 3
"""Rejected configurations shown."""
_BAR = 30
_TIME_BAR = 24
_SHOWN = 16
_MARKS = {
    "weights": "w",
    "optimizer": "o",
    "gradients": "g",
    "residual": "r",
    "input": "i",
    "saved": "s",
}
"""Of groups of states in a bar; m is all else."""
_LEGEND = "w weights  o optimizer  g gradients  i layer inputs  s activations  m other"


@dataclass(frozen=True)
class Explanation:
    """A plan, its simulation, and the plans that it is judged by."""

    subject: Plan
    simulation: Simulation
    known: EveryPlan
    near: tuple[Misfit, ...]
    kinds: tuple[KindPart, ...]  # where kinds of device, stages or replicas differ
    speedup: Speedup | None  # where kinds of device differ
    added: tuple[Added, ...]
    on_chip: OnChip | None  # where tensor groups are inside chips whose network is known
    periods: tuple[Period, ...]  # where replicas average their weights
    moves: tuple[MoveTried, ...]  # what each move of whole plans would make of it

    @property
    def bounds(self) -> tuple[PeakBound, ...]:
        return self.simulation.verdict.bounds

    @property
    def fastest_s(self) -> float:
        """The fastest step known: this plan's where it fits, that of the best one found, or of one
        kind of device alone."""
        alone = self.speedup.alone if self.speedup is not None else ()
        steps = [kind_alone.best.step_s for kind_alone in alone if kind_alone.best]
        if self.known.fastest_s < inf:
            steps.append(self.known.fastest_s)
        if self.simulation.feasible or not steps:
            steps.append(self.simulation.step_time_s)
        return min(steps)


def explanation_of(subject: Plan, known: EveryPlan, watch: Watch = unwatched) -> Explanation:
    """The `Explanation` of a plan: proved and simulated in full, then taken apart by kind of
    device, and planned without and with more of each. `watch` shows what takes its time."""
    case = Case(subject)
    simulation = case.simulation
    asked = with_order_open(case.job)
    tokens_per_s = case.job.tokens / simulation.step_time_s
    return Explanation(
        subject,
        simulation,
        known,
        tuple(misfits(known.alike, NEAR)) if known.alike is not None else (),
        kind_parts(case, simulation),
        speedup_of(asked, tokens_per_s, watch),
        added_hosts(asked, watch),
        sums_on_chip(case),
        periods(subject),
        plan_moves_of(subject, simulation.step_time_s),
    )


def _budget_of(simulation: Simulation, rank: int) -> int:
    """The memory budget of a rank of the program."""
    return simulation.program.setup.budget_of(rank) or 0


def _busiest(simulation: Simulation) -> RankTimes:
    """The rank with the most work of its own."""
    return max(simulation.ranks, key=_work_s)


def _work_s(times: RankTimes) -> float:
    return times.compute_s + times.recovery_s + times.driving_s


def binding(simulation: Simulation, near: Sequence[Misfit], kinds: Sequence[KindPart] = ()) -> str:
    """The constraint that a faster plan would have to break, in one sentence. `near`: plans that
    memory rejected; `kinds`: the plan by kind of device, where they differ."""
    step_s, busiest = simulation.step_time_s, _busiest(simulation)
    fullest = simulation.fullest()
    if not simulation.feasible and fullest is not None:
        over = fullest.total_bytes - _budget_of(simulation, fullest.rank)
        return f"memory: rank {fullest.rank} is {format_bytes(over)} over its budget"
    of_kinds = [(part, best) for part in kinds if (best := part.binding(step_s)) is not None]
    if of_kinds:
        part, best = min(of_kinds, key=lambda pair: pair[1].step_time_s)
        return f"{best.resource} of {part.kind.name}: {gain_words(best, step_s)}"
    faster = [misfit for misfit in near if misfit.step_s < step_s]
    if faster:
        gain = max(faster, key=lambda misfit: step_s - misfit.step_s)
        return (
            f"memory: with {format_bytes(gain.missing_bytes)} more, {Case(gain.plan).name} "
            f"would take {format_time(gain.step_s)} ({100 * (1 - gain.step_s / step_s):.1f} % less)"
        )
    kind, exposed_s = max(simulation.exposed_s.items(), key=lambda pair: pair[1])
    if exposed_s > step_s - _work_s(busiest) / 2 - step_s / 2:
        return f"communication: a rank waits {format_time(exposed_s)} for {kind.words}"
    share = 100 * _work_s(busiest) / step_s
    return f"compute: rank {busiest.rank} is busy for {share:.1f} % of the step"


def explanation_text(explained: Explanation) -> list[str]:
    """In lines of at most 80 columns."""
    step_s = explained.simulation.step_time_s
    made = [move for move in explained.moves if move.drafts]
    blocks: list[Iterable[str]] = [
        Case(explained.subject).headline(whole=True),
        _memory(explained),
        _bill(explained),
        _time(explained),
        wrapped(f"What binds: {binding(explained.simulation, explained.near, explained.kinds)}."),
        on_chip_text(explained.on_chip, step_s) if explained.on_chip is not None else (),
        periods_text(explained.periods, explained.subject.job.schedule),
        kinds_text(explained.kinds, step_s),
        speedup_text(explained.speedup) if explained.speedup is not None else (),
        added_text(explained.added, explained.fastest_s),
        list(moves_text("One change of this plan, simulated whole:", made))[:-1],
        others_text(explained.subject, step_s, explained.known),
        _misfits(explained),
    ]
    lines: list[str] = []
    for block in map(list, blocks):
        lines += ["", *block] if lines and block else block
    return lines


def _memory(explained: Explanation) -> Iterator[str]:
    """A bar for each stage: the whole width is its budget."""
    simulation = explained.simulation
    budgets = sorted({_budget_of(simulation, bound.rank) for bound in explained.bounds})
    sizes = " or ".join(format_bytes(size) for size in budgets)
    yield from wrapped(f"Proven peak memory of each rank; the bar's width is its budget ({sizes}):")
    rows = explained.bounds
    shown = rows if len(rows) <= _SHOWN else (*rows[:8], *rows[-7:])
    for bound in shown:
        if len(rows) > _SHOWN and bound is rows[-7]:
            yield f"  ...    {len(rows) - len(shown)} more ranks"
        budget = _budget_of(simulation, bound.rank)
        share = 100 * bound.total_bytes / budget
        over = "  OVER" if bound.total_bytes > budget else ""
        yield (
            f"rank {bound.rank:3d} |{_bar(bound, budget)}| {format_bytes(bound.total_bytes):>8}"
            f" {share:5.1f} %{over}"
        )[:WIDTH]
    fed_back = any("residual" in bound.by_family for bound in explained.bounds)
    yield f"  {_LEGEND}" + ("  r residuals" if fed_back else "")


def _bar(bound: PeakBound, budget: int) -> str:
    groups = dict.fromkeys("wogrism", 0)
    for group, size in grouped(bound.by_family).items():
        groups[_MARKS.get(group, "m")] += size
    bar, done = "", 0
    for mark, size in groups.items():
        done += size
        bar += mark * (round(_BAR * done / budget) - len(bar))
    return bar.ljust(_BAR, ".")[:_BAR]


def _bill(explained: Explanation) -> Iterator[str]:
    """The items of the fullest stage and of the emptiest."""
    emptiest = min(explained.bounds, key=lambda bound: bound.total_bytes)
    fullest = explained.simulation.fullest() or emptiest
    shown = [fullest] if fullest is emptiest else [fullest, emptiest]
    titles = ["(fullest)", "(emptiest)"]
    heads = [f"rank {b.rank} {title}" for b, title in zip(shown, titles, strict=False)]
    yield f"{'Memory by item':20}" + "".join(f"{head:>20}" for head in heads)
    groups = [grouped(bound.by_family) for bound in shown]
    for key in sorted(sorted({*groups[0], *groups[-1]}), key=lambda key: -groups[0].get(key, 0)):
        sizes = [format_bytes(of_groups.get(key, 0)) for of_groups in groups]
        yield f"  {GROUPS[key]:<18}" + "".join(f"{size:>20}" for size in sizes)


def _time(explained: Explanation) -> Iterator[str]:
    simulation, tokens = explained.simulation, explained.subject.job.tokens
    step_s, busiest = simulation.step_time_s, _busiest(simulation)
    yield f"Time: a step takes {format_time(step_s)}, {tokens / step_s:,.1f} tokens/s"
    yield f"On rank {busiest.rank}, the busiest:"
    parts = {
        "forward and backward": busiest.compute_s,
        "recovery": busiest.recovery_s,
        "sending and receiving": busiest.driving_s,
        **{f"waits for {kind.words}": s for kind, s in busiest.waiting_s.items()},
    }
    for name, time_s in parts.items():
        if time_s > 5e-4 * step_s:
            bar = "#" * round(_TIME_BAR * time_s / step_s)
            yield f"  {name:<31} {100 * time_s / step_s:5.1f} %  {format_time(time_s):>8}  {bar}"


def _misfits(explained: Explanation) -> Iterator[str]:
    if not explained.near or explained.known.alike is None:
        return
    faster = "Would be faster, but do not fit in memory:"
    yield faster if explained.known.alike.tried else "Do not fit in memory:"
    for near in explained.near:
        yield from wrapped(
            f"- {Case(near.plan).name}, sharding level {near.plan.mode.sharding}: "
            f"estimated {format_time(near.step_s)} per step; needs "
            f"{format_bytes(near.missing_bytes)} more on stage {near.stage}, where "
            f"{takes(near.item)} {format_bytes(near.item_bytes)}"
        )
        change = near.change or "other pipeline, data or tensor degrees"
        yield from wrapped(f"  would fit with {change}", "    ")


def explanation_json(explained: Explanation) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    simulation, layouts = explained.simulation, explained.known.alike
    return {
        "plan": Case(explained.subject).plan_json(),
        "feasible": simulation.feasible,
        "step_time_s": simulation.step_time_s,
        "budget_bytes": [_budget_of(simulation, bound.rank) for bound in explained.bounds],
        "binding": binding(simulation, explained.near, explained.kinds),
        "memory": [
            {"rank": b.rank, "bound_bytes": b.total_bytes, "items_bytes": b.by_family}
            for b in explained.bounds
        ],
        "time": list(map(times_json, simulation.ranks)),
        "on_chip": on_chip_json(explained.on_chip),
        "periods": periods_json(explained.periods),
        "kinds": [part_json(part, simulation.step_time_s) for part in explained.kinds],
        "speedup": speedup_json(explained.speedup),
        "added": added_json(explained.added),
        "moves": list(map(move_json, explained.moves)),
        "search": search_json(layouts, 24) if layouts is not None and layouts.tried else None,
        "unequal": unequal_json(explained.known.unequal, 24),
        "rejected": [
            {
                "plan": Case(near.plan).plan_json(),
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
