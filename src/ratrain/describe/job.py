"""What to train on what: the job file ties model, cluster, batch, layout and schedule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from ratrain.describe.amounts import (
    Count,
    FileName,
    Name,
    Period,
    Sequences,
    SizeBytes,
    Turn,
)
from ratrain.describe.average_wires import AVERAGE_WIRES, AskedWire, WireForm
from ratrain.describe.backends import Backend, backend_named
from ratrain.describe.cluster import ClusterSpec, Device
from ratrain.describe.device import DeviceKind
from ratrain.describe.model import ModelSpec
from ratrain.describe.runs_on import AS_CLUSTER, is_gpu
from ratrain.describe.staging import as_sent
from ratrain.describe.strict import FrozenMap, Rule
from ratrain.describe.train import CheckpointSpec, DataSpec, TrainSpec
from ratrain.errors import SpecError

WireType = Literal["fp32", "bf16", "fp16"]
"""In what tensors are sent."""
BESIDE = ("fp32", "bf16", "fp16")
"""What kinds may compute in beside a dtype of 16 bits; one without that does in the first it has.
"""
_NO_DTYPES = FrozenMap[str]()
_NO_TURNS = FrozenMap[int]()


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
        return self._members

    @cached_property
    def kinds(self) -> tuple[DeviceKind, ...]:
        """The kinds of the devices that the job takes, in the cluster's order."""
        return tuple({device.kind.name: device.kind for device in self._members}.values())

    @cached_property
    def _members(self) -> tuple[Device, ...]:
        """Asked for again and again; there may be 100,000."""
        return self.spec.devices(self.devices)


@dataclass(frozen=True)
class Batch:
    """Sequences in a step over all replicas, and in one micro-batch of one replica."""

    sequences: Sequences  # in a step, over all replicas
    micro_batch: Count = 1  # sequences of one micro-batch of one replica


