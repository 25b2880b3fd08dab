"""A program on a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratrain.api.programs import BuiltProgram, Subject, build
from ratrain.api.shown import Shown
from ratrain.readers.writing import write_whole
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import STEPS, Simulation, timeline_of
from ratrain.simulate.summary import as_json, as_text
from ratrain.timeline.compare import one_step
from ratrain.timeline.perfetto import perfetto_trace
from ratrain.timeline.picture import Panel, svg
from ratrain.timeline.timeline import Timeline

if TYPE_CHECKING:
    from ratrain.report.html import Markup


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """The predicted step of a program: its time, its memory, where the time goes."""

    built: BuiltProgram
    simulation: Simulation

    @property
    def step_time_s(self) -> float:
        """The steady step; the mean of a period, where replicas average their weights."""
        return self.simulation.step_time_s

    @property
    def tokens_per_s(self) -> float:
        """Of the whole cluster."""
        return self.built.case.job.tokens / self.step_time_s

    @property
    def peak_bytes(self) -> int:
        """The fullest rank's peak on this timing."""
        return self.simulation.peak_bytes

    @property
    def bound_bytes(self) -> int:
        """The fullest rank's proven peak, on any timing."""
        return self.simulation.bound_bytes

    @property
    def fits(self) -> bool:
        """Whether the program is sound and within its memory budget."""
        return self.simulation.feasible

    @property
    def bubble_fraction(self) -> float:
        """The share of rank time that is spent waiting for other stages."""
        return self.simulation.bubble_fraction

    @cached_property
    def timeline(self) -> Timeline:
        """Every op of the last two steps, or periods of several, with its start and end."""
        return timeline_of(self.simulation)

    def svg(self) -> str:
        """One step as a picture: a row for each rank."""
        last = one_step(self.timeline, max(span.step for span in self.timeline.spans))
        title = self.built.job.name + self.simulation.drawn_step
        return svg([Panel(title, last, self.step_time_s)])

    def save_trace(self, path: str | Path) -> Path:
        """Writes a trace that Perfetto (ui.perfetto.dev) opens."""
        write_whole(Path(path), perfetto_trace(self.timeline))
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """Every figure, with its unit in its key, as `ratrain simulate --json` prints them."""
        return {"job": self.built.to_dict(), **as_json(self.simulation, self.built.case.job.tokens)}

    def _lines(self) -> list[str]:
        text = as_text(self.simulation, self.built.case.job.tokens)
        return [*self.built.case.headline(), "", *text]

    def _markup(self) -> Markup:
        from ratrain.report.html import Markup, join

        return join(Markup(self.svg()), super()._markup())


def simulate(
    subject: Subject, *, steps: int = STEPS, progress: Callable[[int, int], None] | None = None
) -> Prediction:
    """Predicts the step of a job, a plan or a built program. The program is proved first; one that
    does not fit is simulated all the same, and says so: `prediction.fits`.

    `steps` are simulated, of which the last two show whether the step is steady. `progress` is
    called with ops done and their number; with plans, where a job has to be planned first.
    """
    built = build(subject, progress=progress)
    case = built.case
    return Prediction(
        built, simulate_proved(case.proved, case.costs, steps=steps, progress=progress)
    )
