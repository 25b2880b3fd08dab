"""A run: what its folder says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratrain.api.shown import Shown
from ratrain.errors import RatrainError
from ratrain.readers.files import read_text
from ratrain.runtime.run.reports.report_text import report_text
from ratrain.runtime.run.working import reading_folder
from ratrain.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from ratrain.report.html import Markup


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """A run's folder, and its report: prediction beside measurement, memory, checkpoints."""

    folder: Path
    report: dict[str, Any] = field(compare=False)
    losses: tuple[float, ...]
    """Of every step, in order."""
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Steps done."""
        return self.report["steps"]["done"]

    @property
    def finished(self) -> bool:
        """Whether the last step was done; else `train(job, resume=run)` continues."""
        return self.steps >= self.report["steps"]["end"]

    @property
    def step_time_s(self) -> float | None:
        """The measured step: a median."""
        return self.report["step_time_s"]["measured"]

    def to_dict(self) -> dict[str, Any]:
        """The report, as `ratrain train --json` prints it."""
        return self.report

    def _lines(self) -> list[str]:
        return [*report_text(self.report), *(f"note: {note}" for note in self.notes)]

    def _markup(self) -> Markup:
        """Predicted and measured, below each other, where steps were recorded."""
        from ratrain.report.html import Markup, join
        from ratrain.runtime.run.reports.difference import difference_of
        from ratrain.timeline.picture import Panel, svg

        markup = super()._markup()
        try:
            difference = difference_of(RunFolder(self.folder), None)
        except RatrainError:  # not calibrated, or ended before its last steps
            return markup
        panels = [
            Panel("predicted", difference.predicted, difference.predicted_step_s),
            Panel(
                f"measured, step {difference.step}", difference.measured, difference.measured_step_s
            ),
        ]
        return join(Markup(svg(panels)), markup)


def run_of(folder: RunFolder, report: dict[str, Any], notes: Iterable[str] = ()) -> Run:
    """The run of a folder whose report is at hand."""
    losses = tuple(row["loss"] for row in folder.read_metrics())
    if folder.notes.exists():
        notes = [*notes, *read_text(folder.notes).splitlines()]
    return Run(folder.path, report, losses, tuple(notes))


def load_run(folder: str | Path) -> Run:
    """A run that was trained before, here or by `ratrain train`; or that still trains."""
    from ratrain.runtime.run.reports.report import report_of  # loads torch

    run = RunFolder(reading_folder(folder))
    return run_of(run, report_of(run))
