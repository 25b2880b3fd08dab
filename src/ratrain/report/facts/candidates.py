"""The search of a job as points of time against memory, and what would help the chosen one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan import Case, Plan
from ratrain.plan.case import KindPart
from ratrain.plan.layout import plan_of_row
from ratrain.plan.search import Checked, Misfit, Search, Tried, misfits
from ratrain.plan.words import NEAR, binding, binding_words, busy_words
from ratrain.program.text.family_groups import takes
from ratrain.report.contents import Advice, Candidates, Point
from ratrain.simulate.simulate import Simulation

COLUMNS, ROWS = 36, 24
"""Configurations known by closed form alone are drawn once for each cell of such a grid."""
SLOWEST, FULLEST = 3.0, 2.0
"""Times the chosen plan's step, and times the budget, up to which configurations are drawn."""


def candidates_of(chosen: Plan, simulation: Simulation, search: Search) -> Candidates:
    """Every configuration that was simulated, and of the others one for each neighbourhood."""
    budget = chosen.job.budgets[0]
    chosen_point = Point(
        "chosen", simulation.step_time_s, simulation.bound_bytes, _name(chosen), _details(chosen)
    )
    simulated = [
        Point(
            "simulated",
            tried.step_s,
            tried.bound_bytes,
            _name(tried.plan),
            _details(tried.plan),
        )
        for tried in search.tried
        if tried.plan.key != chosen.key
    ]
    estimated = list(_estimated(search, simulation.step_time_s * SLOWEST, budget * FULLEST))
    undrawn = search.checks - sum(point.stands_for for point in estimated)
    notes: list[str] = []
    if estimated:
        notes.append(
            f"{len(estimated)} dots represent {sum(p.stands_for for p in estimated):,} "
            "configurations whose time comes from a closed form."
        )
    if undrawn > 0:
        notes.append(
            f"{undrawn:,} are not drawn: slower than {SLOWEST:g} times the chosen plan, or "
            f"needing more than {FULLEST:g} times the budget."
        )
    return Candidates(
        budget_bytes=budget,
        points=(chosen_point, *simulated, *estimated),
        checked=search.checks,
        fitting=search.fitting,
        simulated=len(search.tried),
        notes=tuple(notes),
    )


def _estimated(search: Search, slowest_s: float, fullest_bytes: float) -> Iterator[Point]:
    """One point for each cell of the picture: of what fits and of what does not, the fastest."""
    fastest_s = min((float(checked.step_s.min()) for checked in search.checked), default=slowest_s)
    decades = max(np.log(slowest_s / fastest_s), 1e-9)
    highest_bytes = min(fullest_bytes, _highest_bytes(search, slowest_s))
    cells: dict[tuple[int, int, bool], tuple[float, Checked, int]] = {}
    counts: Counter[tuple[int, int, bool]] = Counter()
    for checked in search.checked:
        budget = checked.group.job.budgets[0]
        memory = checked.missing_bytes + budget
        rows = np.flatnonzero((checked.step_s <= slowest_s) & (memory <= fullest_bytes))
        along = np.log(checked.step_s[rows] / fastest_s) / decades
        columns = (along * COLUMNS).astype(int).tolist()
        heights = (memory[rows] / highest_bytes * ROWS).astype(int).tolist()
        fits = checked.fits[rows].tolist()
        for row, *cell in zip(rows.tolist(), columns, heights, fits, strict=True):
            place = cell[0], cell[1], cell[2]
            counts[place] += 1
            step_s = float(checked.step_s[row])
            if place not in cells or step_s < cells[place][0]:
                cells[place] = step_s, checked, row
    for place, (step_s, checked, row) in sorted(cells.items(), key=lambda cell: cell[1][0]):
        layout = plan_of_row(checked.group, row, checked.recovery[row])
        memory = int(checked.missing_bytes[row]) + checked.group.job.budgets[0]
        kind = "fits" if place[2] else "misfit"
        yield Point(kind, step_s, memory, _name(layout), _details(layout), counts[place])


