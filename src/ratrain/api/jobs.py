"""A job, as it is handed from one function to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratrain.api.shown import Shown
from ratrain.describe.job import JobSpec
from ratrain.describe.units import counted, format_bytes, format_count
from ratrain.errors import SpecError
from ratrain.plan import load_job as job_of_file

if TYPE_CHECKING:
    from ratrain.report.html import Markup


@dataclass(frozen=True, repr=False)
class Job(Shown):
    """What to train, on what, and how. `spec` has every value of the file, all of them frozen
    dataclasses: `dataclasses.replace` makes other jobs of it."""

    spec: JobSpec
    overrides: tuple[str, ...] = ()
    """Values that override the file's; ranks get them too."""

    @property
    def path(self) -> Path | None:
        """The job's file."""
        return self.spec.path

    @property
    def name(self) -> str:
        """The file's name, without its ending."""
        return self.path.stem if self.path else "job"

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.spec.tokens

    def using(self, schedule: str | None = None, without: tuple[str, ...] | None = None) -> Job:
        """The same job with another schedule, or with passes left out of it, as `--schedule` and
        `--without` have it: `job.using("zb-h1")`, `job.using(without=("forward-recovery",))`."""
        chosen = self.spec.schedule
        if schedule is not None:
            chosen = replace(chosen, name=schedule)
        if without is not None:
            chosen = replace(chosen, without=tuple(without))
        return replace(self, spec=replace(self.spec, schedule=chosen))

    def unplanned(self) -> Job:
        """The same job without its layout, so that one is looked for."""
        return replace(self, spec=replace(self.spec, layout=None))

    def _facts(self) -> list[tuple[str, str]]:
        from ratrain.plan.layout import travels

        spec, layout = self.spec, self.spec.layout
        laid_out = "left to the planner"
        if layout is not None:
            laid_out = f"pipeline {layout.pipeline} x data {layout.data} x tensor {layout.tensor}"
        budgets = " or ".join(format_bytes(size) for size in spec.budgets)
        return [
            ("model", f"{spec.model.spec.name}, {spec.model.sequence_length:,}-token sequences"),
            ("cluster", f"{counted(spec.cluster.devices, 'device')} of {spec.cluster.spec.name}"),
            (
                "step",
                f"{counted(spec.batch.sequences, 'sequence')}, {format_count(self.tokens)} tokens",
            ),
            ("layout", laid_out),
            ("schedule", f"{spec.schedule.name}, {spec.schedule.dtype}"),
            *(("network", words) for words in travels(spec)),
            ("budget", f"{budgets} per rank"),
        ]

    def _lines(self) -> list[str]:
        return [f"job {self.name}", *(f"  {key:10}{value}" for key, value in self._facts())]

    def _markup(self) -> Markup:
        from ratrain.report.html import table

        return table(("job", self.name), self._facts(), text=(0, 1))


def load_job(path: str | Path, *overrides: str) -> Job:
    """The job of a TOML file (docs/reference/describe.md). Whatever is wrong with it is one
    `RatrainError` that names the line, the key and the smallest fix.

    `overrides` are values in place of the file's, as `--set` has them:
    `load_job("job.toml", "train.steps=10", "cluster.devices=8")`.
    """
    return Job(job_of_file(path, overrides), overrides)


def job_of(job: Job | str | Path) -> Job:
    """A job, or the job of a file."""
    return job if isinstance(job, Job) else load_job(job)


def require_file(job: Job) -> Path:
    """The job's file. Ranks read the job from it, with its overrides; a job that says otherwise,
    but for its schedule and passes left out, is refused."""
    path, spec = job.path, job.spec
    if path is None:
        raise SpecError("the job has no file, and ranks read it from one", place="job")
    in_file = job_of_file(path, job.overrides)
    named = replace(in_file.schedule, name=spec.schedule.name, without=spec.schedule.without)
    if replace(in_file, schedule=named) != spec:
        raise SpecError(
            "the job was changed after it was loaded, and ranks read it from its file",
            place=str(path),
            fix='give the change to load_job, as in load_job(path, "train.steps=10"); job.using '
            "chooses a schedule, train(job, plan=...) a layout",
        )
    return path
