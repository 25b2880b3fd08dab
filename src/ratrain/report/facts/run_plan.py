"""A run's layout on its cluster, and what other layouts its job could have had.

The run's folder does not hold the cluster: it is read again from the job's file. Where that file is
gone or says something else now, the page does without, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.job_checks import check_job
from ratrain.describe.units import format_bytes, format_time
from ratrain.errors import RatrainError, SpecError
from ratrain.plan import Case, load_job
from ratrain.plan.case import Standing
from ratrain.plan.layout import place, plan_of_setup, strategy_of
from ratrain.plan.price import costs_of
from ratrain.plan.search import search_layouts
from ratrain.program.program import Program
from ratrain.report.contents import Advice, Candidates, Times
from ratrain.report.facts.candidates import advice_of, candidates_of
from ratrain.runtime.run_folder import RunSpec
from ratrain.simulate.simulate import simulate

BASIS = "the cluster file's rates, without this run's calibration"
_UNLIKE = "Devices, links and other layouts, because the replicas of this run differ."
_NOTABLE = 0.02
"""Waits and differences below this share of the step are not worth a sentence."""


@dataclass(frozen=True)
class RunPlan:
    """What the job's file still says of a run."""

    standing: Standing | None
    candidates: Candidates | None
    advice: Advice | None
    left_out: tuple[str, ...]


def plan_of_run(
    facts: dict[str, Any],
    spec: RunSpec,
    program: Program,
    folder: Path,
    progress: Callable[[int, int], None] | None,
) -> RunPlan:
    """The `RunPlan` of a run; a SpecError where its files have different layouts."""
    _require_layers(facts, program, folder)
    if facts.get("replicas"):
        return RunPlan(None, None, None, (_UNLIKE,))
    try:
        job = _job_of_run(facts, spec, folder)
        assert job.layout is not None
        placement = place(job, job.layout)
        chosen = plan_of_setup(job, placement, strategy_of(job), program.setup)
        simulation = simulate(program, costs_of(chosen, program.setup))
        alternatives = search_layouts(replace(job, layout=None), progress)
    except RatrainError as error:
        error_place = f"{error.place}: " if error.place else ""
        reason = (
            f"Devices, links and other layouts, because of the job file: {error_place}{error.what}."
        )
        return RunPlan(None, None, None, (reason,))
    candidates = candidates_of(chosen, simulation, alternatives)
    return RunPlan(
        Case(chosen).standing(),
        replace(candidates, notes=(f"Times come from {BASIS}.", *candidates.notes)),
        advice_of(chosen, simulation, alternatives),
        (),
    )


def _job_of_run(facts: dict[str, Any], spec: RunSpec, folder: Path) -> JobSpec:
    """The job as the run has it: the file's, with the run's own layout and schedule."""
    original = Path(spec.job_path)
    job = load_job(original if original.exists() else folder / "job.toml", spec.overrides)
    current = {
        "model": job.model.spec.name,
        "cluster": job.cluster.spec.name,
        "devices": job.cluster.devices,
        "sequence_length": job.model.sequence_length,
    }
    changed = [key for key, value in current.items() if facts[key] != value]
    if changed:
        raise SpecError(
            f"has a different {changed[0]} now than when the run started",
            place=str(job.path),
            fix="use the job that the run was made from",
        )
    layout = LayoutSpec(
        facts["pipeline"],
        facts["data"],
        facts["tensor"],
        facts["virtual"],
        tuple(facts["layers_per_stage"]),
        facts["sequence_parallel"],
    )
    schedule = replace(job.schedule, name=facts["schedule"], without=tuple(facts["without"]))
    batch = replace(job.batch, micro_batch=spec.micro_batch)
    job = replace(job, layout=layout, schedule=schedule, batch=batch)
    check_job(job)
    return job


def _require_layers(facts: dict[str, Any], program: Program, folder: Path) -> None:
    """A SpecError where the program's stages hold other numbers of layers than case.json says."""
    stage_layers = [
        sum(unit.name.isdigit() for unit in stage.members[0].units)
        for stage in program.setup.replicas[0].stages
    ]
    if stage_layers != facts["layers_per_stage"]:
        raise SpecError(
            f"the program's stages hold {stage_layers} layers",
            place=f"{folder / 'case.json'} facts.layers_per_stage",
            fix="start a new run in another folder (--run): a file is damaged or another run's",
        )


def advice_of_run(plan: RunPlan, times: Times | None, report: dict[str, Any]) -> Advice | None:
    """What was measured comes first, then what the search says of other layouts."""
    measured = tuple(_measured(times, report)) if times is not None else ()
    if plan.advice is None:
        return Advice(measured, "", (), "") if measured else None
    return replace(plan.advice, measured=measured, basis=BASIS)


def _measured(times: Times, report: dict[str, Any]) -> Iterator[str]:
    step_s = times.step_measured_s or 0.0
    waits = [kind for kind in times.kinds if kind.kind not in ("compute", "recovery")]
    longest = max(waits, key=lambda kind: kind.measured_s or 0.0)
    share = (longest.measured_s or 0.0) / step_s if step_s else 0.0
    if longest.measured_s and share > _NOTABLE:
        yield (
            f"the longest wait: {longest.name}, {format_time(longest.measured_s)} "
            f"({100 * share:.0f} % of the measured step)"
        )
    in_both = [k for k in times.kinds if k.predicted_s is not None and k.measured_s is not None]
    if in_both:
        parted = max(in_both, key=lambda k: abs((k.measured_s or 0.0) - (k.predicted_s or 0.0)))
        more_s = (parted.measured_s or 0.0) - (parted.predicted_s or 0.0)
        if abs(more_s) > _NOTABLE * step_s:
            yield (
                f"furthest from the prediction: {parted.name}, {format_time(abs(more_s))} "
                f"{'more' if more_s > 0 else 'less'} than predicted"
            )
    fullest = max(report["memory"], key=lambda row: row["bound_bytes"])
    if fullest["budget_bytes"]:
        free = fullest["budget_bytes"] - fullest["bound_bytes"]
        yield (
            f"rank {fullest['program_rank']}, the fullest, has {format_bytes(free)} of its budget "
            "to spare"
        )
