"""What a run is, as its folder says (case.json): layout, proof and settings of the job as they were
at the beginning."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ratrain.describe.job import JobSpec
from ratrain.describe.strict import FrozenMap
from ratrain.plan import Case
from ratrain.program.verify import Verdict
from ratrain.readers.writing import write_whole
from ratrain.runtime.run_files import CASE_FORMAT, read_case
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.seats import Seats


def write_facts(
    folder: RunFolder,
    file_job: JobSpec,
    case: Case,
    seats: Seats,
    verdict: Verdict,
) -> None:
    """Writes case.json beside the program that it describes. `file_job`: the job as in its file."""
    setup, model_file = case.proved.program.setup, file_job.model.file
    body = {
        "format": CASE_FORMAT,
        "facts": case.run_facts(),
        "headline": case.headline(),
        "settings": settings_of(file_job),
        "model_file": None if model_file is None else str(model_file.resolve()),
        "ranks": [asdict(seat) for seat in seats.all()],
        "tier": setup.tier,
        "budget_bytes": [setup.budget_of(rank) for rank in range(setup.ranks)],
        "bound_bytes": [bound.total_bytes for bound in verdict.bounds],
        "bound_items": [bound.by_family for bound in verdict.bounds],
    }
    write_whole(_case_file(folder), json.dumps(body, indent=1))


def read_facts(folder: RunFolder) -> dict[str, Any]:
    """What case.json says."""
    return read_case(_case_file(folder))


def settings_of(job: JobSpec) -> dict[str, Any]:
    """What a job says, table by table, as JSON has it."""
    tables: dict[str, Any] = {
        "model": {
            **{key: value for key, value in asdict(job.model.spec).items() if key != "source"},
            "sequence_length": job.model.sequence_length,
        },
        "batch": asdict(job.batch),
        "train": {**asdict(job.train), **asdict(job.train.keys)},
        "data": None if job.data is None else asdict(job.data),
        "checkpoint": asdict(job.checkpoint),
        "cluster": {"name": job.cluster.spec.name, "devices": job.cluster.devices},
        "layout": None if job.layout is None else asdict(job.layout),
        "schedule": {
            key: dict(value) if isinstance(value, FrozenMap) else value
            for key, value in asdict(job.schedule).items()
        },
    }
    del tables["train"]["keys"]  # they stand in the same table
    return json.loads(json.dumps(tables))  # as a file would give them: lists for tuples


def _case_file(folder: RunFolder) -> Path:
    return folder.path / "case.json"
