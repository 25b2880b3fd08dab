"""The page of a plan or a job: its prediction, and the other layouts that its search tried."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ratrain.describe.units import format_bytes, format_time
from ratrain.plan import Case, Plan, case_of_job, load_job, load_plan, plan_of_file
from ratrain.plan.case import kind_parts
from ratrain.plan.search import Search, averaging, plan_of_job, search_layouts, searched
from ratrain.program.bounds import PeakBound
from ratrain.program.families import DEVICE
from ratrain.report.contents import (
    Contents,
    KindTime,
    Memory,
    MemoryRow,
    RankTime,
    Tile,
    Times,
    Verdict,
)
from ratrain.report.facts.candidates import advice_of, candidates_of, named_apart
from ratrain.report.facts.memory import CURVES, curves, op_times, peaks
from ratrain.report.facts.ops import Ops, OpTimes
from ratrain.report.facts.stages import ProvedMemory, picture
from ratrain.report.facts.steps import panel
from ratrain.report.facts.words import case_facts, left_out_of
from ratrain.runtime.attempts import versions
from ratrain.runtime.run.reports.kind_names import KIND_NAMES
from ratrain.runtime.run.reports.report import simulated_kinds
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation, timeline_of
from ratrain.timeline.compare import one_step
from ratrain.timeline.picture import chosen_ranks

MUCH_FASTER = 10
"""Percent by which another layout must be faster for this one not to be called good."""
Progress = Callable[[int, int], None]


def contents_of_job(
    path: Path, progress: Progress | None = None, overrides: Sequence[str] = ()
) -> Contents:
    """The `Contents` of a job file (.toml) or a plan file (.json)."""
    case, search = _case_and_search(path, progress, overrides)
    simulation = case.simulation
    program = simulation.program
    standing = case.standing()
    chosen = case.plan
    kinds = kind_parts(case, simulation)
    timeline = timeline_of(simulation, periods=1)
    step = one_step(timeline, max(span.step for span in timeline.spans))
    ops = Ops(program.table)
    note = f"a step takes {format_time(simulation.step_time_s)} as simulated"
    times = op_times(ops, simulation.run)
    title, path_of_step = "predicted" + simulation.drawn_step, ops.critical_path(times, times.last)
    panels = (panel(title, note, step, path_of_step, simulation.step_time_s),)
    kind = "plan" if path.suffix == ".json" else "job"
    job, setup = case.job, program.setup
    sets = [word for text in overrides for word in ("--set", text)]
    return Contents(
        kind=kind,
        title=f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}",
        source=str(path),
        verdict=_verdict(chosen, simulation, search),
        tiles=_tiles(simulation, case, len(standing.idle)),
        plan=picture(
            setup,
            standing,
            _proved(simulation),
            case_facts(case.facts()),
            case.shares,
        ),
        panels=panels,
        times=times_of_simulation(simulation),
        memory=tuple(_memory(simulation, times, tier) for tier in program.table.states.tiers),
        progress=None,
        advice=advice_of(chosen, simulation, search, kinds),
        candidates=None if search is None else candidates_of(chosen, simulation, search),
        checkpoints=None,
        versions=tuple(versions().items()),
        left_out=(*left_out_of(panels, step, setup), *_unsearched(search)),
        trace_command=shlex.join(
            ["ratrain", "simulate", str(path), *sets, "--trace", "trace.json"]
        ),
    )


def _case_and_search(
    path: Path, progress: Progress | None, overrides: Sequence[str]
) -> tuple[Case, Search | None]:
    """The case, and the search over the layouts of its job. A job without a layout is planned."""
    if path.suffix == ".json":
        subject = plan_of_file(load_plan(path), str(path))
        return Case(subject), searched(subject, progress)
    job = load_job(path, overrides)
    if job.layout is None:
        subject, known = plan_of_job(job, progress)
        return Case(subject), known.alike
    case = case_of_job(job)
    if job.schedule.leaves_period_open:
        asked = case.job.schedule
        job = averaging(job, asked.average_every or 1, asked.average_wire)
    return case, search_layouts(replace(job, layout=None), progress)


def _unsearched(search: Search | None) -> Iterator[str]:
    if search is None:
        yield "Other layouts: the planner knows none of this job that takes all of its devices."


def _verdict(chosen: Plan, simulation: Simulation, search: Search | None) -> Verdict:
    step = format_time(simulation.step_time_s)
    if not simulation.feasible:
        findings = tuple(f"{f.rule}: {f.message}" for f in simulation.verdict.findings)
        return Verdict("bad", _unfit(simulation), findings)
    sentences = f"Fits: {_fullest_words(simulation)}. A step is predicted to take {step}."
    best = search.best if search is not None and search.tried else None
    gain = 0.0 if best is None else 100 * (1 - best.step_s / simulation.step_time_s)
    if best is not None and gain > 2:
        other, best_s = named_apart(best.plan, [chosen]), format_time(best.step_s)
        sentences += f" {other[:1].upper()}{other[1:]} would take {best_s}, {gain:.0f} % less."
    return Verdict("good" if gain < MUCH_FASTER else "plain", sentences)


def _fullest(simulation: Simulation) -> tuple[PeakBound, int | None]:
    """The bound that is nearest to its rank's budget, or furthest beyond it, and that budget."""
    setup = simulation.program.setup
    bound = max(
        (bound for bound in simulation.verdict.bounds if bound.tier == DEVICE),
        key=lambda bound: bound.total_bytes / (setup.budget_of(bound.rank) or 1),
    )
    return bound, setup.budget_of(bound.rank)


