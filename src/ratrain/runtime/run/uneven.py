"""A run whose replicas differ, out of a plan file: what a `Case` is to one of replicas alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap

from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.plan.case import recovery_words
from ratrain.plan.sizes import gradients_in, travels
from ratrain.plan.trial import proof
from ratrain.plan.uneven_setup import UnevenPlan, UnevenReplica
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.settled import Proved
from ratrain.program.strategies import Choices
from ratrain.runtime.seats import Seats


@dataclass(frozen=True)
class UnevenCase:
    """A plan of unlike replicas, to be trained; its job says what to train on."""

    plan: UnevenPlan

    @property
    def job(self) -> JobSpec:
        return self.plan.job

    @property
    def choices(self) -> Choices:
        return self.plan.choices

    @cached_property
    def proved(self) -> Proved:
        """The program with its proof."""
        return proof(self.plan.strategy, self.plan.setup, self.plan.choices)

    @cached_property
    def program(self) -> Program:
        """The program, written out."""
        program = self.proved.program
        return program.written_out() if isinstance(program, Repeating) else program

    @property
    def members(self) -> list[tuple[int, ...]]:
        """Of each class of replicas alike, their numbers."""
        return [replica.members for replica in self.plan.replicas]

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Of each class, the sequences of a micro-batch."""
        return tuple(replica.micro_batch for replica in self.plan.replicas)

    def devices(self, seats: Seats) -> tuple[int, ...]:
        """The number of each world rank's device in the cluster."""
        numbers: list[int] = []
        for seat in seats.all():
            replica = self.plan.replicas[seats.replica_class[seat.data]]
            groups = replica.groups[replica.members.index(seat.data)]
            numbers.append(groups[seat.pipeline][seat.division.rank].index)
        return tuple(numbers)

    def require_runnable(self, place: str) -> None:
        """Refuses what a plan may say of unlike replicas, and processes cannot do yet."""
        degrees = sorted({tensor for replica in self.plan.replicas for tensor in replica.tensor})
        refused = (
            (
                len(degrees) > 1,
                f"stages of tensor {degrees[0]} and {degrees[-1]} cannot run together yet",
                "use one tensor degree for all stages",
            ),
            (
                self.plan.mode.sharding == 3,
                "replicas that differ cannot run at sharding level 3 yet",
                "write sharding 2",
            ),
            (
                self.plan.mode.sharded_gradients,
                "replicas that differ cannot run with sharded accumulation yet",
                'write accumulation "local"',
            ),
            (
                any(replica.layout.virtual > 1 for replica in self.plan.replicas),
                "replicas that differ cannot run with several stages on a device yet",
                "give each stage its own devices",
            ),
        )
        for is_asked, what, fix in refused:
            if is_asked:
                raise SpecError(what, place=place, fix=fix)

    def facts(self) -> dict[str, object]:
        """What the job is and what was chosen for it, as `Case.facts` has it, with each replica."""
        job, replicas = self.job, self.plan.replicas
        return {
            "model": job.model.spec.name,
            "sequence_length": job.model.sequence_length,
            "cluster": job.cluster.spec.name,
            "devices": job.cluster.devices,
            "pipeline": max(replica.layout.pipeline for replica in replicas),
            "data": sum(len(replica.members) for replica in replicas),
            "tensor": max(max(replica.tensor) for replica in replicas),
            "virtual": max(replica.layout.virtual for replica in replicas),
            "sequence_parallel": self.plan.sequence_parallel,
            "layers_per_stage": _layers(replicas[0]),
            "micro_batches": [replica.micro_batches for replica in replicas],
            "replicas": [
                {
                    "numbers": list(replica.members),
                    "layers_per_stage": _layers(replica),
                    "micro_batches": replica.micro_batches,
                    "micro_batch": replica.micro_batch,
                }
                for replica in replicas
            ],
            "schedule": job.schedule.name,
            "without": list(job.schedule.without),
            "sharding": self.plan.strategy.sharding,
            "activations": self._activations,
            "gradients": self.proved.short.setup.accumulation.value,
            "backend": job.schedule.backend,
            "dtype": job.schedule.dtype,
            "gradient_dtype": job.schedule.gradient_dtype,
            "gradient_wire": job.schedule.gradients_travel_in,
            "boundary_wire": job.schedule.boundaries_travel_in,
            "collective": job.schedule.collective,
        }

    def headline(self) -> list[str]:
        """The same in a few lines of at most 80 columns."""
        job, plan = self.job, self.plan
        strategy = job.schedule.name
        if job.schedule.without:
            strategy += f" without {', '.join(job.schedule.without)}"
        gradients = self.proved.short.setup.accumulation.value + gradients_in(job.schedule)
        count = sum(len(replica.members) for replica in plan.replicas)
        lines = (
            f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}: "
            f"{count} replicas that differ",
            *(self._words(replica) for replica in plan.replicas),
            f"{strategy}: gradients {gradients}, sharding level {plan.strategy.sharding}",
            f"activations {self._activations}",
            *travels(job.schedule),
        )
        return [part for line in lines for part in wrap(line, 80, subsequent_indent="  ")]

    def _words(self, replica: UnevenReplica) -> str:
        layers = "+".join(map(str, _layers(replica)))
        tensor = f" x tensor {replica.tensor[0]}" if replica.tensor[0] > 1 else ""
        return (
            f"{_names(replica)}: pipeline {replica.layout.pipeline}{tensor} of {layers} layers, "
            f"{replica.micro_batches} micro-batches of {replica.micro_batch}"
        )

    @property
    def _activations(self) -> str:
        words = [recovery_words(replica.recovery) for replica in self.plan.replicas]
        if len(set(words)) == 1:
            return words[0]
        named = zip(self.plan.replicas, words, strict=True)
        return "; ".join(f"{_names(replica)}: {text}" for replica, text in named)


def _names(replica: UnevenReplica) -> str:
    numbers = ", ".join(map(str, replica.members))
    return f"replica{'s' if len(replica.members) > 1 else ''} {numbers}"


def _layers(replica: UnevenReplica) -> list[int]:
    assert isinstance(replica.layout.layers, tuple)
    return list(replica.layout.layers)
