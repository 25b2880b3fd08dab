"""A plan made ready to prove and simulate, whatever its replicas are: its program, its costs, where
its ranks stand, and what `collective = "auto"` comes to in a whole step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from ratrain.cost.algorithms import ALGORITHMS, AUTO
from ratrain.describe.cluster import Device, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.errors import ProgramError
from ratrain.plan.case.words import InWords
from ratrain.plan.file.checks import untrainable
from ratrain.plan.file.form import PlanFile
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.links import speed
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.turns import hidden_turns
from ratrain.plan.price.durations import UnitPlace
from ratrain.plan.price.places import costs_of, unit_places
from ratrain.plan.price.trial import only_over_budget, proof
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.settled import Proved
from ratrain.program.setup import Averages, Setup
from ratrain.program.strategies import Choices, Strategy
from ratrain.simulate.costs import Costs
from ratrain.simulate.long import simulate_proved


@dataclass(frozen=True)
class RankPlace:
    """The devices of a program rank: of all replicas that are folded into its own, one replica
    after the other. `reduces_over`, `sums_over`: the slowest link of its gradient reductions, and
    of its tensor group; None where it has none."""

    devices: tuple[Device, ...]
    reduces_over: Link | None
    sums_over: Link | None

    @property
    def kind(self) -> DeviceKind:
        return self.devices[0].kind


@dataclass(frozen=True)
class Standing:
    """`links`: for each replica the program spells out, the link from each rank to the next; none
    where its stages have several members."""

    ranks: tuple[RankPlace, ...]
    links: tuple[tuple[Link, ...], ...]
    idle: tuple[Device, ...] = ()


def standing_of(plan: Plan) -> Standing:
    """The `Standing` of a plan."""
    links = plan.links
    ranks = [(number, rank) for number, r in enumerate(plan.replicas) for rank in range(r.ranks)]
    return Standing(
        tuple(
            RankPlace(
                tuple(d for groups in plan.replicas[number].groups for d in groups[rank]),
                _slowest_reduction(plan, number, rank),
                links.sums(number, rank),
            )
            for number, rank in ranks
        ),
        tuple(
            tuple(
                links.between(number, rank, rank + 1)
                for rank in range(0 if replica.has_members else replica.ranks - 1)
            )
            for number, replica in enumerate(plan.replicas)
        ),
        plan.idle,
    )


def _slowest_reduction(plan: Plan, number: int, rank: int) -> Link | None:
    """The slowest link over which a rank of a replica reduces any of its gradients."""
    groups = {held for held in plan.holders.values() if rank in held[number]}
    shared = (held for held in groups if len(plan.links.groups_that_hold(held)) > 1)
    links = (link for held in shared for _, link in plan.links.reducing(held))
    return min(links, key=speed, default=None)


GAIN = 1e-6
"""The part of a step that one algorithm for all units must save: less is rounding."""


def with_fastest_collective(
    job: JobSpec, proved: Proved, costs_of: Callable[[JobSpec], Costs]
) -> JobSpec:
    """The job of a program with the collective that makes its step the shortest: one for all units,
    or "auto", the fastest for each by itself. Transfers that are may get in each other's way, or
    keep busy the processors that compute: only whole steps tell."""
    if job.collective != AUTO or max(proved.short.setup.holders.values()) == 1:
        return job
    if not proved.verdict.sound and not only_over_budget(proved.verdict):
        return job

    def step_s(asked: JobSpec) -> float:
        return simulate_proved(proved, costs_of(asked)).step_time_s

    named = [replace(job, schedule=replace(job.schedule, collective=name)) for name in ALGORITHMS]
    times = {asked.collective: step_s(asked) for asked in named}
    fastest = min(named, key=lambda asked: times[asked.collective])
    return fastest if times[fastest.collective] < (1 - GAIN) * step_s(job) else job


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
