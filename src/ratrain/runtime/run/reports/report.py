"""A run's report: prediction against measurement, memory, checkpoints. Read from its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from ratrain.checkpoint.listing import listed
from ratrain.errors import ProgramError, SpecError, TimelineError
from ratrain.readers.files import exists
from ratrain.readers.writing import write_whole
from ratrain.runtime.attempts import attempts
from ratrain.runtime.rank.rows import Row
from ratrain.runtime.run.episodes import episodes_of
from ratrain.runtime.run.facts import read_facts
from ratrain.runtime.run.reports.counted import Counted, counted_of, whole_periods
from ratrain.runtime.run.reports.experts import expert_load
from ratrain.runtime.run.reports.goodput import goodput_json, goodput_of
from ratrain.runtime.run.reports.itemise import KINDS, OF_LANES, measured_kinds
from ratrain.runtime.run.reports.merge import merge_records, write_measured
from ratrain.runtime.run.reports.moved import moved_in_steps
from ratrain.runtime.run.reports.settled import settled_of
from ratrain.runtime.run_files import read_prediction, read_records
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.timeline.compare import step_times, typical_step
from ratrain.timeline.timeline import Timeline

FORMAT = "ratrain report 1"

_SIMULATED = {
    "stages": ("bubble", "message"),
    **{kind: (kind,) for kind in OF_LANES},
}


def report_of(folder: RunFolder, recorded: Timeline | None = None) -> dict[str, Any]:
    """The report of the run's last attempt. The step time is the median of the last half of its
    steps, without its first two. Kinds are means over ranks, of the recorded step whose
    length is nearest to it. Where replicas average their weights once a period, periods stand for
    steps, and times are means over their steps. `recorded` is what `merge_records` gives, where it
    is at hand."""
    spec, facts = folder.read_spec(), read_facts(folder)
    recorded = recorded or merge_records(folder, spec)
    rows, last = folder.read_metrics(), attempts(folder)[-1:]
    own_rows = [row for row in rows if row.get("episode", 0) == spec.episode]
    _require_agreement(folder, spec, facts, own_rows)
    period = folder.read_setup().period
    counted = counted_of(own_rows, last[0] if last else None, period)
    predicted = prediction_of(folder, spec)
    typical = _typical(recorded, counted, period)
    memory = [_memory(folder, spec, facts, own_rows, rank) for rank in range(spec.seats.world_size)]
    return {
        "format": FORMAT,
        "run": str(folder.path),
        "job": spec.job_path,
        "facts": facts["facts"],
        "from": {"run": spec.from_run, "step": spec.from_step, "data_restarted": spec.data_from > 0}
        if spec.from_run
        else None,
        "episodes": episodes_of(folder, spec),
        "precision": spec.precision,
        "collective": spec.collective,
        "sum_order": spec.sum_order,
        "versions": last[0].versions if last else {},
        "lab": bool(last and last[0].lab),
        "steps": {
            "done": rows[-1]["step"] + 1 if rows else 0,
            "end": spec.end_step,
            "counted": counted.steps if counted else None,
        },
        "loss": {"first": rows[0]["loss"], "last": rows[-1]["loss"]} if rows else None,
        "validation": _validation(rows),
        "samples": _samples(rows),
        "skipped_updates": sum(row.get("skipped_updates_before", 0) for row in rows),
        "step_time_s": _step_times(counted, predicted),
        "period": {
            "steps": period,
            "whole": counted.whole if counted else None,
            "slowest_predicted_s": max(predicted_steps_s(predicted)) if predicted else None,
            "slowest_measured_s": counted.slowest_s if counted else None,
        },
        "tokens_per_s": counted.tokens_per_s if counted else None,
        "goodput": goodput_json(goodput_of(folder.metrics_lines())),
        "kinds": _kinds(folder, spec, counted, predicted, recorded, typical),
        "kinds_step": typical,
        "memory": memory,
        "moved": moved_in_steps(folder, spec),
        "settled": settled_of(folder, spec),
        "experts": expert_load(folder, spec, own_rows),
        "checkpoints": [
            {
                "path": str(checkpoint.path),
                "step": checkpoint.step,
                "complete": checkpoint.manifest is not None,
                "size_bytes": checkpoint.manifest.size_bytes if checkpoint.manifest else None,
            }
            for checkpoint in listed(folder.checkpoints)
        ],
    }


def _validation(rows: Sequence[Row]) -> dict[str, Any] | None:
    """The last and the best loss on held-out text, after how many steps; None where none was
    measured."""
    validated = [row for row in rows if "validation_loss" in row]
    losses = [(row["step"] + 1, row["validation_loss"]) for row in validated]
    if not losses:
        return None
    best = min(losses, key=lambda loss: loss[1])
    return {
        "last": {"step": losses[-1][0], "loss": losses[-1][1]},
        "best": {"step": best[0], "loss": best[1]},
        "drift": validated[-1].get("drift"),
    }


def _samples(rows: Sequence[Row]) -> dict[str, Any] | None:
    """The last texts that the model went on with, after how many steps, and what all of them took;
    None where none were asked for."""
    sampled = [row for row in rows if "samples" in row]
    if not sampled:
        return None
    last = sampled[-1]
    took_s = sum(row["samples_s"] for row in sampled)
    return {"step": last["step"] + 1, "texts": last["samples"], "took_s": took_s}


def _require_agreement(
    folder: RunFolder, spec: RunSpec, facts: dict[str, Any], rows: Sequence[Row]
) -> None:
    """A SpecError where files of the folder have different numbers of ranks."""
    fix = "start a new run in another folder (--run): a file is damaged or another run's"
    case, facts_place = facts["facts"], f"{folder.path / 'case.json'} facts"
    for key in ("pipeline", "data", "tensor"):
        if case[key] != getattr(spec, key):
            raise SpecError(
                f"is {case[key]}, run.json has {getattr(spec, key)}",
                place=f"{facts_place}.{key}",
                fix=fix,
            )
    for row in rows:
        ranks = spec.seats.world_size
        if len(row["ranks"]) != ranks:
            raise SpecError(
                f"step {row['step']} has {len(row['ranks'])} ranks, run.json has {ranks}",
                place=str(folder.metrics),
                fix=fix,
            )
    rank_count = 1 + _last_program_rank(spec)
    for key in ("budget_bytes", "bound_bytes", "bound_items"):
        if len(facts[key]) < rank_count:
            raise SpecError(
                f"has {len(facts[key])} ranks, run.json has {rank_count}",
                place=f"{folder.path / 'case.json'} {key}",
                fix=fix,
            )


def write_report(folder: RunFolder) -> dict[str, Any]:
    """Writes report.json and measured.json; returns what is in the former."""
    recorded = write_measured(folder, folder.read_spec())
    body = report_of(folder, recorded)
    write_whole(folder.report, json.dumps(body, indent=1))
    return body


def predicted_steps_s(predicted: dict[str, Any]) -> list[float]:
    """Each step of a period; runs of before kept their mean alone."""
    return predicted.get("period_step_times_s") or [predicted["step_time_s"]]


def _step_times(counted: Counted | None, predicted: dict[str, Any] | None) -> dict[str, Any]:
    times = counted.step_times_s if counted else []
    times_json = {
        "predicted": predicted["step_time_s"] if predicted else None,
        "measured": counted.step_s if counted else None,
        "fastest": min(times, default=None),
        "slowest": max(times, default=None),
    }
    return {**times_json, "ratio": _ratio(times_json["predicted"], times_json["measured"])}


def _kinds(
    folder: RunFolder,
    spec: RunSpec,
    counted: Counted | None,
    predicted: dict[str, Any] | None,
    recorded: Timeline | None,
    typical: dict[str, Any] | None,
) -> list[dict[str, Any]]:
    measured = _measured_kinds(folder, spec, counted, recorded, typical)
    simulated = _predicted_kinds(spec, predicted)
    return [
        {
            "kind": kind,
            "predicted_s": simulated.get(kind),
            "measured_s": measured.get(kind),
            "ratio": _ratio(simulated.get(kind), measured.get(kind)),
        }
        for kind in KINDS
    ]


def typical_of(folder: RunFolder, recorded: Timeline) -> int:
    """The recorded step, counted from 0, whose length is nearest to the median that is reported:
    the one step that report, page and `ratrain timeline` show."""
    last = attempts(folder)[-1:]
    period = folder.read_setup().period
    return _nearest(recorded, counted_of(folder.read_metrics(), last[0] if last else None, period))


def _nearest(recorded: Timeline, counted: Counted | None) -> int:
    return typical_step(recorded, counted.step_s if counted else None)


def _typical(
    recorded: Timeline | None, counted: Counted | None, period: int
) -> dict[str, Any] | None:
    """The recorded step whose length is nearest to the median that is reported, and its length; of
    programs of several steps the last recorded period: its last step, its steps and their mean
    length. None where none was recorded with the step before it."""
    lengths = step_times(recorded) if recorded is not None else {}
    if recorded is None or not lengths:
        return None
    steps = (_nearest(recorded, counted),)
    if period > 1:
        whole = whole_periods(sorted(lengths), period, lambda step: step)
        if not whole:
            return None
        steps = whole[-1]
    mean_s = fmean(lengths[step] for step in steps)
    return {"step": steps[-1] + 1, "steps": len(steps), "step_time_s": mean_s}


def _measured_kinds(
    folder: RunFolder,
    spec: RunSpec,
    counted: Counted | None,
    timeline: Timeline | None,
    typical: dict[str, Any] | None,
) -> dict[str, float]:
    """From the ops of a typical recorded step, or period. A run that did not come to its end has
    recorded none: then from the metrics, which give a wait to the lane that ended last."""
    if timeline is not None and typical is not None:
        step, steps = typical["step"] - 1, typical["steps"]
        try:
            ranks = measured_kinds(folder.read_program(), spec.seats, timeline, step, steps)
        except ProgramError as error:
            place = f"{folder.program}, {error.place}"
            raise ProgramError(error.what, place=place, fix=error.fix) from error
        except TimelineError as error:
            place = f"{folder.path / 'ranks'}, {error.place}"
            raise TimelineError(error.what, place=place, fix=error.fix) from error
        return {kind: fmean(rank[kind] for rank in ranks) for kind in KINDS}
    if counted is None:
        return {}

    def mean(row: Row, kind: str) -> float:
        return fmean(rank.get(f"{kind}_s") or 0.0 for rank in row["ranks"])

    medians = {kind: counted.mean(lambda row, kind=kind: mean(row, kind)) for kind in KINDS[:-1]}
    return {**medians, "other": counted.step_s - sum(medians.values())}


def _predicted_kinds(spec: RunSpec, predicted: dict[str, Any] | None) -> dict[str, float]:
    if predicted is None:
        return {}
    step_s = predicted["step_time_s"]
    parts = [simulated_kinds(rank, step_s) for rank in predicted["ranks"]]
    ranks = [parts[seat.program_rank] for seat in spec.seats.all()]
    return {kind: fmean(rank[kind] for rank in ranks) for kind in KINDS}


def simulated_kinds(rank: dict[str, Any], step_s: float) -> dict[str, float]:
    """Seconds of each of `KINDS` in one rank's predicted step, as prediction.json has them."""
    kinds = {kind: _simulated(rank, kind) for kind in KINDS[:-1]}
    rest_s = step_s - sum(kinds.values())
    return {**kinds, "other": rest_s if abs(rest_s) > 1e-9 else 0.0}


