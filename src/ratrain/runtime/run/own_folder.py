"""Where a new run may be written: a folder with nothing else in it."""

from __future__ import annotations

from pathlib import Path

from ratrain.checkpoint.folder import URL_MARKER
from ratrain.errors import SpecError
from ratrain.runtime.run_folder import RunFolder

_FOLDERS = ("checkpoints", "logs", "ranks")
_LEFT_OVER = (
    *("owner", "secret", "secret.new", "program.txt", "program.txt.partial", "run.json.partial"),
    URL_MARKER,
    "lost+found",
)
"""What a launch that died before it wrote run.json leaves, and what an empty disk has."""
_SHOWN = 3


def require_own_folder(folder: RunFolder, job: Path, job_files: Path | None) -> None:
    """Refuses a folder with files of somebody else: a run would write over those of its names, and
    verbs would take the rest for the run's. `job_files`: a folder with the job's own files, which
    move into the run's."""
    path = folder.path
    if job_files is None and job.resolve().is_relative_to(path.resolve()):
        raise SpecError(
            "is where the job is: a run needs a folder of its own",
            place=str(path),
            fix=f"choose another with --run, such as {Path('runs') / job.stem}",
        )
    others = _others(path)
    if others and not folder.holds_run:  # asked afterwards: another launch may write just now
        shown = ", ".join(others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise SpecError(
            f"holds files that are not a run's ({shown}{more}): a run needs a folder of its own",
            place=str(path),
            fix=f"choose a new one with --run, such as {path / job.stem}",
        )


def _others(path: Path) -> list[str]:
    """Names in the folder that no unfinished launch left there; hidden ones do not count."""
    try:
        return sorted(entry.name for entry in path.iterdir() if not _is_left_over(entry))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []  # making the folder says what is wrong


def _is_left_over(entry: Path) -> bool:
    if entry.name in _FOLDERS and entry.is_dir():
        return next(entry.iterdir(), None) is None
    return entry.name in _LEFT_OVER or entry.name.startswith(".")
