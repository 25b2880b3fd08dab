"""A case in words and as JSON: what every plan says. What only a layout says is in `layout_words`,
and what replicas that differ do in `replicas_words`, under the same names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from ratrain.describe.job import JobSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.ranges import write_ranges
from ratrain.describe.units import counted
from ratrain.plan.case import layout_words, replicas_words
from ratrain.plan.case.layout_words import plan_measured
from ratrain.plan.layout.links import collective_words
from ratrain.plan.layout.orders import order_words
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.sizes import gradients_in, optimizer_words, own_words, travels


class InWords(ABC):
    """What words need of a case, and what they make of it."""

    plan: Plan
    beside: tuple[str, ...]

    @cached_property
    @abstractmethod
    def settled_job(self) -> JobSpec:
        """The job with the collective by which its replicas reduce: "auto" may come to one."""

    @property
    @abstractmethod
    def gradients(self) -> str:
        """Where they add up."""

    @property
    def _of(self):
        return layout_words if self.plan.is_layout else replicas_words

    def facts(self) -> dict[str, Any]:
        """What the job is and what was chosen for it, for JSON."""
        plan, job = self.plan, self.plan.job
        return {
            "model": job.model.spec.name,
            "sequence_length": job.model.sequence_length,
            "cluster": job.cluster.spec.name,
            "devices": job.cluster.devices,
            "idle_devices": [device.index for device in plan.idle],
            "data": plan.setup.data,
            "sequence_parallel": plan.sequence_parallel,
            **self._of.facts(plan),
            "micro_batches": [replica.micro_batches for replica in plan.replicas],
            "schedule": job.schedule.name,
            "order": plan.strategy.skeleton,
            "without": list(job.schedule.without),
            "sharding": plan.strategy.sharding,
            "gradients": self.gradients,
            "backend": job.schedule.backend,
            "dtype": job.schedule.dtype,
            "dtypes": {k: d for k, d in job.dtypes.items() if k not in plan.idle_kinds},
            "gradient_dtype": job.schedule.gradient_dtype,
            "gradient_wire": job.schedule.gradients_travel_in,
            "boundary_wire": job.schedule.boundaries_travel_in,
            "error_feedback": job.schedule.error_feedback,
            "collective": job.collective,
            "measured_times": plan_measured(plan),
        }

    def run_facts(self) -> dict[str, Any]:
        """The same with figures of the whole run, where those of its replicas differ."""
        return {**self.facts(), **self._of.of_whole_run(self.plan)}

    def headline(self) -> list[str]:
        """What the job is and what was chosen for it, in a few lines of at most 80 columns."""
        lines = [*self._lines(), *self.beside]
        return [part for line in lines for part in wrapped(line, _indent(line))]

    def _lines(self) -> Iterator[str]:
        plan, job = self.plan, self.plan.job
        where = f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}"
        divided = ", sequence parallel" if plan.sequence_parallel else ""
        yield f"{where}: {self._of.shapes(plan)}{divided}{self._of.rounds(plan)}"
        without = f" without {', '.join(job.schedule.without)}" if job.schedule.without else ""
        yield (
            f"{job.schedule.name}{without}: gradients {self.gradients}"
            f"{gradients_in(job.schedule)}, sharding level {plan.strategy.sharding}"
        )
        yield from order_words(job.schedule, plan.strategy)
        yield from self._of.activations(plan)
        yield from travels(job, plan.idle_kinds)
        yield from optimizer_words(job)
        yield from layout_words.mirror_words(plan)
        yield from own_words(job)
        yield from collective_words(self.settled_job, self._of.reducing_hosts(plan))
        yield from self._of.replicas(plan)
        yield from plan_measured(plan)
        if plan.idle:
            numbers = write_ranges([device.index for device in plan.idle])
            yield f"idle: {counted(len(plan.idle), 'device')}, {numbers}"

    def plan_headline(self) -> list[str]:
        """The plan alone in such lines."""
        return layout_words.headline(self.plan) if self.plan.is_layout else self.headline()

    def plan_json(self) -> dict[str, Any]:
        """The plan alone, for JSON."""
        return layout_words.layout_json(self.plan) if self.plan.is_layout else self.facts()

    def found_json(self) -> dict[str, Any]:
        """The plan as one of a list of plans of the same job."""
        keys = ("idle_devices", "replicas", "order", "sharding", "gradients")
        said = self.plan_json()
        return said if self.plan.is_layout else {key: said[key] for key in keys}

    @property
    def short_name(self) -> str:
        """What tells it from other plans of the job, in a column of a table."""
        return self._of.short_name(self.plan)

    @property
    def in_brief(self) -> str:
        """What it is in a few words, beside plans of other jobs."""
        return self._of.in_brief(self.plan)

    @property
    def name(self) -> str:
        """The same in a sentence."""
        return self._of.name(self.plan)

    @property
    def details(self) -> tuple[str, ...]:
        """What the name leaves out."""
        return (*self._of.details(self.plan), layout_words.mode_words(self.plan.mode))

    @property
    def shares(self) -> list[str]:
        """What part of a step each replica takes, where they differ."""
        return self._of.shares(self.plan)


def _indent(line: str) -> str:
    """Where the lines stand that a line is continued on."""
    return "    " if line.startswith(" ") else "  "
