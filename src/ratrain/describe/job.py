"""What to train on what: the job file ties model, cluster, batch, layout and schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ratrain.describe.amounts import (
    Count,
    Devices,
    FileName,
    Name,
    Period,
    Sequences,
    SizeBytes,
    Tokens,
)
from ratrain.describe.backends import Backend, backend_named
from ratrain.describe.cluster import ClusterSpec, Device, DeviceKind
from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.describe.overrides import with_overrides
from ratrain.describe.presets import cluster_preset, load_cluster, model_preset
from ratrain.describe.strict import Rule, load_parts, nearest
from ratrain.describe.train import CheckpointSpec, DataSpec, TrainSpec
from ratrain.describe.units import counted, format_bytes
from ratrain.errors import SpecError
from ratrain.readers.faults import Faults
from ratrain.readers.files import exists, is_folder, nearest_file
from ratrain.readers.place import Place
from ratrain.readers.toml import read_toml

WireType = Literal["fp32", "bf16", "fp16"]
"""In what tensors are sent."""


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
    """The cluster, and how many of its devices the job uses."""

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

    sequences: Sequences
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
    layers: tuple[Annotated[int, Rule(low=0, high=10_000)], ...] | Literal["equal", "balanced"] = (
        "equal"
    )
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
    `recovery_buffer`: units recovered at once. `sequence_parallel`: what a search may choose;
    default: either. `skeleton` and `passes` replace the strategy's own; `backend` is what executes
    the program. `average_every`: replicas update alone and average their weights every that many
    steps, which changes what training means; left out: they share every gradient. `collective`: by
    which algorithm replicas reduce and gather (`cost.algorithms`); "auto": the fastest one for each
    unit in its place; left out: the backend's own. `gradient_dtype`: in which the gradients of a
    step's micro-batches add up; fp32, or `dtype` itself, for half of the memory. `gradient_wire`,
    `boundary_wire`: in which gradients, and activations between stages and their gradients, are
    sent; left out: in `dtype`. `gradient_bucket_bytes`: gradients leave in buckets of this size
    while backward makes them, and are never whole; left out: whole, unless nothing else fits."""

    name: Name = "ratrain"
    without: tuple[Name, ...] = ()
    skeleton: FileName | None = None  # a name, or the path of a CSV file
    passes: tuple[Name, ...] | None = None
    backend: Name = "torch"
    average_every: Period | None = None
    memory_budget_bytes: SizeBytes | None = None
    recovery_buffer: Count = 2
    gradient_accumulation: Literal["sharded", "local", "auto"] = "auto"
    recovery: Literal["auto", "keep-all", "selective", "exempt-last", "everywhere"] = "auto"
    recover_heads: bool | None = None
    sharding: Annotated[int, Rule(low=0, high=3)] | None = None
    sequence_parallel: bool | None = None
    collective: Name | None = None
    dtype: Name = "fp16"
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    gradient_wire: WireType | None = None
    boundary_wire: WireType | None = None
    gradient_bucket_bytes: SizeBytes | None = None

    @property
    def gradients_travel_in(self) -> str:
        """The dtype in which gradients are sent."""
        return self.gradient_wire or self.dtype

    @property
    def boundaries_travel_in(self) -> str:
        """The dtype in which activations between stages, and their gradients, are sent."""
        return self.boundary_wire or self.dtype


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
    def backend(self) -> Backend:
        """What executes the job's program."""
        return backend_named(self.schedule.backend, f"{_file(self.path)} [schedule] backend")

    @property
    def bucket_bytes(self) -> int | None:
        """The pieces in which an unreduced gradient leaves; None: whole."""
        asked = self.schedule.gradient_bucket_bytes
        return self.backend.bucket_bytes if asked is None else asked

    @property
    def backward_sends(self) -> bool:
        """Whether backward fills buckets that leave beside it."""
        return self.schedule.gradient_bucket_bytes is not None

    @property
    def collective(self) -> str:
        """By which algorithm replicas reduce and gather."""
        return self.schedule.collective or self.backend.collective

    @property
    def awaits_overflow(self) -> bool:
        """Whether updates wait until no gradient of the step is known to have overflowed."""
        checks = self.schedule.dtype == "fp16" and self.backend.checks_overflow
        return checks and self.train.overflow == "step"

    def budget_of(self, kind: DeviceKind) -> int:
        """The memory budget of a device of a kind: its capacity, or the job's if that is less."""
        capacity = kind.memory.capacity_bytes
        asked = self.schedule.memory_budget_bytes
        return capacity if asked is None else min(capacity, asked)

    @property
    def budgets(self) -> tuple[int, ...]:
        """The memory budgets of the job's devices, each once, the largest first."""
        return tuple(
            sorted({self.budget_of(device.kind) for device in self.cluster.members()}, reverse=True)
        )

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica in one step."""
        if self.layout is None:
            raise SpecError("the job has no layout", place=_file(self.path), fix="add [layout]")
        return self.batch.sequences // (self.layout.data * self.batch.micro_batch)


@dataclass(frozen=True)
class _ModelTable:
    name: FileName
    sequence_length: Tokens


@dataclass(frozen=True)
class _ClusterTable:
    name: FileName
    devices: Devices


@dataclass(frozen=True)
class JobFile:
    """A job file, table by table."""

    model: _ModelTable
    cluster: _ClusterTable
    batch: Batch
    layout: LayoutSpec | None = None
    schedule: ScheduleSpec = ScheduleSpec()
    train: TrainSpec = TrainSpec()
    data: DataSpec | None = None
    checkpoint: CheckpointSpec = CheckpointSpec()


def load_job(path: Path | str, overrides: Sequence[str] = ()) -> JobSpec:
    """The job of a file, every choice resolved and every number checked against the others.
    `overrides`: values in place of the file's, as `--set` has them (see overrides.py)."""
    path = Path(path)
    return job_from_table(*_read_job(path, overrides), path)