@dataclass(frozen=True)
class LayoutSpec:
    """Degrees of each axis; left out: the planner finds them."""

    pipeline: Count  # stages that follow each other on ranks of their own
    data: Count = 1  # replicas
    tensor: Count = 1  # ranks that divide each unit's matrices
    virtual: Count = 1  # stages that each rank holds
    # one number for each virtual stage in order, or how they are divided
    layers: tuple[Annotated[int, Rule(low=0, high=10_000)], ...] | Literal["equal", "balanced"] = (
        "equal"
    )
    # outside of the products that a tensor group divides, its ranks divide the sequence (arXiv
    # 2205.05198)
    sequence_parallel: bool = False
    # micro-batches that each stage computes at once; left out: one
    joined: tuple[Annotated[int, Rule(low=1, high=10_000)], ...] = ()

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
    """The strategy and its options; which names exist is the program room's to say."""

    # a named combination of order and passes: `ratrain schedules JOB` lists them
    name: Name = "ratrain"
    without: tuple[Name, ...] = ()  # passes of it that are left out
    # the compute order, in place of the strategy's: a name, or the path of a CSV file
    skeleton: FileName | None = None
    passes: tuple[Name, ...] | None = None  # in place of the strategy's own
    # what executes the program; after "described" and a plus, what such a framework does
    backend: Name = "torch"
    # replicas update alone and average their weights every so many steps, which changes what
    # training means; left out: they share every gradient
    average_every: Period | None = None
    # which weights, and when: "local-sgd" all behind the last update of so many steps, with the
    # optimizer's states; each unit in a step of its own, its weights alone: "dreamddp" behind its
    # last backward, "early-start" a copy, from the beginning of the step on
    averages: Literal["local-sgd", "dreamddp", "early-start"] = "local-sgd"
    # who trains apart: each replica, or each of the cluster file's sites, whose replicas add up
    # their gradients in every step
    average_between: Literal["replicas", "sites"] = "replicas"
    # by a unit's name the step of a period in which it is averaged; left out: as costs least
    average_turns: FrozenMap[Turn] = _NO_TURNS
    # in which averages are sent: fp32; or with error feedback in bf16, or as integers that share a
    # scale by 64, as what replicas learnt since the last outer step ([train] outer_learning_rate;
    # 1 without momentum makes it a mean)
    average_wire: AskedWire = "fp32"
    # leaves average_every to the planner, and the wire where that is "auto": the shortest period
    # that fits its plan, then the widest wire, of which at most this part of a step waits
    average_exposed: Annotated[float, Rule(low=0, high=1)] | None = None
    memory_budget_bytes: SizeBytes | None = None  # of each rank; left out: its device's first tier
    recovery_buffer: Count = 2  # layers recomputed at once
    # whether a rank adds up its part of a gradient, or all of it
    gradient_accumulation: Literal["sharded", "local", "auto"] = "auto"
    # activation recomputation. "auto": as little as fits; "selective": attention's scores alone,
    # in any strategy
    # "spill": none, what forward saves waits in the `activation_tier`
    recovery: Literal["auto", "keep-all", "selective", "exempt-last", "everywhere", "spill"] = (
        "auto"
    )
    # whether recovery at backward computes the head again; left out: as the strategy says
    recover_heads: bool | None = None
    # stage of ZeRO: 1 the optimizer, 2 gradients too, 3 also weights; left out: the strategy's
    sharding: Annotated[int, Rule(low=0, high=3)] | None = None
    sequence_parallel: bool | None = None  # what a search may choose; left out: either
    # "identical" holds a search to replicas as a layout has them; "any", or left out: they may
    # differ
    replicas: Literal["any", "identical"] | None = None
    # "stored" keeps attention's scores for backward, which makes them again otherwise
    attention: Literal["flash", "stored"] = "flash"
    # by which algorithm replicas reduce and gather; "auto": the fastest for each unit in its
    # place; left out: the backend's own
    collective: Name | None = None
    dtype: Name = "fp16"  # in which ranks compute and send: fp32, bf16 or fp16
    # by the name of a device kind the dtype that it computes in, where that is not `dtype`; beside
    # a `dtype` of 16 bits, in which all send
    dtypes: FrozenMap[Name] = _NO_DTYPES
    # in which the gradients of a step's micro-batches add up: fp32, or `dtype` itself (of a kind
    # that computes in other 16 bits, those), for half of the memory
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    gradient_wire: WireType | None = None  # in which gradients are sent; left out: `dtype`
    # in which activations between stages, and their gradients, are sent; left out: `dtype`
    boundary_wire: WireType | None = None
    # each rank adds what rounding took away from the gradient that it last sent to the next one
    error_feedback: bool = False
    # of the optimizer states that each rank owns alone, another keeps the same in its host's
    # memory, so that no step is lost with a rank
    mirror: bool = False
    # gradients are sent in buckets of this size while backward makes them, and are never whole;
    # left out: whole, unless nothing else fits
    gradient_bucket_bytes: SizeBytes | None = None
    # where master weights and optimizer states wait for their update: in host memory, or in files
    # on disk; left out: on the device, unless nothing else fits
    optimizer_tier: Literal["device", "host", "disk"] | None = None
    # where the weights that compute reads wait for each use, beside an `optimizer_tier`; left out:
    # on the device, unless nothing else fits
    view_tier: Literal["device", "host", "disk"] | None = None
    # where a layer's gradient, which must be whole, waits for the layer's next micro-batch where
    # other layers come between, and with clipping or fp16 for the norm of all gradients
    gradient_tier: Literal["device", "host", "disk"] | None = None
    # where activations wait for backward: the inputs of stages that recompute, and all that stages
    # in mode spill save; left out: on the device, unless nothing else fits
    activation_tier: Literal["device", "host", "disk"] | None = None

    @property
    def gradients_travel_in(self) -> str:
        """The dtype in which gradients are sent."""
        return self.gradient_wire or self.dtype

    @property
    def trains_apart(self) -> bool:
        """Whether replicas or sites average their weights, perhaps as often as the planner says."""
        return self.average_every is not None or self.leaves_period_open

    @property
    def leaves_period_open(self) -> bool:
        """Whether the planner is to say how often they do."""
        return self.average_every is None and self.average_exposed is not None

    @property
    def averages_by_turns(self) -> bool:
        """Whether each unit is averaged in a step of its own: then replicas are never alike."""
        return self.average_every is not None and self.averages != "local-sgd"

    @property
    def gradients_add_up_in(self) -> str:
        """The dtype in which a rank's gradients add up."""
        return self.dtype if self.gradient_dtype != "fp32" else "fp32"

    @property
    def boundaries_travel_in(self) -> str:
        """The dtype in which activations between stages, and their gradients, are sent."""
        return self.boundary_wire or self.dtype


