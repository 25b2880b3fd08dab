"""A run's report: prediction against measurement, memory, checkpoints. Read from its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from ratrain.checkpoint.listing import listed
from ratrain.runtime.rank.metrics import Row
from ratrain.runtime.run.facts import Attempt, attempts, read_facts
from ratrain.runtime.run.itemise import KINDS, measured_kinds
from ratrain.runtime.run.merge import merge_records, write_measured
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.timeline.compare import step_times, typical_step
from ratrain.timeline.timeline import write_whole

FORMAT = "ratrain report 1"
WARM_UP_STEPS = 2

_SIMULATED = {
    "reduce": ("reduce",),
    "gather": ("gather",),
    "update": ("update",),
    "stages": ("bubble", "message"),
    "tensor": ("tensor",),
}


def report_of(folder: RunFolder) -> dict[str, Any]:
    """The report of the run's last attempt. The step time is the median of the last half of its
    steps, without its first two. Kinds are means over ranks, of the recorded step of median
    length."""
    spec, facts = folder.read_spec(), read_facts(folder)
    rows, last = folder.read_metrics(), attempts(folder)[-1:]
    counted = counted_rows(rows, last[0] if last else None)
    predicted = _prediction(folder)
    memory = [_memory(folder, spec, facts, rows, rank) for rank in range(spec.seats.world_size)]
    return {
        "format": FORMAT,
        "run": str(folder.path),
        "job": spec.job_path,
        "facts": facts["facts"],
        "versions": last[0].versions if last else {},
        "lab": bool(last and last[0].lab),
        "steps": {
            "done": rows[-1]["step"] + 1 if rows else 0,
            "end": spec.end_step,
            "counted": [counted[0]["step"] + 1, counted[-1]["step"] + 1] if counted else None,
        },
        "loss": {"first": rows[0]["loss"], "last": rows[-1]["loss"]} if rows else None,
        "step_time_s": _step_times(counted, predicted),
        "tokens_per_s": median(row["tokens_per_s"] for row in counted) if counted else None,
        "kinds": _kinds(folder, spec, counted, predicted),
        "memory": memory,
        "checkpoints": [
            {
                "path": str(one.path),
                "step": one.step,
                "complete": one.manifest is not None,
                "size_bytes": one.manifest.size_bytes if one.manifest else None,
            }
            for one in listed(folder.checkpoints)
        ],
    }


def write_report(folder: RunFolder) -> dict[str, Any]:
    """Writes report.json and measured.json; returns what is in the former."""
    body = report_of(folder)
    write_measured(folder, folder.read_spec())
    write_whole(folder.report, json.dumps(body, indent=1))
    return body


def counted_rows(rows: Sequence[Row], attempt: Attempt | None) -> list[Row]:
    """The steps that stand for the run: the last half, without the first two of the attempt."""
    own = [row for row in rows if attempt is None or row["time_s"] >= attempt.began_s]
    return own[max(WARM_UP_STEPS, len(own) // 2) :] or own[-1:]


def _step_times(counted: Sequence[Row], predicted: dict[str, Any] | None) -> dict[str, Any]:
    times = [row["step_time_s"] for row in counted]
    found = {
        "predicted": predicted["step_time_s"] if predicted else None,
        "measured": median(times) if times else None,
        "fastest": min(times, default=None),
        "slowest": max(times, default=None),
    }
    return {**found, "ratio": _ratio(found["predicted"], found["measured"])}


def _kinds(
    folder: RunFolder, spec: RunSpec, counted: Sequence[Row], predicted: dict[str, Any] | None
) -> list[dict[str, Any]]:
    measured = _measured_kinds(folder, spec, counted)
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


def _measured_kinds(folder: RunFolder, spec: RunSpec, counted: Sequence[Row]) -> dict[str, float]:
    """From the ops of a typical recorded step. A run that did not come to its end has recorded
    none: then from the metrics, which give a wait to the lane that ended last."""
    timeline = merge_records(folder, spec)
    if timeline is not None and step_times(timeline):
        step = typical_step(timeline)
        ranks = measured_kinds(folder.read_program(), spec.seats, timeline, step)
        return {kind: fmean(rank[kind] for rank in ranks) for kind in KINDS}
    if not counted:
        return {}

    def mean(row: Row, kind: str) -> float:
        return fmean(rank.get(f"{kind}_s") or 0.0 for rank in row["ranks"])

    found = {kind: median(mean(row, kind) for row in counted) for kind in KINDS[:-1]}
    return {**found, "other": _median_s(counted) - sum(found.values())}


def _predicted_kinds(spec: RunSpec, predicted: dict[str, Any] | None) -> dict[str, float]:
    if predicted is None:
        return {}
    ranks = [predicted["ranks"][seat.program_rank] for seat in spec.seats.all()]
    found = {kind: fmean(_simulated(rank, kind) for rank in ranks) for kind in KINDS[:-1]}
    rest = predicted["step_time_s"] - sum(found.values())
    return {**found, "other": rest if abs(rest) > 1e-9 else 0.0}


def _median_s(counted: Sequence[Row]) -> float:
    return median(row["step_time_s"] for row in counted)


def _simulated(rank: dict[str, Any], kind: str) -> float:
    if kind in _SIMULATED:
        return sum(rank["waiting_s"].get(name, 0.0) for name in _SIMULATED[kind])
    # What a core does for a transfer is time that its compute lane lacks.
    return rank[f"{kind}_s"] + (rank.get("driving_s", 0.0) if kind == "compute" else 0.0)


def _ratio(predicted: float | None, measured: float | None) -> float | None:
    """Measured / predicted; None where next to nothing was predicted."""
    return measured / predicted if predicted and predicted > 1e-9 and measured is not None else None


def _prediction(folder: RunFolder) -> dict[str, Any] | None:
    path = folder.path / "prediction.json"
    return folder.read_json(path) if path.exists() else None


def _memory(
    folder: RunFolder, spec: RunSpec, facts: dict[str, Any], rows: Sequence[Row], rank: int
) -> dict[str, Any]:
    """One rank's bytes: proved, held by the ledger, taken from the allocator; what is allowed."""
    program_rank = spec.seats.seat(rank).program_rank
    path = folder.rank_file(rank, "records")
    told: dict[str, Any] = folder.read_json(path)["memory"] if path.exists() else {}

    def most(name: str, of: Callable[[Row], float | None]) -> int | None:
        values = [value for row in rows if (value := of(row["ranks"][rank]))]
        return int(max(values)) if values else told.get(name)

    return {
        "rank": rank,
        "program_rank": program_rank,
        "budget_bytes": facts["budget_bytes"],
        "bound_bytes": facts["bound_bytes"][program_rank],
        "bound_items": facts["bound_items"][program_rank],
        "ledger_peak_bytes": most("size_bytes", lambda row: row["ledger_peak_bytes"]),
        "ledger_items": told.get("items"),
        "ledger_waits": told.get("ledger_waits"),
        "allocated_peak_bytes": most(
            "allocated_peak_bytes", lambda row: row["allocated_peak_bytes"]
        ),
        "resident_bytes": most("resident_bytes", lambda row: row["resident_bytes"]),
    }