def load_job_to_plan(path: Path | str, overrides: Sequence[str] = ()) -> JobSpec:
    """The job of a file without its [layout], which must be one but need not suit the rest: another
    is looked for."""
    path = Path(path)
    return job_from_table(*_read_job(path, overrides), path, keeps_layout=False)


def _read_job(path: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], Place]:
    """A job file's table with the overrides in it, and the place of its root."""
    _require_job_file(path)
    return with_overrides(*read_toml(path), overrides)


def _require_job_file(path: Path) -> None:
    """Refuses a run's folder and a plan file by name: both are often given in a job's place."""
    if is_folder(path):
        raise SpecError(
            "it is a folder, not a job file",
            place=str(path),
            fix=f"give a .toml file; for a run: `ratrain report {path}`, or "
            f"`ratrain train --resume --run {path}`",
        )
    if path.suffix == ".json":
        raise SpecError(
            "it is JSON, as a plan is, and not a job (.toml)",
            place=str(path),
            fix=f"see a plan with `ratrain explain {path}`, or train it with "
            f"`ratrain train JOB --plan {path}`",
        )


def job_from_table(
    table: dict[str, Any], place: Place, path: Path | None = None, *, keeps_layout: bool = True
) -> JobSpec:
    """The job of a table already read; `path` anchors relative names in it."""
    faults = Faults()
    parts = load_parts(JobFile, table, place, faults)
    base = path.parent if path else Path()
    with faults:
        if "model" in parts:
            parts["model"] = _model_choice(parts.pop("model"), base, place)
    with faults:
        if "cluster" in parts:
            parts["cluster"] = _cluster_choice(parts.pop("cluster"), base, place)
    checked = {"model", "cluster", "batch"} | {"layout", "schedule"} & table.keys()
    if not checked <= parts.keys():
        faults.raise_all()
    # A [train] that is wrong has its defaults here, so that the rest is checked all the same.
    parts["layout"] = parts.get("layout") if keeps_layout else None
    parts.setdefault("schedule", ScheduleSpec())
    job = JobSpec(**parts, path=path)
    with faults:
        check_job(job, place)
    faults.raise_all()
    return job


def _model_choice(table: _ModelTable, base: Path, place: Place) -> ModelChoice:
    file = base / table.name if table.name.endswith(".json") else None
    _require_there(file, place.at("model", "name"))
    return ModelChoice(_find_model(table.name, base, place), table.sequence_length, file)


def _cluster_choice(table: _ClusterTable, base: Path, place: Place) -> ClusterChoice:
    file = base / table.name if table.name.endswith(".toml") else None
    _require_there(file, place.at("cluster", "name"))
    return ClusterChoice(_find_cluster(table.name, base, place), table.devices, file)


def _require_there(file: Path | None, place: Place) -> None:
    """A SpecError at the key that names a file, where there is none."""
    if file is not None and not exists(file):
        raise SpecError(f"there is no file {file}", place=str(place), fix=nearest_file(file))


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
    """One SpecError with every number that does not agree with the others."""
    place = place or Place(_file(job.path))
    job.cluster.members()  # more devices than exist
    faults = Faults()
    checks = (_check_positions, _check_dtype, _check_wires, _check_budget, _check_layout)
    for check in checks:
        with faults:
            check(job, place)
    faults.raise_all()


def _check_positions(job: JobSpec, place: Place) -> None:
    model = job.model.spec
    if model.position == "learned" and job.model.sequence_length > model.max_positions:
        raise SpecError(
            f"{model.name} has {model.max_positions} learned positions",
            place=str(place.at("model").at("sequence_length")),
            fix=f"use at most {model.max_positions}",
        )


def _check_dtype(job: JobSpec, place: Place) -> None:
    here = place.at("schedule")
    backend = backend_named(job.schedule.backend, str(here.at("backend")))
    for kind in {device.kind for device in job.cluster.members()}:
        if job.schedule.dtype in kind.dtypes:
            continue
        try:
            kind.rate(job.schedule.dtype)
        except SpecError as error:
            raise SpecError(error.what, place=str(here.at("dtype")), fix=error.fix) from None
    if job.schedule.dtype not in backend.dtypes:
        raise SpecError(
            f"the backend {backend.name} has no {job.schedule.dtype}",
            place=str(here.at("dtype")),
            fix=nearest(job.schedule.dtype, backend.dtypes),
        )
    if job.schedule.gradient_dtype not in ("fp32", job.schedule.dtype):
        raise SpecError(
            f"gradients cannot be summed in {job.schedule.gradient_dtype} when everything else "
            f"is in "
            f"{job.schedule.dtype}",
            place=str(here.at("gradient_dtype")),
            fix=f'use "fp32" or "{job.schedule.dtype}"',
        )