def _fullest_words(simulation: Simulation) -> str:
    """What was proved of memory: of every device, or where budgets differ of the fullest."""
    bound, budget = _fullest(simulation)
    if simulation.program.setup.budgets and budget is not None:
        return (
            f"rank {bound.rank}, the fullest, is proven to need at most "
            f"{format_bytes(bound.total_bytes)} of its {format_bytes(budget)}"
        )
    of = f" of {format_bytes(budget)}" if budget is not None else ""
    return f"proven to need at most {format_bytes(simulation.bound_bytes)}{of} per device"


def _unfit(simulation: Simulation) -> str:
    """What the verifier found: the fullest rank where memory is short, else its first finding."""
    if not simulation.verdict.bounds:
        return f"Not sound: {simulation.verdict.findings[0].message}."
    fullest, budget = _fullest(simulation)
    if budget is not None and fullest.total_bytes > budget:
        return (
            f"Does not fit: rank {fullest.rank} can need {format_bytes(fullest.total_bytes)}, "
            f"{format_bytes(fullest.total_bytes - budget)} more than its budget of "
            f"{format_bytes(budget)}."
        )
    return f"Not sound: {simulation.verdict.findings[0].message}."


def _tiles(simulation: Simulation, case: Case, idle: int) -> tuple[Tile, ...]:
    ranks, step_s = simulation.ranks, simulation.step_time_s
    work_s = sum(t.compute_s + t.recovery_s for t in ranks) / len(ranks)
    recovery_s = sum(t.recovery_s for t in ranks) / len(ranks)
    devices = case.job.cluster.devices
    idle_tiles = (Tile("Devices", f"{devices - idle} of {devices}", f"{idle} idle"),)
    return (
        Tile("Step, predicted", format_time(step_s), f"{case.job.tokens:,} tokens"),
        Tile("Throughput", f"{case.job.tokens / step_s:,.0f} tokens/s", "predicted"),
        _memory_tile(simulation),
        *(idle_tiles if idle else ()),
        Tile(
            "Computing",
            f"{100 * work_s / step_s:.1f} %",
            f"of a rank's step, recovery {100 * recovery_s / step_s:.1f} %",
        ),
        Tile("Waiting for stages", f"{100 * simulation.bubble_fraction:.1f} %", "pipeline bubble"),
    )


def _memory_tile(simulation: Simulation) -> Tile:
    """The proven peak of the rank nearest to its budget."""
    if not simulation.verdict.bounds:
        return Tile("Memory, proven", "-", "the program is not sound")
    bound, budget = _fullest(simulation)
    if budget is None:
        return Tile("Memory, proven", format_bytes(bound.total_bytes), "no budget is set")
    whose = f"of rank {bound.rank}" if simulation.program.setup.budgets else "per device"
    return Tile(
        "Memory, proven", format_bytes(bound.total_bytes), f"of {format_bytes(budget)} {whose}"
    )


def _proved(simulation: Simulation) -> ProvedMemory:
    setup = simulation.program.setup
    bounds = [bound for bound in simulation.verdict.bounds if bound.tier == DEVICE]
    return ProvedMemory(
        [bound.total_bytes for bound in bounds],
        [bound.by_family for bound in bounds],
        [setup.budget_of(bound.rank) for bound in bounds],
    )


def times_of_simulation(simulation: Simulation) -> Times:
    """Where the predicted step goes; means over ranks, and each rank."""
    ranks = tuple(
        RankTime(times.rank, _kinds_of_rank(times, simulation.step_time_s), {})
        for times in simulation.ranks
    )
    mean_s = {
        kind: sum(rank.predicted_s[kind] for rank in ranks) / len(ranks) for kind in KIND_NAMES
    }
    return Times(
        simulation.step_time_s,
        None,
        tuple(KindTime(kind, name, mean_s[kind], None) for kind, name in KIND_NAMES.items()),
        ranks,
        (_means_words(simulation),),
    )


def _means_words(simulation: Simulation) -> str:
    steps = simulation.program.setup.period
    if steps == 1:
        return "Means over ranks of the steady step, as simulated."
    slowest = format_time(simulation.window.slowest_s)
    return (
        f"Means over ranks and over the {steps} steps of a period, as simulated; the slowest step "
        f"takes {slowest}."
    )


def _kinds_of_rank(times: RankTimes, step_s: float) -> dict[str, float]:
    """One rank's predicted step by kind, as `run/reports/itemise.py` names them."""
    waiting_s = {kind.value: time_s for kind, time_s in times.waiting_s.items()}
    return simulated_kinds(vars(times) | {"waiting_s": waiting_s}, step_s)


def _memory(simulation: Simulation, times: OpTimes, tier: str) -> Memory:
    """One tier of every rank: its bound, and its bytes over the steady step."""
    program, run = simulation.program, simulation.run
    setup = program.setup
    ranks = chosen_ranks(range(setup.ranks), CURVES)
    memory_curves = curves(program, times, times.last, ranks, "predicted", tier=tier)
    peak_bytes = peaks(memory_curves)
    if tier == DEVICE:
        peak_bytes |= {rank: int(size) for rank, size in enumerate(run.peak_bytes)}
    rows = tuple(
        MemoryRow(
            rank=bound.rank,
            label=f"rank {bound.rank}",
            budget_bytes=setup.budget_of(bound.rank, tier),
            bound_bytes=bound.total_bytes,
            families=bound.by_family,
            peak_predicted_bytes=peak_bytes.get(bound.rank),
            ledger_bytes=None,
            allocated_bytes=None,
            resident_bytes=None,
        )
        for bound in simulation.verdict.bounds
        if bound.tier == tier
    )
    return Memory(tier or setup.tier, rows, tuple(memory_curves))
