"""The search of a job as points of time against memory, and what would help the chosen one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ratrain.describe.job import JobSpec
from ratrain.describe.ranges import STAGES, write_degrees, write_list, write_ranges
from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan import (
    NEAR,
    Candidate,
    Checked,
    KindPart,
    Misfit,
    Placement,
    Search,
    StateMode,
    Subject,
    Tried,
    UnevenPlan,
    UnevenReplica,
    activations_words,
    binding,
    binding_words,
    busy_words,
    candidate,
    joined_words,
    layers_of_stages,
    misfits,
    order_name,
    recovery_words,
    share_words,
    strategy_of,
)
from ratrain.program.family_groups import takes
from ratrain.program.setup import Accumulation, Setup
from ratrain.report.contents import Advice, Candidates, Point
from ratrain.simulate.simulate import Simulation

COLUMNS, ROWS = 36, 24
"""Configurations known by closed form alone are drawn once for each cell of such a grid."""
SLOWEST, FULLEST = 3.0, 2.0
"""Times the chosen plan's step, and times the budget, up to which configurations are drawn."""


def candidate_of(job: JobSpec, placement: Placement, setup: Setup) -> Candidate:
    """A laid out job, with the setup of its program, as the search sees it."""
    layers = layers_of_stages(job, placement.layout)
    layout = replace(placement.layout, layers=layers)
    sharded = setup.accumulation is Accumulation.SHARDED
    return Candidate(
        replace(job, layout=layout),
        replace(placement, layout=layout),
        strategy_of(job),
        tuple(stage.members[0].recovery for stage in setup.replicas[0].stages),
        StateMode(setup.sharding, sharded),
        setup.recovery_buffer,
    )


def candidates_of(chosen: Subject, simulation: Simulation, search: Search) -> Candidates:
    """Every configuration that was simulated, and of the others one for each neighbourhood."""
    budget = chosen.job.budgets[0]
    chosen_point = Point(
        "chosen", simulation.step_time_s, simulation.bound_bytes, _name(chosen), _details(chosen)
    )
    key = None if isinstance(chosen, UnevenPlan) else _key(chosen)
    simulated = [
        Point(
            "simulated",
            tried.step_s,
            tried.bound_bytes,
            _name(tried.candidate),
            _details(tried.candidate),
        )
        for tried in search.tried
        if _key(tried.candidate) != key
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
        layout = candidate(checked.group, row, checked.recovery[row])
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
    chosen: Subject, simulation: Simulation, search: Search | None, kinds: Sequence[KindPart] = ()
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
        told.append(fastest.candidate)
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
    step_s: float, search: Search, misses: Sequence[Misfit], told: Sequence[Subject]
) -> Iterator[str]:
    """Plans that fit and are faster, then those that would be faster and do not fit. `told` are
    layouts that the reader knows by now."""
    faster: dict[str, Tried] = {}
    for tried in search.tried:  # of plans that differ in details alone, the fastest
        if tried.step_s < step_s * 0.999:
            faster.setdefault(_name(tried.candidate), tried)
    shown = list(faster.values())[:3]
    for tried in shown:
        gain = 100 * (1 - tried.step_s / step_s)
        name = named_apart(tried.candidate, told)
        yield (
            f"{name} would take {format_time(tried.step_s)}, {gain:.1f} % less, and fits: at most "
            f"{format_bytes(tried.bound_bytes)}"
        )
    if not faster and search.tried:
        yield "no faster plan that fits was found"
    for misfit in misses:
        yield _near(misfit, step_s, [*told, *(tried.candidate for tried in shown)])


def _near(misfit: Misfit, step_s: float, told: Sequence[Subject]) -> str:
    change = misfit.change or "other degrees"
    gain = 100 * (1 - misfit.step_s / step_s)
    less = f", {gain:.1f} % less," if gain > 0 else ""
    name, step = named_apart(misfit.candidate, told), format_time(misfit.step_s)
    return (
        f"{name} would take {step}{less} and needs {format_bytes(misfit.missing_bytes)} more on "
        f"stage {misfit.stage}, where {takes(misfit.item)} "
        f"{format_bytes(misfit.item_bytes)}; it would fit with {change}"
    )


def named_apart(candidate: Subject, others: Sequence[Subject]) -> str:
    """A layout's name; where one of the others has the same name, also what differs from it."""
    name = _name(candidate)
    same = next((other for other in others if _name(other) == name), None)
    if same is None:
        return name
    known = _details(same)
    differing = "; ".join(detail for detail in _details(candidate) if detail not in known)
    return f"{name}, with {differing or 'its states held in another way'},"


def _name(plan: Subject) -> str:
    if isinstance(plan, UnevenPlan):
        replicas = [replica for replica in plan.replicas for _ in replica.members]
        return " | ".join(_cut(replica) for replica in replicas[:8]) + " | ..." * (
            len(replicas) > 8
        )
    layout = plan.layout
    degrees = f"pipeline {layout.pipeline} x data {layout.data}"
    degrees += f" x tensor {layout.tensor}" if layout.tensor > 1 else ""
    degrees += f" x virtual {layout.virtual}" if layout.virtual > 1 else ""
    degrees += ", sequence parallel" if layout.sequence_parallel else ""
    return f"{degrees}, micro-batch {plan.job.batch.micro_batch}"


def _cut(replica: UnevenReplica) -> str:
    """ "8 layers" or "5 + 2 + 1 layers" of a replica."""
    return f"{' + '.join(map(str, replica.layout.layers))} layers"


def _details(plan: Subject) -> tuple[str, ...]:
    gradients = "sharded" if plan.mode.sharded_gradients else "local"
    states = (
        f"sharding level {plan.mode.sharding} (ZeRO-{plan.mode.sharding}), gradients {gradients}"
    )
    if isinstance(plan, UnevenPlan):
        return (*map(_replica_details, plan.replicas), states)
    order = order_name(plan.job.schedule)
    return (
        f"layers per stage: {write_list(plan.layers, STAGES)}",
        *((f"order: {order}",) if order else ()),
        f"activations: {recovery_words(plan.recovery)}",
        states,
    )


def _replica_details(replica: UnevenReplica) -> str:
    layers = write_list(tuple(replica.layout.layers), STAGES)
    at_once = joined_words(replica)
    return (
        f"replica {write_ranges(replica.members)}: layers per stage {layers}, "
        f"tensor degree {write_degrees(replica.tensor)}, "
        f"{', '.join([share_words(replica.micro_batches, replica.micro_batch), *at_once])}, "
        f"activations {activations_words(replica)}"
    )


def _key(candidate: Candidate) -> object:
    layout = replace(candidate.layout, layers=candidate.layers)
    return (
        layout,
        candidate.job.batch.micro_batch,
        candidate.strategy.skeleton,
        candidate.recovery,
        candidate.mode,
        candidate.reversed_kinds,
    )
