"""When a run was started, by whom, and what ran then: a line for each start."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from ratrain import __version__
from ratrain.describe.amounts import Natural
from ratrain.describe.strict import Rule, load
from ratrain.readers.files import exists
from ratrain.readers.json_lines import end_last_line, read_json_lines
from ratrain.runtime.run_folder import RunFolder


@dataclass(frozen=True)
class Attempt:
    """One start of a run. `began_s`: seconds since 1970."""

    began_s: Annotated[float, Rule(low=0, high=1e12)]
    first_step: Natural
    lab: bool
    restarts: Natural
    versions: dict[str, str]


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


def _attempts_file(folder: RunFolder) -> Path:
    return folder.path / "attempts.jsonl"
