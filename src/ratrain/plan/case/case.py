"""A plan made ready to prove and simulate, whatever its replicas are."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec
from ratrain.errors import ProgramError
from ratrain.plan.case.fastest_collective import with_fastest_collective
from ratrain.plan.case.standing import Standing, standing_of
from ratrain.plan.case.words import InWords
from ratrain.plan.file.checks import untrainable
from ratrain.plan.file.form import PlanFile
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.unit_place import UnitPlace
from ratrain.plan.price.places import costs_of, unit_places
from ratrain.plan.price.trial import proof
from ratrain.plan.price.turns import hidden_turns
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.settled import Proved
from ratrain.program.setup import Averages, Setup
from ratrain.program.strategies import Choices, Strategy
from ratrain.simulate.costs import Costs


@dataclass(frozen=True)
class Case(InWords):
    """What everything that runs, proves, simulates or describes a plan asks of it."""

    plan: Plan
    beside: tuple[str, ...] = field(default=(), kw_only=True)
    """Lines of the headline: which plan was not taken, where the job was planned (`case_of_job`)"""

    @property
    def job(self) -> JobSpec:
        return self.plan.job

    @property
    def strategy(self) -> Strategy:
        return self.plan.strategy

    @property
    def setup(self) -> Setup:
        """The header of the program, before its strategy's passes."""
        return self.plan.setup

    @cached_property
    def choices(self) -> Choices:
        """With turns that hide averages best, where backward hides them."""
        choices = self.plan.choices
        asked = self.job.schedule.average_turns
        if asked or choices.asked_averages is not Averages.DREAMDDP:
            return choices
        costs, steps = costs_of(self.plan, self.setup), choices.average_steps
        turns = hidden_turns(self.setup, costs, steps, tied=choices.tie)
        return replace(choices, average_turns=turns)

    @cached_property
    def proved(self) -> Proved:
        """The program, kept short where it is long and repeats itself, with its proof."""
        with named_in(self.plan):
            return proof(self.strategy, self.setup, self.choices)

    @cached_property
    def program(self) -> Program:
        """The program, written out."""
        program = self.proved.program
        try:
            return program.written_out() if isinstance(program, Repeating) else program
        except ProgramError as error:
            place = f"{self.job.path or 'job'} {'[batch]' if self.plan.is_layout else 'sequences'}"
            fix = "cut the batch into fewer micro-batches, or use --form text, which keeps the "
            fix += "repeated middle folded; `verify` and `simulate` take the job as it is"
            raise ProgramError(error.what, place=place, fix=fix) from None

    @cached_property
    def costs(self) -> Costs:
        """What the ops of the proved program take."""
        return self._costs_of(self.settled_job)

    def _costs_of(self, job: JobSpec) -> Costs:
        """The same, where the job's collective is another."""
        return costs_of(self._by(job), self.proved.short.setup)

    def _by(self, job: JobSpec) -> Plan:
        """The plan with a job's collective."""
        schedule = replace(self.job.schedule, collective=job.schedule.collective)
        return replace(self.plan, job=replace(self.job, schedule=schedule))

    @cached_property
    def settled_job(self) -> JobSpec:
        """The job with the collective by which its replicas reduce: "auto" may come to one."""
        return with_fastest_collective(self.job, self.proved, self._costs_of)

    @property
    def gradients(self) -> str:
        """Where they add up."""
        return self.proved.short.setup.accumulation.value

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.job.batch.sequences * self.job.model.sequence_length

    def unit_places(self) -> list[UnitPlace]:
        """Every unit of the proved program in its place, in the order of its setup's members."""
        return unit_places(self._by(self.settled_job), self.proved.program.setup)

    def standing(self) -> Standing:
        """Where the ranks of its program stand."""
        return standing_of(self.plan)

    # ---- who does what, of the replicas that the program spells out ------------------------

    @property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the replicas that each stands for."""
        return tuple(replica.members for replica in self.plan.replicas)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sequences of a micro-batch of each."""
        return tuple(replica.micro_batch for replica in self.plan.replicas)

    @property
    def apart(self) -> bool:
        """Whether replicas may compute in orders of their own."""
        return not self.plan.is_layout and len(self.plan.replicas) > 1

    def device(self, data: int, pipeline: int, tensor: int) -> Device:
        """The device of a replica, a rank of its pipeline, and a place in its tensor group."""
        replica = next(replica for replica in self.plan.replicas if data in replica.members)
        return replica.groups[replica.members.index(data)][pipeline][tensor]

    @property
    def refusals(self) -> list[tuple[str, str]]:
        """What processes cannot do of it, and the smallest fix."""
        return untrainable(self.plan)

    @property
    def devices(self) -> Sequence[Device]:
        """The devices that it uses."""
        return self.plan.devices

    @property
    def idle(self) -> list[int]:
        """The devices of the job's cluster that it does not use."""
        return [device.index for device in self.plan.idle]


@contextmanager
def named_in(plan: Plan) -> Generator[None]:
    """A program that cannot be made is the fault of a key of a job's file, or of a plan file."""
    file = plan.job.path or "job"
    try:
        yield
    except ProgramError as error:
        if not plan.is_layout:
            place = f"{file} {error.place or '[replicas]'}"
            fix = error.fix or "divide all replicas alike, or use another schedule"
        elif error.place.startswith("["):
            place, fix = f"{file} {error.place}", error.fix
        else:
            raise
        raise ProgramError(error.what, place=place, fix=fix) from error


def case_of_plan(plan: PlanFile, file: str) -> Case:
    """The case of a plan file."""
    return Case(plan_of_file(plan, file))
