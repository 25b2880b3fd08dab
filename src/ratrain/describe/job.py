"""What to train on what: the job file ties model, cluster, batch, layout and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ratrain.describe.cluster import ClusterSpec, Device
from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import cluster_preset, load_cluster, model_preset
from ratrain.describe.strict import Place, Rule, load, read_toml
from ratrain.describe.train import CheckpointSpec, DataSpec, TrainSpec
from ratrain.describe.units import format_bytes
from ratrain.errors import SpecError

Count = Annotated[int, Rule(low=1)]


@dataclass(frozen=True)
class ModelChoice:
    """The model and the number of tokens in each of its sequences."""

    spec: ModelSpec
    sequence_length: int
    file: Path | None = None  # where it is not a preset

    @property
    def name(self) -> str:
        """How a job or plan file names it, from any folder."""
        return str(self.file.resolve()) if self.file else self.spec.name


@dataclass(frozen=True)
class ClusterChoice:
    """The cluster and how many of its devices the job takes."""

    spec: ClusterSpec
    devices: int
    file: Path | None = None  # where it is not a preset

    @property
    def name(self) -> str:
        """How a job or plan file names it, from any folder."""
        return str(self.file.resolve()) if self.file else self.spec.name

    def members(self) -> tuple[Device, ...]:
        """The devices that the job takes: the first ones of the cluster."""
        return self.spec.devices(self.devices)


@dataclass(frozen=True)
class Batch:
    """Sequences in a step over all replicas, and sequences in one micro-batch of one replica."""

    sequences: Count
    micro_batch: Count = 1


@dataclass(frozen=True)
class LayoutSpec:
    """Degrees of each axis. `virtual` is the number of stages each rank holds.

    `layers` is "equal", "balanced", or one number per virtual stage in order.
    `sequence_parallel`: outside of the products that a tensor group divides, its ranks divide
    the sequence (arXiv 2205.05198); its degree is the tensor degree.
    """

    pipeline: Count
    data: Count = 1
    tensor: Count = 1
    virtual: Count = 1
    layers: tuple[Annotated[int, Rule(low=0)], ...] | Literal["equal", "balanced"] = "equal"
    sequence_parallel: bool = False

    @property
    def stages(self) -> int:
        """Number of stages, virtual ones counted."""
        return self.pipeline * self.virtual

    @property
    def devices(self) -> int:
        """Number of devices that the layout uses."""
        return self.pipeline * self.data * self.tensor


@dataclass(frozen=True)
class ScheduleSpec:
    """The strategy and its options; which names exist is the program room's to say.

    `recovery`: which stages of forward-side recovery keep their activations; "auto": as many as
    fit; "selective": all keep theirs but attention's scores, in any strategy. `recover_heads`:
    whether backward-time recovery computes the head again; left out: as the strategy says.
    `recovery_buffer`: units recovered at once. `sequence_parallel`: what a search may choose; left
    out: either.
    """

    name: str = "ratrain"
    without: tuple[str, ...] = ()
    memory_budget_bytes: Annotated[int, Rule("bytes", low=1)] | None = None
    recovery_buffer: Count = 2
    gradient_accumulation: Literal["sharded", "local", "auto"] = "auto"
    recovery: Literal["auto", "keep-all", "selective", "exempt-last", "everywhere"] = "auto"
    recover_heads: bool | None = None
    sharding: Annotated[int, Rule(low=0, high=3)] | None = None
    sequence_parallel: bool | None = None
    dtype: str = "fp16"


@dataclass(frozen=True)
class JobSpec:
    """A whole job. `layout` is None where it is left to the planner."""

    model: ModelChoice
    cluster: ClusterChoice
    batch: Batch
    layout: LayoutSpec | None
    schedule: ScheduleSpec
    path: Path | None = None
    train: TrainSpec = TrainSpec()
    data: DataSpec | None = None
    checkpoint: CheckpointSpec = CheckpointSpec()

    @property
    def budget_bytes(self) -> int:
        """The memory budget of a device: the job's, or the smallest capacity among its devices."""
        if self.schedule.memory_budget_bytes is not None:
            return self.schedule.memory_budget_bytes
        return min(d.kind.memory.capacity_bytes for d in self.cluster.members())

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica in one step."""
        if self.layout is None:
            raise SpecError("the job has no layout", place=_file(self.path), fix="add [layout]")
        return self.batch.sequences // (self.layout.data * self.batch.micro_batch)


@dataclass(frozen=True)
class _ModelTable:
    name: str
    sequence_length: Count


@dataclass(frozen=True)
class _ClusterTable:
    name: str
    devices: Count


@dataclass(frozen=True)
class _JobFile:
    model: _ModelTable
    cluster: _ClusterTable
    batch: Batch
    layout: LayoutSpec | None = None
    schedule: ScheduleSpec = ScheduleSpec()
    train: TrainSpec = TrainSpec()
    data: DataSpec | None = None
    checkpoint: CheckpointSpec = CheckpointSpec()


def load_job(path: Path | str) -> JobSpec:
    """The job of a file, every choice resolved and every number checked against the others."""
    path = Path(path)
    table, place = read_toml(path)
    return job_from_table(table, place, path)


def job_from_table(table: dict[str, Any], place: Place, path: Path | None = None) -> JobSpec:
    """The job of a table already read; `path` anchors relative names in it."""
    raw = load(_JobFile, table, place)
    base = path.parent if path else Path()
    model, cluster = raw.model, raw.cluster
    job = JobSpec(
        ModelChoice(
            _find_model(model.name, base, place),
            model.sequence_length,
            base / model.name if model.name.endswith(".json") else None,
        ),
        ClusterChoice(
            _find_cluster(cluster.name, base, place),
            cluster.devices,
            base / cluster.name if cluster.name.endswith(".toml") else None,
        ),
        raw.batch,
        raw.layout,
        raw.schedule,
        path,
        raw.train,
        raw.data,
        raw.checkpoint,
    )
    check_job(job, place)
    return job


def layers_per_stage(layout: LayoutSpec, model: ModelSpec) -> tuple[int, ...]:
    """Layers of each virtual stage. Equal: where it does not divide, the first get one more."""
    if isinstance(layout.layers, tuple):
        return layout.layers
    if layout.layers == "balanced":
        raise SpecError(
            'a "balanced" split needs costs', place="[layout] layers", fix="use cost.balance"
        )
    each, more = divmod(model.layers, layout.stages)
    return tuple(each + (stage < more) for stage in range(layout.stages))


def check_job(job: JobSpec, place: Place | None = None) -> None:
    """One SpecError for the first number that does not agree with the others."""
    place = place or Place(_file(job.path))
    job.cluster.members()  # more devices than exist
    model = job.model.spec
    if model.position == "learned" and job.model.sequence_length > model.max_positions:
        raise SpecError(
            f"{model.name} has {model.max_positions} learned positions",
            place=str(place.at("model").at("sequence_length")),
            fix=f"use at most {model.max_positions}",
        )
    for rate_of in {device.kind for device in job.cluster.members()}:
        try:
            rate_of.rate(job.schedule.dtype)
        except SpecError as error:
            at = str(place.at("schedule").at("dtype"))
            raise SpecError(error.what, place=at, fix=error.fix) from None
    smallest = min(device.kind.memory.capacity_bytes for device in job.cluster.members())
    if job.budget_bytes > smallest:
        raise SpecError(
            f"the budget of {job.budget_bytes:,} bytes is more than the {smallest:,} bytes that "
            f"the job's smallest device has",
            place=str(place.at("schedule").at("memory_budget")),
            fix=f'use at most "{format_bytes(smallest)}"',
        )
    if job.layout is not None:
        _check_layout(job, job.layout, place.at("layout"), place)


def _check_layout(job: JobSpec, layout: LayoutSpec, here: Place, root: Place) -> None:
    model, asked = job.model.spec, job.cluster.devices
    if layout.devices != asked:
        other = layout.pipeline * layout.tensor
        degree = max(1, round(asked / other))
        fix = f"set cluster.devices = {layout.devices}"
        fix += f", or data = {degree}" if other * degree == asked else ""
        raise SpecError(
            f"pipeline {layout.pipeline} x data {layout.data} x tensor {layout.tensor} = "
            f"{layout.devices} devices, but the job has {asked}",
            place=str(here),
            fix=fix,
        )
    for what, count in (("heads", model.heads), ("kv_heads", model.kv_heads)):
        if count % layout.tensor:
            degrees = [d for d in range(1, count + 1) if count % d == 0]
            near = min(degrees, key=lambda d: abs(d - layout.tensor))
            raise SpecError(
                f"{model.name} has {count} {what}, which {layout.tensor} ranks cannot share evenly",
                place=str(here.at("tensor")),
                fix=f"use tensor = {near}",
            )
    _check_sequence(job, layout, here.at("sequence_parallel"))
    _check_layers(layout, model, here.at("layers"))
    group = layout.data * job.batch.micro_batch
    if job.batch.sequences % group:
        near = max(group, round(job.batch.sequences / group) * group)
        raise SpecError(
            f"{job.batch.sequences} sequences do not divide into {layout.data} replicas x "
            f"micro-batches of {job.batch.micro_batch}",
            place=str(root.at("batch").at("sequences")),
            fix=f"use sequences = {near}",
        )


def _check_sequence(job: JobSpec, layout: LayoutSpec, here: Place) -> None:
    asked, length = job.schedule.sequence_parallel, job.model.sequence_length
    if asked is not None and asked != layout.sequence_parallel:
        raise SpecError(
            f"[schedule] says sequence_parallel = {str(asked).lower()}, and the layout says not",
            place=str(here),
            fix="leave it out in [schedule]: with a layout there is nothing to search",
        )
    if not layout.sequence_parallel:
        return
    if layout.tensor == 1:
        raise SpecError(
            "sequence parallelism divides a sequence among a tensor group, and tensor is 1",
            place=str(here),
            fix="leave sequence_parallel out, or use tensor = 2 or more",
        )
    if length % layout.tensor:
        raise SpecError(
            f"{length} tokens of a sequence do not divide among {layout.tensor} ranks",
            place=str(here),
            fix=f"use sequence_length = {-(-length // layout.tensor) * layout.tensor}, or leave "
            "sequence_parallel out",
        )


def _check_layers(layout: LayoutSpec, model: ModelSpec, here: Place) -> None:
    if not isinstance(layout.layers, tuple):
        if layout.stages > model.layers:
            raise SpecError(
                f"{layout.stages} stages for {model.layers} layers",
                place=str(here),
                fix=f"use at most {model.layers} stages",
            )
        return
    if len(layout.layers) != layout.stages:
        raise SpecError(
            f"{len(layout.layers)} numbers for {layout.stages} stages",
            place=str(here),
            fix=f"give one number for each of the {layout.stages} stages",
        )
    total = sum(layout.layers)
    if total != model.layers:
        off = model.layers - total
        raise SpecError(
            f"the stages add up to {total} layers, {model.name} has {model.layers}",
            place=str(here),
            fix=f"{'add' if off > 0 else 'remove'} {abs(off)}",
        )


def _find_model(name: str, base: Path, place: Place) -> ModelSpec:
    if name.endswith(".json"):
        return load_config(base / name)
    return _preset_at(model_preset, name, place.at("model").at("name"))


def _find_cluster(name: str, base: Path, place: Place) -> ClusterSpec:
    if name.endswith(".toml"):
        return load_cluster(base / name)
    return _preset_at(cluster_preset, name, place.at("cluster").at("name"))


def _preset_at(find: Any, name: str, place: Place) -> Any:
    try:
        return find(name)
    except SpecError as error:
        raise SpecError(error.what, place=str(place), fix=error.fix) from None


def _file(path: Path | None) -> str:
    return str(path) if path else "job"