def _check_wires(job: JobSpec, place: Place) -> None:
    """A tensor is sent in the job's dtype, or an fp32 one in bf16: fp16 has another range, for
    which gradients would have to be scaled, and a wider type would only send zeros besides."""
    here, schedule, faults = place.at("schedule"), job.schedule, Faults()
    dtype = schedule.dtype
    allowed = (dtype, "bf16") if dtype == "fp32" else (dtype,)
    for key, wire in (
        ("gradient_wire", schedule.gradient_wire),
        ("boundary_wire", schedule.boundary_wire),
    ):
        with faults:
            if wire is not None and wire not in allowed:
                raise SpecError(
                    f"tensors of {dtype} cannot be sent in {wire}",
                    place=str(here.at(key)),
                    fix=f"use {' or '.join(allowed)}, or leave it out",
                )
    with faults:
        if schedule.average_every is not None and schedule.gradients_travel_in != dtype:
            raise SpecError(
                "replicas that average their weights send no gradients, and weights travel in fp32",
                place=str(here.at("gradient_wire")),
                fix="leave gradient_wire out, or average_every",
            )
    faults.raise_all()


def _check_budget(job: JobSpec, place: Place) -> None:
    largest = max(device.kind.memory.capacity_bytes for device in job.cluster.members())
    asked = job.schedule.memory_budget_bytes
    if asked is not None and asked > largest:
        raise SpecError(
            f"the budget of {asked:,} bytes is more than the {largest:,} bytes that the job's "
            "largest device has",
            place=str(place.at("schedule").at("memory_budget")),
            fix=f'use at most "{format_bytes(largest)}"',
        )


def _check_layout(job: JobSpec, place: Place) -> None:
    if job.layout is None:
        return
    layout, here, model = job.layout, place.at("layout"), job.model.spec
    faults = Faults()
    with faults:
        _check_degrees(job, layout, here)
    with faults:
        check_heads(layout, model, here)
    with faults:
        check_sequence(job, layout, here.at("sequence_parallel"))
    with faults:
        check_layers(layout, model, here.at("layers"))
    with faults:
        _check_batch(job, layout, place)
    faults.raise_all()


def _check_degrees(job: JobSpec, layout: LayoutSpec, here: Place) -> None:
    asked = job.cluster.devices
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


def check_heads(layout: LayoutSpec, model: ModelSpec, here: Place) -> None:
    """Refuses a tensor degree that does not divide attention heads."""
    for what, count in (("heads", model.heads), ("kv_heads", model.kv_heads)):
        if count % layout.tensor:
            degrees = [d for d in range(1, count + 1) if count % d == 0]
            near = min(degrees, key=lambda d: abs(d - layout.tensor))
            raise SpecError(
                f"{model.name} has {count} {what}, which {layout.tensor} ranks cannot share evenly",
                place=str(here.at("tensor")),
                fix=f"use tensor = {near}",
            )


def _check_batch(job: JobSpec, layout: LayoutSpec, place: Place) -> None:
    group = layout.data * job.batch.micro_batch
    if job.batch.sequences % group:
        near = max(group, round(job.batch.sequences / group) * group)
        raise SpecError(
            f"{job.batch.sequences} sequences do not divide into {layout.data} replicas x "
            f"micro-batches of {job.batch.micro_batch}",
            place=str(place.at("batch").at("sequences")),
            fix=f"use sequences = {near}",
        )


def check_sequence(job: JobSpec, layout: LayoutSpec, here: Place) -> None:
    """Refuses sequence parallelism that a layout cannot have."""
    asked, length = job.schedule.sequence_parallel, job.model.sequence_length
    if asked is not None and asked != layout.sequence_parallel:
        raise SpecError(
            f"[schedule] says sequence_parallel = {str(asked).lower()}, but the layout does not",
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


def check_layers(layout: LayoutSpec, model: ModelSpec, here: Place) -> None:
    """Refuses a cut that does not hold the whole model, or leaves a stage empty."""
    if not isinstance(layout.layers, tuple):
        if layout.stages > model.layers:
            raise SpecError(
                f"{counted(layout.stages, 'stage')} for {counted(model.layers, 'layer')}",
                place=str(here),
                fix=f"use at most {counted(model.layers, 'stage')}",
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
    empty = next((stage for stage in range(1, layout.stages - 1) if not layout.layers[stage]), None)
    if empty is not None:
        raise SpecError(
            f"stage {empty} holds nothing: the embedding is on the first stage, the head on the "
            "last",
            place=str(here),
            fix="give it a layer, or use one stage fewer",
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
