"""Our own plans of a row: what the planner finds, and a layout of it with other layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ratrain.describe.cluster import Device
from ratrain.plan.file.form import file_of_plan, write_plan
from ratrain.plan.layout.jobs import load_job, load_job_to_plan
from ratrain.plan.layout.placement import PlacedReplica
from ratrain.plan.layout.plan import Plan, plan_of_layout
from ratrain.plan.price.trial import step_s_of
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.search.tried import Tried


@dataclass(frozen=True)
class WrittenPlan:
    """A plan's file, what it says in words, and a step as the planner expects it."""

    words: str
    step_s: float
    text: str


@dataclass(frozen=True)
class Planned:
    """A layout of our own, and a step as the planner expects it."""

    plan: Plan
    step_s: float

    @property
    def shares(self) -> tuple[float, ...]:
        """The processors of each stage's devices, the slowest replica's."""
        return tuple(map(min, self._stages))

    @property
    def _stages(self) -> list[list[float]]:
        layout, place = self.plan.layout, self.plan.placement
        return [
            [_share(place.device(stage, data)) for data in range(layout.data)]
            for stage in range(layout.pipeline)
        ]

    @property
    def words(self) -> str:
        """The stages in their order, with their devices' processors."""
        text = lying(self.plan.alike.layers, self._stages)
        skeleton = self.plan.strategy.skeleton
        order = "" if skeleton == "1f1b" else f"; {skeleton}"
        return f"{text}, micro-batches of {self.plan.job.batch.micro_batch}{order}"

    def with_layers(self, layers: tuple[int, ...]) -> Planned:
        """The same devices, micro-batches and schedule, cut otherwise."""
        old = self.plan
        layout = replace(old.layout, layers=layers)
        job, place = replace(old.job, layout=layout), replace(old.placement, layout=layout)
        new = plan_of_layout(
            job, place, old.strategy, old.mode, recovery=old.alike.recovery, buffer=old.buffer
        )
        step_s = step_s_of(new)
        return Planned(new, step_s or float("nan"))

    @property
    def written(self) -> WrittenPlan:
        """Its plan file."""
        return WrittenPlan(self.words, self.step_s, write_plan(file_of_plan(self.plan)))


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


def best_of_all(job: Path) -> WrittenPlan:
    """The plan that `ratrain plan` writes, whether its stages and replicas are alike or not."""
    plans = every_plan(load_job_to_plan(job))
    if plans.best is not None:
        return of_any(plans.best)
    assert plans.alike is not None, "one of the searches has found a plan"
    return Planned(plans.alike.best.plan, plans.alike.best.step_s).written


def of_any(plan: Tried) -> WrittenPlan:
    """A plan of any stages and replicas."""
    words = "; ".join(map(_replica_words, plan.plan.replicas))
    order = "" if plan.plan.strategy.skeleton == "1f1b" else f"; {plan.plan.strategy.skeleton}"
    return WrittenPlan(words + order, plan.step_s, write_plan(file_of_plan(plan.plan)))


def _replica_words(replica: PlacedReplica) -> str:
    """ "2 layers on 0.6 (8), 0.4 (4) + 1 layer on 0.5, 2 at once; 12 micro-batches of 1"."""
    layers = replica.layout.layers
    assert isinstance(layers, tuple)
    stages: list[str] = []
    for count, ranks in zip(layers, replica.places, strict=True):
        members = [_member_words(replica, rank, len(ranks) > 1) for rank in ranks]
        at_once = replica.joined[ranks[0]] if replica.joined else 1
        size = f", {at_once * replica.micro_batch} at once" if replica.joined else ""
        stages.append(f"{count} layer{'s' * (count > 1)} on {', '.join(members)}{size}")
    copies = f"{len(replica.groups)} x " if len(replica.groups) > 1 else ""
    return (
        f"{copies}{' + '.join(stages)}; {replica.micro_batches} micro-batches of "
        f"{replica.micro_batch}"
    )


def _member_words(replica: PlacedReplica, rank: int, shares: bool) -> str:
    kind = replica.groups[0][rank][0].kind
    name = kind.name if kind.lab is None else f"{kind.lab.cpus:g}"
    served = replica.serves[rank]
    count = f" ({replica.micro_batches if served is None else len(served)})" if shares else ""
    return f"{name}{count}"


def planned(job: Path, pipeline: int | None = None) -> Planned:
    """The planner's best, of all degrees or of one number of stages."""
    for tried in search_layouts(load_job(job)).tried:
        if pipeline in (None, tried.plan.layout.pipeline):
            return Planned(tried.plan, tried.step_s)
    raise LookupError(f"none of the planner's best has {pipeline} stages")
