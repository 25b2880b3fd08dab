"""What a path is, and the contents of its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ratrain.errors import SpecError
from ratrain.readers.files import exists
from ratrain.report.contents import Contents

Progress = Callable[[int, int], None]


def contents_of(
    path: Path, progress: Progress | None = None, overrides: Sequence[str] = ()
) -> Contents:
    """The `Contents` of a run's folder, of a plan (.json) or of a job (.toml). `overrides`: values
    in place of the job's, as `--set` has them."""
    if path.is_dir():
        from ratrain.report.facts.graph_run import contents_of_graph_run, is_graph_run

        if is_graph_run(path):
            return contents_of_graph_run(path)
        from ratrain.report.facts.run import contents_of_run

        return contents_of_run(path, progress)
    if path.suffix not in (".json", ".toml"):
        raise SpecError(
            "is not a run, plan or job" if exists(path) else "no such run, plan or job",
            place=str(path),
            fix="give a run's folder, a plan (.json) or a job file (.toml)",
        )
    from ratrain.report.facts.job import contents_of_job

    return contents_of_job(path, progress, overrides)


def page_path(path: Path) -> Path:
    """Where a page goes by default: into a run's folder, else in the current folder."""
    return path / "report.html" if path.is_dir() else Path(f"{path.stem}-report.html")
