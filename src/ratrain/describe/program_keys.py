"""The keys of a job that its program, or the proof of it, depends on, in one list.

A plan file carries them, a run that is given a plan holds them against its job, a resumed run
against what it began with, and all ranks against each other's: each walks this list (or every key,
as ranks do, and the list of what changed since a run began). The other keys of [schedule] steer a
search, and a plan file says what was found for them: layout, recovery, sharding and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import Any

from ratrain.describe.job import JobSpec, ScheduleSpec
from ratrain.describe.strict import Field, FrozenMap, fields_of
from ratrain.describe.train import TrainSpec

_TABLES: dict[str, Any] = {"schedule": ScheduleSpec, "train": TrainSpec}


@dataclass(frozen=True)
class ProgramKey:
    """A key of [schedule] or [train].

    `decided`: by the plan, where there is one, whatever the job says; else the two must agree.
    `meant`: what a job means by it where that is not its field; `matters`: what of that a program
    depends on. `plan`: its name in a plan file, where another. `always`: written there even where
    it is the default.
    """

    table: str
    name: str
    decided: bool = False
    meant: Callable[[JobSpec], object] | None = None
    matters: Callable[[Any], object] = lambda value: value
    plan: str = ""
    always: bool = False

    @cached_property
    def file_key(self) -> str:
        """How a job file has it."""
        return self._field.key

    @cached_property
    def default(self) -> Any:
        return getattr(_TABLES[self.table](), self.name)

    def of(self, job: JobSpec) -> Any:
        """What a plan file carries of it."""
        return job.dtypes if self.name == "dtypes" else getattr(getattr(job, self.table), self.name)

    def compared(self, job: JobSpec) -> object:
        """What of a job's value must be that of its plan."""
        return self.matters(self.of(job) if self.meant is None else self.meant(job))

    def written(self, value: Any) -> Any:
        """A value as files have it."""
        if isinstance(value, FrozenMap):
            return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if self.name.endswith("_bytes"):
            return f"{value}B"
        if is_dataclass(value) and not isinstance(value, type):
            return {key: self.written(part) for key, part in asdict(value).items()}
        return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    @property
    def _field(self) -> Field:
        return next(f for f in fields_of(_TABLES[self.table]).values() if f.name == self.name)


def _is_given(value: object) -> str:
    return "left out" if value is None else "given"


PROGRAM_KEYS = (
    ProgramKey("schedule", "dtype", always=True),
    ProgramKey("schedule", "gradient_dtype", always=True),
    ProgramKey("schedule", "backend", decided=True, always=True),
    ProgramKey("schedule", "name", decided=True, plan="schedule", always=True),
    ProgramKey("schedule", "without", decided=True, always=True),
    ProgramKey("schedule", "memory_budget_bytes"),
    ProgramKey("schedule", "passes", decided=True),
    ProgramKey("schedule", "average_every", decided=True),
    ProgramKey("schedule", "averages", decided=True),
    ProgramKey("schedule", "average_between", decided=True),
    ProgramKey("schedule", "average_turns", decided=True),
    ProgramKey("schedule", "average_wire", decided=True),
    ProgramKey("train", "outer_learning_rate", matters=_is_given),
    ProgramKey("train", "clip_norm", matters=_is_given),
    ProgramKey("train", "overflow"),
    ProgramKey("train", "optimizer"),
    ProgramKey("train", "freeze"),
    ProgramKey("train", "train_only"),
    ProgramKey("train", "lora"),
    ProgramKey("train", "dropout", matters=bool),
    ProgramKey("train", "network"),
    ProgramKey("schedule", "recover_heads", decided=True),
    ProgramKey("schedule", "collective", meant=lambda job: job.collective),
    ProgramKey("schedule", "attention"),
    ProgramKey("schedule", "dtypes"),
    ProgramKey("schedule", "gradient_wire", meant=lambda job: job.schedule.gradients_travel_in),
    ProgramKey("schedule", "boundary_wire", meant=lambda job: job.schedule.boundaries_travel_in),
    ProgramKey("schedule", "error_feedback"),
    ProgramKey("schedule", "mirror"),
    ProgramKey("schedule", "gradient_bucket_bytes", decided=True),
    ProgramKey("schedule", "optimizer_tier", decided=True),
    ProgramKey("schedule", "view_tier", decided=True),
    ProgramKey("schedule", "gradient_tier", decided=True),
    ProgramKey("schedule", "activation_tier", decided=True),
)
"""In the order in which a plan file has them."""
SEARCHED = frozenset(
    {
        *("skeleton", "recovery_buffer", "gradient_accumulation", "recovery", "sharding"),
        *("sequence_parallel", "replicas", "average_exposed"),
    }
)
"""Keys of [schedule] that bind a search: a plan says itself what was found."""


def in_plan(key: ProgramKey) -> str:
    """A key's field in a plan."""
    return key.plan or key.name


def said_by(plan: object) -> Iterator[tuple[ProgramKey, Any]]:
    """The keys that a plan carries, with their values as files have them; those that may be left
    out, and are as they are by default, are left out."""
    for key in PROGRAM_KEYS:
        value = getattr(plan, in_plan(key))
        if key.always or value != key.default:
            yield key, key.written(value)


def changed(began: Mapping[str, Any], job: JobSpec) -> Iterator[tuple[ProgramKey, object]]:
    """The keys of [train] that a resumed job has otherwise than its run began (`began`: that table
    as it was), in what its program depends on, with what they were."""
    for key in PROGRAM_KEYS:
        if key.table == "train":
            before = began.get(key.name, key.default)
            if key.matters(key.written(before)) != key.matters(key.written(key.of(job))):
                yield key, before
