"""A plan made ready to prove and simulate, whatever its replicas are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec
from ratrain.plan.case.fastest_collective import with_fastest_collective
from ratrain.plan.case.standing import Standing
from ratrain.plan.file.uneven import UnevenPlan
from ratrain.plan.layout.candidate import Candidate
from ratrain.plan.layout.unit_place import UnitPlace
from ratrain.plan.price.trial import proof
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.settled import Proved
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, Strategy
from ratrain.simulate.costs import Costs

Subject = Candidate | UnevenPlan
"""A plan: of a layout, or of any replicas."""


@dataclass(frozen=True)
class Case(ABC):
    """What everything that runs, proves, simulates or describes a plan asks of it. `setup`: the
    header of the program, before its strategy's passes."""

    job: JobSpec
    strategy: Strategy
    setup: Setup
    choices: Choices
    beside: tuple[str, ...] = field(default=(), kw_only=True)
    """Lines of the headline: which plan was not taken, where the job was planned (`case_of_job`)"""

    @cached_property
    def proved(self) -> Proved:
        """The program, kept short where it is long and repeats itself, with its proof."""
        with self._named():
            return proof(self.strategy, self.setup, self.choices)

    @cached_property
    def program(self) -> Program:
        """The program, written out."""
        program = self.proved.program
        with self._named():
            return program.written_out() if isinstance(program, Repeating) else program

    @abstractmethod
    def _named(self) -> AbstractContextManager[None]:
        """In which a program that cannot be made is the fault of a place in the user's file."""

    @cached_property
    def costs(self) -> Costs:
        """What the ops of the proved program take."""
        return self._costs_of(self.settled_job)

    @abstractmethod
    def _costs_of(self, job: JobSpec) -> Costs:
        """The same, where the job's collective is another."""

    @cached_property
    def settled_job(self) -> JobSpec:
        """The job with the collective by which its replicas reduce: "auto" may come to one."""
        return with_fastest_collective(self.job, self.proved, self._costs_of)

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.job.batch.sequences * self.job.model.sequence_length

    @cached_property
    @abstractmethod
    def plan(self) -> Subject:
        """The plan itself."""

    @abstractmethod
    def unit_places(self) -> list[UnitPlace]:
        """Every unit of the proved program in its place, in the order of its setup's members."""

    @abstractmethod
    def standing(self) -> Standing:
        """Where the ranks of its program stand."""

    # ---- who does what, of the replicas that the program spells out ------------------------

    @property
    @abstractmethod
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the replicas that each stands for."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Sequences of a micro-batch of each."""

    @property
    @abstractmethod
    def apart(self) -> bool:
        """Whether replicas may compute in orders of their own."""

    @abstractmethod
    def device(self, data: int, pipeline: int, tensor: int) -> Device:
        """The device of a replica, a rank of its pipeline, and a place in its tensor group."""

    @property
    def refusals(self) -> list[tuple[str, str]]:
        """What processes cannot do of it, and the smallest fix."""
        return []

    # ---- in words and as JSON --------------------------------------------------------------

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """What the job is and what was chosen for it, for JSON."""

    def run_facts(self) -> dict[str, object]:
        """The same with figures of the whole run, where those of its replicas differ."""
        return self.facts()

    @abstractmethod
    def headline(self) -> list[str]:
        """The same in a few lines of at most 80 columns."""

    @abstractmethod
    def plan_headline(self) -> list[str]:
        """The plan alone in such lines."""

    @abstractmethod
    def plan_json(self) -> dict[str, Any]:
        """The plan alone, for JSON."""

    @abstractmethod
    def found_json(self) -> dict[str, Any]:
        """The plan as one of a list of plans of the same job."""

    @property
    @abstractmethod
    def short_name(self) -> str:
        """What tells it from other plans of the job, in a column of a table."""

    @property
    @abstractmethod
    def in_brief(self) -> str:
        """What it is in a few words, beside plans of other jobs."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The same in a sentence."""

    @property
    @abstractmethod
    def details(self) -> tuple[str, ...]:
        """What the name leaves out."""

    @property
    def shares(self) -> list[str]:
        """What part of a step each replica takes, where they differ."""
        return []

    @property
    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices that it uses."""

    @property
    def idle(self) -> list[int]:
        """The devices of the job's cluster that it does not use."""
        used = {device.index for device in self.devices}
        return [index for index in range(self.job.cluster.devices) if index not in used]
