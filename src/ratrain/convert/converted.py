"""What a conversion makes: a cluster, a plan for it, and what differs, in words."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import model_preset
from ratrain.errors import SpecError
from ratrain.plan.file import FORMAT, PlanCluster, PlanFile, PlanModel, PlanReplica
from ratrain.program.strategies import strategy
from ratrain.readers.json import as_table
from ratrain.readers.place import Place

CLUSTER_FILE = "cluster.toml"
PLAN_FILE = "plan.json"
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class Theirs:
    """The time of a step that their own file names, and whether their planner predicted it or it
    was measured."""

    step_time_s: float
    how: str


@dataclass(frozen=True)
class Converted:
    """RATrain's view of another planner's files. `differs`: sentences."""

    cluster: ClusterSpec
    plan: PlanFile | None
    theirs: Theirs | None
    differs: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """The model that the user names: their files lack its widths. `name` as plans write it."""

    name: str
    spec: ModelSpec

    @property
    def slots(self) -> int:
        """Embedding, layers and head, as planners number them."""
        return self.spec.layers + 2


def model_of(name: str) -> Model:
    """The model of a preset's name or a config.json."""
    spec = load_config(Path(name)) if name.endswith(".json") else model_preset(name)
    return Model(name, spec)


@dataclass(frozen=True)
class Choices:
    """How the replicas of a plan are run: the schedule, and in which numbers."""

    schedule: str
    sequences: int
    sequence_length: int
    dtype: str
    accumulation_dtype: str = "fp32"


def plan_for(
    model: Model, devices: int, choices: Choices, replicas: tuple[PlanReplica, ...]
) -> PlanFile:
    """The plan file of these replicas. What runs it is not ours, so its backend is only described:
    nothing is added for what our own runtime holds."""
    chosen = strategy(choices.schedule)
    return PlanFile(
        format=FORMAT,
        model=PlanModel(model.name, choices.sequence_length),
        cluster=PlanCluster(CLUSTER_FILE, devices),
        sequences=choices.sequences,
        dtype=choices.dtype,
        schedule=choices.schedule,
        skeleton=chosen.skeleton,
        without=(),
        accumulation="local",
        recovery_buffer=1,
        prefetch=chosen.prefetch,
        replicas=replicas,
        backend="described",
        gradient_dtype="fp32" if choices.accumulation_dtype == "fp32" else "fp16",
    )


def layers_of_slots(bounds: list[tuple[int, int]], model: Model, place: Place) -> tuple[int, ...]:
    """Layers of each stage out of [first, last) over the slots embedding, layers, head."""
    expected = 0
    for number, (first, end) in enumerate(bounds):
        if first != expected or end <= first:
            raise SpecError(
                f"stage {number} has slots {first} to {end - 1}, where slot {expected} is expected",
                place=str(place),
                fix="give every stage at least one slot, each slot once and in order",
            )
        expected = end
    if expected != model.slots:
        raise SpecError(
            f"its stages have {expected} slots, but {model.spec.name} has {model.slots}: "
            f"{model.spec.layers} layers, embedding and head",
            place=str(place),
            fix=f"give the model with {expected - 2} layers as --model, or correct the stages",
        )
    return tuple(end - first - (first == 0) - (end == model.slots) for first, end in bounds)


def object_of(value: Any, place: Place) -> dict[str, Any]:
    """The value, which must be a JSON object."""
    return as_table(value, place)[0]


def list_of(value: object) -> list[Any]:
    """The value where it is a list; else one without items, which its reader refuses."""
    return cast("list[Any]", value) if isinstance(value, list) else []


@contextmanager
def placed(place: Place | str) -> Generator[None]:
    """Errors of what is made from a value name the value's place."""
    try:
        yield
    except SpecError as error:
        raise SpecError(error.what, place=str(place), fix=error.fix) from None
