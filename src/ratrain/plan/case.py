"""A job made ready to simulate: its setup, its program, its costs, and what memory decided.

Where the job leaves recovery and accumulation to RATrain, these are tried, and the fastest of
those that are proved to fit is taken:

    keep all activations          local gradients, or sharded
    keep all but scores           local, or sharded (where attention stores its scores)
    keep the last stage's alone   local, or sharded
    recover on every stage        local, or sharded

Both answers come from short programs. Memory depends only on a few micro-batches a stage, and a
step's time grows linearly with their number once the pipeline is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import wrap

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import SpecError
from ratrain.plan.bill import bucket_bytes
from ratrain.plan.build import Candidate, as_trained, setup_of
from ratrain.plan.durations import costs_of
from ratrain.plan.enumerate import no_shards, require_tieable, strategy_of
from ratrain.plan.placement import Placement, place
from ratrain.plan.planned import planned
from ratrain.plan.ranges import write_ranges
from ratrain.plan.search import shortened
from ratrain.plan.sizes import layers_of_stages, stores_scores, trains_tied
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation, Recovery, Setup
from ratrain.program.strategies import Choices, Strategy, apply_strategy
from ratrain.program.verify import verify
from ratrain.simulate.costs import Costs
from ratrain.simulate.simulate import simulate


@dataclass(frozen=True)
class Case:
    """One job, laid out."""

    job: JobSpec
    layout: LayoutSpec
    placement: Placement
    strategy: Strategy
    setup: Setup
    choices: Choices

    @cached_property
    def program(self) -> Program:
        return apply_strategy(self.strategy, self.setup, self.choices)

    @cached_property
    def costs(self) -> Costs:
        return costs_of(self.job, self.placement, self.program.setup)

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.job.batch.sequences * self.job.model.sequence_length

    @property
    def activations(self) -> str:
        """What became of activations, in words."""
        if self.choices.recovery is not None:
            return _recovery_words(self.choices.recovery)
        if self.strategy.recovery is Recovery.NONE or self.choices.keep_all:
            return "kept on every stage"
        if self.strategy.recovery is Recovery.BACKWARD:
            return "recovered when backward arrives, on every stage"
        if self.choices.exempt_last:
            return "recovered ahead of backward; the last stage keeps its own"
        return "recovered ahead of backward, on every stage"

    def facts(self) -> dict[str, object]:
        """What the job is and what was chosen for it, for JSON."""
        job, layout = self.job, self.layout
        return {
            "model": job.model.spec.name,
            "sequence_length": job.model.sequence_length,
            "cluster": job.cluster.spec.name,
            "devices": job.cluster.devices,
            "pipeline": layout.pipeline,
            "data": layout.data,
            "tensor": layout.tensor,
            "virtual": layout.virtual,
            "sequence_parallel": layout.sequence_parallel,
            "layers_per_stage": list(layers_of_stages(job, layout)),
            "micro_batches": [replica.micro_batches for replica in self.setup.replicas],
            "schedule": job.schedule.name,
            "without": list(job.schedule.without),
            "sharding": self.strategy.sharding,
            "activations": self.activations,
            "gradients": self.program.setup.accumulation.value,
        }

    def headline(self) -> list[str]:
        """The same in two or three lines of at most 80 columns."""
        job, layout = self.job, self.layout
        degrees = f"pipeline {layout.pipeline} x data {layout.data}"
        degrees += f" x tensor {layout.tensor}" if layout.tensor > 1 else ""
        degrees += " with divided sequences" if layout.sequence_parallel else ""
        degrees += f", {layout.virtual} stages a rank" if layout.virtual > 1 else ""
        strategy = job.schedule.name
        if job.schedule.without:
            strategy += f" without {', '.join(job.schedule.without)}"
        gradients = self.program.setup.accumulation.value
        lines = (
            f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}: {degrees}",
            f"{strategy}: gradients {gradients}, sharding level {self.strategy.sharding}",
            f"activations {self.activations}",
        )
        return [part for line in lines for part in wrap(line, 80, subsequent_indent="  ")]


def _recovery_words(modes: tuple[Recovery, ...]) -> str:
    """What each run of stages does: "kept on 0-2, recovered ahead of backward on 3"."""
    words = {
        Recovery.NONE: "kept",
        Recovery.SELECTIVE: "kept without attention's scores",
        Recovery.FORWARD: "recovered ahead of backward",
        Recovery.BACKWARD: "recovered when backward arrives",
    }
    if len(set(modes)) == 1:
        return f"{words[modes[0]]} on every stage"
    parts = [
        f"{text} on {write_ranges([s for s, mode in enumerate(modes) if mode is one])}"
        for one, text in words.items()
        if one in modes
    ]
    return "; ".join(parts)


def case_of(job: JobSpec) -> Case:
    """The case of a job; a job without a layout is planned first."""
    layout = job.layout
    if layout is None:
        return case_of_candidate(planned(job).best.candidate)
    file = str(job.path or "job")
    found = strategy_of(job)
    if job.schedule.name == "tensor-parallel-heavy" and layout.tensor == 1:
        raise SpecError(
            "tensor-parallel-heavy with tensor = 1 has no tensor parallelism",
            place=f"{file} [layout] tensor",
            fix="set tensor to the devices of a host, and pipeline to that much less",
        )
    if job.schedule.gradient_accumulation == "sharded" and found.sharding < 2:
        raise no_shards(job, found.sharding)
    require_tieable(job)
    placement = place(job, layout)
    setup = setup_of(job, placement, job.schedule.recovery_buffer)
    choices = _choose(job, found, setup, placement)
    return Case(job, layout, placement, found, setup, choices)


def case_of_candidate(one: Candidate) -> Case:
    """The case of a configuration in full: nothing is left to choose."""
    return Case(one.job, one.layout, one.placement, one.strategy, one.setup, one.choices)


def _choose(job: JobSpec, found: Strategy, setup: Setup, placement: Placement) -> Choices:
    """The fastest of the possible choices that fit; the leanest, where none does."""
    candidates = list(_candidates(job, found, placement.layout.stages))
    if len(candidates) == 1:
        return candidates[0]
    best: tuple[float, Choices] | None = None
    for choices in candidates:
        short = apply_strategy(found, shortened(found, setup, 1), choices)
        verdict = verify(short)
        if not verdict.sound:
            continue
        long = apply_strategy(found, shortened(found, setup, 2), choices)
        costs = costs_of(job, placement, short.setup)
        times = [simulate(p, costs, steps=3, verdict=verdict).step_time_s for p in (short, long)]
        counts = [p.setup.replicas[0].micro_batches for p in (short, long)]
        time_s = times[-1]
        if counts[1] > counts[0]:
            slope = (times[1] - times[0]) / (counts[1] - counts[0])
            time_s += slope * (setup.replicas[0].micro_batches - counts[1])
        if best is None or time_s < best[0]:
            best = time_s, choices
    return best[1] if best else candidates[-1]


def _candidates(job: JobSpec, found: Strategy, stages: int) -> Iterator[Choices]:
    recoveries = {
        "keep-all": Choices(keep_all=True, bucket_bytes=bucket_bytes(job)),
        "exempt-last": Choices(exempt_last=True, bucket_bytes=bucket_bytes(job)),
        "everywhere": Choices(exempt_last=False, bucket_bytes=bucket_bytes(job)),
    }
    if stores_scores(job) or job.schedule.recovery == "selective":
        lean = (Recovery.SELECTIVE,) * stages
        recoveries["selective"] = Choices(recovery=lean, bucket_bytes=bucket_bytes(job))
    asked = job.schedule.recovery
    if asked != "auto":
        recoveries = {asked: recoveries[asked]}
    elif found.recovery is not Recovery.FORWARD:
        recoveries = {"everywhere": recoveries["everywhere"]}
    modes = [Accumulation.LOCAL, Accumulation.SHARDED]
    if job.schedule.gradient_accumulation != "auto":
        modes = [Accumulation(job.schedule.gradient_accumulation)]
    elif found.sharding < 2 or trains_tied(job):
        modes = [Accumulation.LOCAL]
    for choices in recoveries.values():
        for mode in modes:
            yield as_trained(replace(choices, accumulation=mode), job)
