"""What a run is, as its folder tells it: the layout found, what was asked for, who ran it when.

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
from typing import TYPE_CHECKING, Any

from ratrain import __version__
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.runtime.run_folder import RunFolder
from ratrain.timeline.timeline import write_whole

if TYPE_CHECKING:
    from ratrain.runtime.run.prepare import PreparedRun

FORMAT = "ratrain case 1"


@dataclass(frozen=True)
class Attempt:
    """One start of a run. `began_s`: seconds since 1970."""

    began_s: float
    first_step: int
    lab: bool
    restarts: int
    versions: dict[str, str]


def write_facts(prepared: PreparedRun, folder: RunFolder) -> None:
    """Writes case.json beside the program that it tells of."""
    setup = prepared.program.setup
    body = {
        "format": FORMAT,
        "facts": prepared.case.facts(),
        "headline": prepared.case.headline(),
        "settings": settings_of(prepared.case.job),
        "ranks": [asdict(seat) for seat in prepared.spec.seats.all()],
        "tier": setup.tier,
        "budget_bytes": setup.budget_bytes,
        "bound_bytes": [bound.total_bytes for bound in prepared.verdict.bounds],
        "bound_items": [bound.by_family for bound in prepared.verdict.bounds],
    }
    write_whole(_case_file(folder), json.dumps(body, indent=1))


def read_facts(folder: RunFolder) -> dict[str, Any]:
    """What case.json says."""
    body = folder.read_json(_case_file(folder))
    if body.get("format") != FORMAT:
        raise SpecError("is not a run of this version", place=str(_case_file(folder)))
    return body


def settings_of(job: JobSpec) -> dict[str, Any]:
    """The job's own numbers, table by table, as JSON has them."""
    tables: dict[str, Any] = {
        "model": {
            **{key: value for key, value in asdict(job.model.spec).items() if key != "source"},
            "sequence_length": job.model.sequence_length,
        },
        "batch": asdict(job.batch),
        "train": asdict(job.train),
        "data": None if job.data is None else asdict(job.data),
        "checkpoint": asdict(job.checkpoint),
    }
    return json.loads(json.dumps(tables))


def begin_attempt(folder: RunFolder, first_step: int, *, lab: bool, restarts: int) -> Attempt:
    """Notes in the folder that the run is started now."""
    attempt = Attempt(time.time(), first_step, lab, restarts, versions())
    with _attempts_file(folder).open("a") as file:
        file.write(json.dumps(asdict(attempt)) + "\n")
    return attempt


def attempts(folder: RunFolder) -> list[Attempt]:
    """Every start of the run, oldest first."""
    path = _attempts_file(folder)
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        return [Attempt(**json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise SpecError(f"is damaged: {error}", place=str(path), fix="remove it") from error


def versions() -> dict[str, str]:
    """What runs here: this package, torch, Python, the machine, and the commit where there is
    one."""
    found = {
        "ratrain": __version__,
        "torch": _package("torch"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "git": _commit(),
    }
    return {name: value for name, value in found.items() if value}


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of the source tree that this package runs from; "" where it is installed."""
    here = Path(__file__).resolve().parent
    try:
        told = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


def _case_file(folder: RunFolder) -> Path:
    return folder.path / "case.json"


def _attempts_file(folder: RunFolder) -> Path:
    return folder.path / "attempts.jsonl"