def _simulated(rank: dict[str, Any], kind: str) -> float:
    if kind in _SIMULATED:
        return sum(rank["waiting_s"].get(name, 0.0) for name in _SIMULATED[kind])
    # What a core does for a transfer is time that its compute lane lacks.
    return rank[f"{kind}_s"] + (rank.get("driving_s", 0.0) if kind == "compute" else 0.0)


def _ratio(predicted: float | None, measured: float | None) -> float | None:
    """Measured / predicted; None where next to nothing was predicted."""
    return measured / predicted if predicted and predicted > 1e-9 and measured is not None else None


def prediction_of(folder: RunFolder, spec: RunSpec) -> dict[str, Any] | None:
    """What prediction.json says; None where the run was not calibrated."""
    path = folder.path / "prediction.json"
    return read_prediction(path, 1 + _last_program_rank(spec)) if exists(path) else None


def _last_program_rank(spec: RunSpec) -> int:
    return max(seat.program_rank for seat in spec.seats.all())


def _memory(
    folder: RunFolder, spec: RunSpec, facts: dict[str, Any], rows: Sequence[Row], rank: int
) -> dict[str, Any]:
    """One rank's bytes: proved, held by the ledger, taken from the allocator; what is allowed."""
    program_rank = spec.seats.seat(rank).program_rank
    path = folder.rank_file(rank, "records")
    recorded: dict[str, Any] = {}
    if exists(path):
        recorded = read_records(path, rank).get("memory") or {}

    def most(name: str, of: Callable[[Row], float | None]) -> int | None:
        values = [value for row in rows if (value := of(row["ranks"][rank]))]
        return int(max(values)) if values else recorded.get(name)

    return {
        "rank": rank,
        "program_rank": program_rank,
        "budget_bytes": facts["budget_bytes"][program_rank],
        "bound_bytes": facts["bound_bytes"][program_rank],
        "bound_items": facts["bound_items"][program_rank],
        "ledger_peak_bytes": most("size_bytes", lambda row: row["ledger_peak_bytes"]),
        "ledger_items": recorded.get("items"),
        "ledger_waits": recorded.get("ledger_waits"),
        "allocated_peak_bytes": most(
            "allocated_peak_bytes", lambda row: row["allocated_peak_bytes"]
        ),
        "product_peak_bytes": recorded.get("product_peak_bytes"),
        "resident_bytes": most("resident_bytes", lambda row: row["resident_bytes"]),
        "computes_on": recorded.get("computes_on") or None,
    }