@dataclass(frozen=True)
class JobSpec:
    """A whole job. `layout` is None where it is left to the planner. `kind`: the device kind that
    sees it (`of_kind`); None: it is the job of all. `unused`: sentences on keys of its file that
    change nothing. `left_layout`: its file's, where that is for devices that it does without."""

    model: ModelChoice
    cluster: ClusterChoice
    batch: Batch
    layout: LayoutSpec | None
    schedule: ScheduleSpec
    path: Path | None = None
    train: TrainSpec = TrainSpec()
    data: DataSpec | None = None
    checkpoint: CheckpointSpec = CheckpointSpec()
    kind: str | None = None
    unused: tuple[str, ...] = field(default=(), compare=False)
    left_layout: LayoutSpec | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """The model is trained, and links are seen, as [train] says. What its router chooses is not
        known before, so nothing of experts is recorded, nor what others' modules do."""
        spec, train = self.model.spec, self.train
        balance = spec.balance_loss if train.balance_loss is None else train.balance_loss
        trained = replace(spec, tuning=train.tuning, balance_loss=balance)
        if trained != spec:
            object.__setattr__(self, "model", replace(self.model, spec=trained))
        cluster = as_sent(self.cluster.spec, train)
        if cluster is not self.cluster.spec:
            object.__setattr__(self, "cluster", replace(self.cluster, spec=cluster))
        if (spec.experts or spec.own or train.dropout) and train.graphs:
            object.__setattr__(self, "train", replace(train, graphs=False))

    @cached_property
    def dtypes(self) -> FrozenMap[str]:
        """By the name of each of its device kinds that computes in another dtype than the job's,
        that dtype."""
        schedule = self.schedule
        named = {kind.name: schedule.dtypes.get(kind.name) for kind in self.cluster.kinds}
        return FrozenMap({k: d for k, d in named.items() if d not in (None, schedule.dtype)})

    @property
    def unlike(self) -> bool:
        """Whether its devices compute in different dtypes, or in another than tensors are sent."""
        return self.kind is not None or bool(self.dtypes)

    def dtype_of(self, kind: DeviceKind) -> str:
        """The dtype that devices of a kind compute in."""
        return self.dtypes.get(kind.name, self.schedule.dtype)

    @cached_property
    def computed_in(self) -> frozenset[str]:
        """The dtypes that its devices compute in."""
        return frozenset(map(self.dtype_of, self.cluster.kinds))

    @cached_property
    def runs_on(self) -> str:
        """What its ranks compute on; of a mixed job, those whose ops take more memory beside their
        states: GPUs, then CPUs in 16 bits."""
        if self.train.device != AS_CLUSTER:
            return self.train.device
        kinds = {kind.runs_on for kind in self.cluster.kinds}
        return min(kinds, key=lambda name: (not is_gpu(name), name != "cpu", name))

    def of_kind(self, kind: DeviceKind) -> JobSpec:
        """The job as devices of a kind see it: in the dtype that they compute in, beside others in
        theirs. Tensors are sent in the job's own dtype."""
        if self.kind is not None or not self.unlike:
            return self
        schedule = replace(
            self.schedule,
            dtype=self.dtype_of(kind),
            dtypes=FrozenMap({other.name: self.dtype_of(other) for other in self.cluster.kinds}),
            gradient_wire=self.schedule.gradients_travel_in,
            boundary_wire=self.schedule.boundaries_travel_in,
        )
        return replace(self, schedule=schedule, kind=kind.name)

    @property
    def backend(self) -> Backend:
        """What executes the job's program."""
        return backend_named(self.schedule.backend, f"{file_name(self.path)} [schedule] backend")

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
    def optimizer_tier(self) -> str:
        """The memory tier in which optimizer states wait; "": the device's own."""
        return _below_device(self.schedule.optimizer_tier)

    @property
    def view_tier(self) -> str:
        """The same of the weights that compute reads."""
        return _below_device(self.schedule.view_tier)

    @property
    def gradient_tier(self) -> str:
        """The same of gradients that add up."""
        return _below_device(self.schedule.gradient_tier)

    @property
    def activation_tier(self) -> str:
        """The same of what waits for backward."""
        return _below_device(self.schedule.activation_tier)

    @property
    def tiers(self) -> frozenset[str]:
        """The memory tiers below the device in which the job has anything."""
        return self.tiers_moved | frozenset(["host"] if self.schedule.mirror else [])

    @property
    def tiers_moved(self) -> frozenset[str]:
        """Those in which anything waits, and comes back."""
        every = {self.optimizer_tier, self.view_tier, self.gradient_tier, self.activation_tier}
        return frozenset(every - {""})

    @property
    def collective(self) -> str:
        """By which algorithm replicas reduce and gather."""
        return self.schedule.collective or self.backend.collective

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites between which weights are averaged; none where they are not."""
        schedule = self.schedule
        if schedule.average_every is None or schedule.average_between == "replicas":
            return ()
        return tuple(dict.fromkeys(device.site for device in self.cluster.members()))

    def site_of(self, device: Device) -> int | None:
        """The number of a device's site, where sites average weights."""
        return self.sites.index(device.site) if self.sites else None

    def peers(self, data: int) -> int:
        """How many of so many replicas add up a gradient."""
        if self.schedule.average_every is None:
            return data
        return data // len(self.sites) if self.sites else 1

    @property
    def averaged_bytes(self) -> float:
        """What replicas that average a parameter send of it: by turns its weight alone, else its
        states too."""
        if not self.schedule.averages_by_turns:
            return self.train.rule.saved_bytes
        return self.averages_form.bytes_per_param

    @property
    def averages_form(self) -> WireForm:
        """In what averages by turns are sent."""
        return AVERAGE_WIRES[self.schedule.average_wire]

    @property
    def awaits_overflow(self) -> bool:
        """Whether updates wait until no gradient of the step is known to have overflowed."""
        return self._overflows and self.train.overflow == "step"

    @property
    def updates_wait(self) -> bool:
        """Whether no update of a step begins before every gradient is there."""
        return self.train.clip_norm is not None or self.awaits_overflow or self.schedule.mirror

    @property
    def units_decide(self) -> bool:
        """Whether each unit decides by itself whether its gradient has overflowed."""
        return self._overflows and self.train.overflow == "unit"

    @property
    def residuals(self) -> int:
        """How many residuals ranks keep of each gradient that they send: with error feedback one,
        and where a step may be skipped, the one that it would leave besides; else none."""
        if not self.schedule.error_feedback:
            return 0
        return 2 if self._overflows or self.train.clip_norm is not None else 1

    @property
    def _overflows(self) -> bool:
        """Whether a gradient may overflow, and is looked at for that: where a device computes in
        fp16, or all send in it. Then it holds for all devices, since losses are scaled on all."""
        in_fp16 = "fp16" in {*self.computed_in, self.schedule.gradients_travel_in}
        return in_fp16 and self.backend.checks_overflow

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
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch.sequences * self.model.sequence_length

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica in one step."""
        if self.layout is None:
            raise SpecError("the job has no layout", place=file_name(self.path), fix="add [layout]")
        return self.batch.sequences // (self.layout.data * self.batch.micro_batch)


def dtypes_of_kinds(cluster: ClusterChoice, schedule: ScheduleSpec) -> FrozenMap[str]:
    """What device kinds compute in besides the job's dtype: as the job says; and for a kind without
    that dtype, beside kinds that have it, fp32 or where it has not that either other 16 bits."""
    if not any(schedule.dtype in kind.dtypes for kind in cluster.kinds):
        return schedule.dtypes
    instead: dict[str, str] = {}
    for kind in cluster.kinds:
        had = [dtype for dtype in BESIDE if dtype in kind.dtypes]
        if had and schedule.dtype not in kind.dtypes and schedule.dtype != "fp32":
            instead[kind.name] = had[0]
    return FrozenMap({**instead, **schedule.dtypes})


def _below_device(asked: str | None) -> str:
    return "" if asked in (None, "device") else asked


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


def file_name(path: Path | None) -> str:
    """What messages call a job's file."""
    return str(path) if path else "job"