def _highest_bytes(search: Search, slowest_s: float) -> float:
    """The most memory that any configuration needs that is fast enough to be drawn."""
    return max(
        (
            float(checked.missing_bytes[fast].max()) + checked.group.job.budgets[0]
            for checked in search.checked
            if (fast := checked.step_s <= slowest_s).any()
        ),
        default=1.0,
    )


def advice_of(
    chosen: Plan, simulation: Simulation, search: Search | None, kinds: Sequence[KindPart] = ()
) -> Advice:
    """What binds the chosen plan and what would help it; of each kind of device too, where they
    differ."""
    misses = tuple(misfits(search, NEAR)) if search is not None else ()
    step_s, told = simulation.step_time_s, [chosen]
    binds = binding(simulation, misses, kinds)
    fastest = min(misses, key=lambda misfit: misfit.step_s, default=None)
    by_kind = any(part.binding(step_s) is not None for part in kinds)
    if simulation.feasible and not by_kind and fastest is not None and fastest.step_s < step_s:
        # Memory binds: the layout that shows it is told of once, with all that is known of it.
        binds = f"memory: {_near(fastest, step_s, told)}"
        told.append(fastest.plan)
        misses = tuple(misfit for misfit in misses if misfit is not fastest)
    ways = tuple(_ways(step_s, search, misses, told)) if search is not None else ()
    return Advice((), binds, ways, "", tuple(_kind_words(part, step_s) for part in kinds))


def _kind_words(part: KindPart, step_s: float) -> str:
    """A kind of device in one sentence."""
    used, idle = len(part.devices), len(part.idle)
    if not used:
        return f"all {counted(idle, 'device')} of {part.kind.name} idle"
    head = f"{counted(used, 'device')} of {part.kind.name}"
    head += f" and {idle} idle" if idle else ""
    binds, *helps = binding_words(part, step_s)
    gains = f"{binds}, or {' or '.join(helps)}" if helps else binds
    return f"{head}: {busy_words(part)}. Bound by {gains}"


def _ways(
    step_s: float, search: Search, misses: Sequence[Misfit], told: Sequence[Plan]
) -> Iterator[str]:
    """Plans that fit and are faster, then those that would be faster and do not fit. `told` are
    layouts that the reader knows by now."""
    faster: dict[str, Tried] = {}
    for tried in search.tried:  # of plans that differ in details alone, the fastest
        if tried.step_s < step_s * 0.999:
            faster.setdefault(_name(tried.plan), tried)
    shown = list(faster.values())[:3]
    for tried in shown:
        gain = 100 * (1 - tried.step_s / step_s)
        name = named_apart(tried.plan, told)
        yield (
            f"{name} would take {format_time(tried.step_s)}, {gain:.1f} % less, and fits: at most "
            f"{format_bytes(tried.bound_bytes)}"
        )
    if not faster and search.tried:
        yield "no faster plan that fits was found"
    for misfit in misses:  # one that is slower and does not fit would help nobody
        if misfit.step_s < step_s * 0.999:
            yield _near(misfit, step_s, [*told, *(tried.plan for tried in shown)])


def _near(misfit: Misfit, step_s: float, told: Sequence[Plan]) -> str:
    change = misfit.change or "other degrees"
    gain = 100 * (1 - misfit.step_s / step_s)
    less = f", {gain:.1f} % less,"
    name, step = named_apart(misfit.plan, told), format_time(misfit.step_s)
    return (
        f"{name} would take {step}{less} and needs {format_bytes(misfit.missing_bytes)} more on "
        f"stage {misfit.stage}, where {takes(misfit.item)} "
        f"{format_bytes(misfit.item_bytes)}; it would fit with {change}"
    )


def named_apart(candidate: Plan, others: Sequence[Plan]) -> str:
    """A layout's name; where one of the others has the same name, also what differs from it."""
    name = _name(candidate)
    same = next((other for other in others if _name(other) == name), None)
    if same is None:
        return name
    known = _details(same)
    differing = "; ".join(detail for detail in _details(candidate) if detail not in known)
    return f"{name}, with {differing or 'its states held in another way'},"


def _name(plan: Plan) -> str:
    return Case(plan).name


def _details(plan: Plan) -> tuple[str, ...]:
    return Case(plan).details
