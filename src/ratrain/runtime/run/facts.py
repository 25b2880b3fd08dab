"""What a run is, as its folder says: the layout found, what was asked for, who ran it when.

case.json        layout, proof and settings of the job as they were at the beginning
attempts.jsonl   one line each time the run was started or resumed: when, from which step, versions
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

from ratrain import __version__
from ratrain.describe.amounts import Natural
from ratrain.describe.job import JobSpec
from ratrain.describe.strict import FrozenMap, Rule, load
from ratrain.plan import Case
from ratrain.program.verify import Verdict
from ratrain.readers.files import exists
from ratrain.readers.json_lines import end_last_line, read_json_lines
from ratrain.readers.writing import write_whole
from ratrain.runtime.run_files import CASE_FORMAT, read_case
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.seats import Seats


@dataclass(frozen=True)
class Attempt:
    """One start of a run. `began_s`: seconds since 1970."""

    began_s: Annotated[float, Rule(low=0, high=1e12)]
    first_step: Natural
    lab: bool
    restarts: Natural
    versions: dict[str, str]


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


def begin_attempt(folder: RunFolder, first_step: int, *, lab: bool, restarts: int) -> Attempt:
    """Notes in the folder that the run is started now."""
    attempt = Attempt(time.time(), first_step, lab, restarts, versions())
    with _attempts_file(folder).open("a", encoding="utf-8") as file:
        end_last_line(_attempts_file(folder))
        file.write(json.dumps(asdict(attempt)) + "\n")
    return attempt


def attempts(folder: RunFolder) -> list[Attempt]:
    """Every start of the run, oldest first."""
    path = _attempts_file(folder)
    if not exists(path):
        return []
    return [load(Attempt, row, place) for row, place in read_json_lines(path, half=True)]


def versions() -> dict[str, str]:
    """What runs here: this package, torch, Python, the machine, and the commit where there is
    one."""
    installed = {
        "ratrain": __version__,
        "torch": _package("torch"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "git": _commit(),
    }
    return {name: value for name, value in installed.items() if value}


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of the source tree that this package runs from; "" where it is installed."""
    package = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "-C", str(package), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return described.stdout.strip() if described.returncode == 0 else ""


def _case_file(folder: RunFolder) -> Path:
    return folder.path / "case.json"


def _attempts_file(folder: RunFolder) -> Path:
    return folder.path / "attempts.jsonl"
