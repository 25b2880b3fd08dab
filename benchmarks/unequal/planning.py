"""Our own plans of a row: what the planner finds, and the same with other layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ratrain.describe.cluster import Device
from ratrain.plan.build import Candidate
from ratrain.plan.jobs import load_job
from ratrain.plan.plan_writing import plan_of, write_plan
from ratrain.plan.search import search
from ratrain.plan.trial import timed


@dataclass(frozen=True)
class Planned:
    """A layout of our own, and a step as the planner expects it."""

    candidate: Candidate
    step_s: float

    @property
    def shares(self) -> tuple[float, ...]:
        """The processors of each stage's devices, the slowest replica's."""
        return tuple(map(min, self._stages))

    @property
    def _stages(self) -> list[list[float]]:
        layout, place = self.candidate.layout, self.candidate.placement
        return [
            [_share(place.device(stage, data)) for data in range(layout.data)]
            for stage in range(layout.pipeline)
        ]

    @property
    def words(self) -> str:
        """The stages in their order, with their devices' processors."""
        text = lying(self.candidate.layers, self._stages)
        return f"{text}, micro-batches of {self.candidate.job.batch.micro_batch}"

    def with_layers(self, layers: tuple[int, ...]) -> Planned:
        """The same devices, micro-batches and schedule, cut otherwise."""
        old = self.candidate
        layout = replace(old.layout, layers=layers)
        job, place = replace(old.job, layout=layout), replace(old.placement, layout=layout)
        new = replace(old, job=job, placement=place)
        step_s, _ = timed(job, place, new.strategy, new.setup, new.choices)
        return Planned(new, step_s or float("nan"))

    def write(self, path: Path) -> Path:
        """As a plan file, beside the files that it names."""
        path.write_text(self.text)
        return path

    @property
    def text(self) -> str:
        """Of its plan file."""
        return write_plan(plan_of(self.candidate))


def lying(layers: Sequence[int], stages: Sequence[Sequence[float]]) -> str:
    """ "4 layers on 0.5/0.5 + 8 layers on 1/1": a share of the processors for each replica."""
    return " + ".join(
        f"{count} layers on {'/'.join(f'{share:g}' for share in shares)}"
        for count, shares in zip(layers, stages, strict=True)
    )


def _share(device: Device) -> float:
    lab = device.kind.lab
    assert lab is not None, "every case of a benchmark is for a lab"
    return lab.cpus


def planned(job: Path, pipeline: int | None = None) -> Planned:
    """The planner's best, of all degrees or of one number of stages."""
    for tried in search(load_job(job)).tried:
        if pipeline in (None, tried.candidate.layout.pipeline):
            return Planned(tried.candidate, tried.step_s)
    raise LookupError(f"none of the planner's best has {pipeline} stages")
