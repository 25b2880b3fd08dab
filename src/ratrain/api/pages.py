"""A page to look at."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratrain.api.jobs import Job, require_file
from ratrain.api.plans import Plan
from ratrain.api.runs import Run
from ratrain.api.shown import Shown
from ratrain.readers.writing import write_whole
from ratrain.report.contents import Contents
from ratrain.report.page import page
from ratrain.report.read import contents_of

if TYPE_CHECKING:
    from ratrain.report.html import Markup


@dataclass(frozen=True, repr=False)
class Page(Shown):
    """One HTML file that needs no network: `html`. A notebook shows it in a frame."""

    contents: Contents
    html: str

    @property
    def verdict(self) -> str:
        """The page in one line."""
        return self.contents.verdict.text

    def save(self, path: str | Path) -> Path:
        """Writes the file."""
        write_whole(Path(path), self.html)
        return Path(path)

    def _lines(self) -> list[str]:
        from textwrap import wrap

        return wrap(self.verdict, 80)

    def _markup(self) -> Markup:
        from ratrain.report.html import tag

        return tag(
            "iframe",
            srcdoc=self.html,
            title=self.contents.title,
            sandbox="allow-scripts",
            style="width:100%;height:720px;border:0",
        )


def report(
    subject: Run | Plan | Job | str | Path, *, progress: Callable[[int, int], None] | None = None
) -> Page:
    """The page of a run, a plan or a job: the plan on its devices, the timeline (predicted over
    measured), where the step's time goes, memory against the budget, loss and throughput, what
    binds and what would help. A path is that of a run's folder, a plan (.json) or a job (.toml).

    `progress` is called with plans simulated and their number at most.
    """
    overrides = subject.overrides if isinstance(subject, Job) else ()
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(subject, Run):
            path = subject.folder
        elif isinstance(subject, Plan):
            path = subject.save(Path(folder) / f"{subject.job.name}.json")
        elif isinstance(subject, Job):
            path = require_file(subject)
        else:
            path = Path(subject)
        contents = contents_of(path, progress, overrides)
    return Page(contents, page(contents))
