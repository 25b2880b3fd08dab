"""The plan file: what a search found, as JSON that people read and edit.

    replicas -> stages -> devices, tensor degree, layers, micro-batch, recovery, sharding
                       -> members -> devices, tensor degree, micro-batches served, recovery

Replicas that behave alike share an entry with a `count`. `devices` counts a cluster's devices
in its own order: "0-15, 32" are sixteen and one more; member i of a stage's tensor groups holds
the i-th run of `tensor` devices. A stage that several members hold, each a device or a tensor group
of its own kind, lists them in place of its devices. Loaded strictly: a wrong key, or two numbers
that contradict each other, is one error with its place. `file.reading` makes a plan of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ratrain.describe.amounts import Count, Devices, FileName, Name, Period, Sequences, Tokens, Turn
from ratrain.describe.average_wires import AverageWire
from ratrain.describe.job import WireType
from ratrain.describe.optimizers import USUAL_OPTIMIZER
from ratrain.describe.program_keys import PROGRAM_KEYS, in_plan, said_by
from ratrain.describe.ranges import read_ranges, write_ranges
from ratrain.describe.strict import FrozenMap, Rule, load
from ratrain.describe.tuning import LoraSpec
from ratrain.errors import SpecError
from ratrain.plan.layout.placement import PlacedReplica, Served
from ratrain.plan.layout.plan import Plan
from ratrain.program.pipelining.fixed import file_of
from ratrain.readers.json import as_table, parse_json, read_json_table
from ratrain.readers.place import Place

FORMAT = "ratrain plan 1"
_NO_DTYPES = FrozenMap[str]()
_NO_TURNS = FrozenMap[int]()
Mode = Literal["none", "selective", "backward", "forward", "spill"]


ALL, NONE = "all", "none"
"""What a member may serve besides micro-batches that are named: every one, or none of them."""


@dataclass(frozen=True)
class PlanMember:
    """One of those that hold a stage together: a device, or a tensor group of one kind."""

    devices: str  # "0-1, 4": numbers in the cluster's order
    tensor: Count  # degree of its tensor group
    serves: Annotated[str, Rule(high=100_000)]  # micro-batches: "0-5, 8", "all" or "none"
    recovery: Mode = "none"  # activation recomputation


@dataclass(frozen=True, kw_only=True)
class PlanStage:
    """Consecutive layers on one group of devices, or on several members; embedding and head stand
    on the ends."""

    # of all replicas of its entry: "0-15, 32" counts them in the cluster's order
    devices: str | None = None
    tensor: Count | None = None  # each group of so many consecutive devices belongs to one replica
    layers: Annotated[int, Rule(low=0, high=10_000)]  # embedding and head stand on the ends
    micro_batch: Count  # sequences that it computes at once
    recovery: Mode | None = None  # activation recomputation
    sharding: Annotated[int, Rule(low=0, high=3)]  # stage of ZeRO, the same in all stages
    offload: Name | None = None  # the tier that activations or states wait in: cannot run yet
    members: tuple[PlanMember, ...] | None = None  # in place of devices, tensor and recovery

    def __post_init__(self) -> None:
        of_one = {"devices": self.devices, "tensor": self.tensor, "recovery": self.recovery}
        if self.members is None:
            missing = next((key for key, value in of_one.items() if value is None), None)
            if missing is not None:
                raise SpecError(
                    f'the key "{missing}" is missing',
                    place=missing,
                    fix=f'add "{missing}": {_SAMPLES[missing]}',
                )
            return
        unwanted = next((key for key, value in of_one.items() if value is not None), None)
        if unwanted is not None:
            raise SpecError(
                f"a stage that lists members has no {unwanted} of its own",
                place=unwanted,
                fix="leave it out: each member has its own",
            )
        if not self.members:
            raise SpecError(
                "no members", place="members", fix="list one, or write devices in its place"
            )

    @property
    def held_by(self) -> tuple[PlanMember, ...]:
        """Its members; the one that serves every micro-batch where it lists none."""
        if self.members is not None:
            return self.members
        assert self.devices is not None and self.tensor is not None and self.recovery is not None
        return (PlanMember(self.devices, self.tensor, ALL, self.recovery),)


_SAMPLES = {"devices": '"..."', "tensor": "1", "recovery": '"none"'}


@dataclass(frozen=True)
class PlanReplica:
    """`count` replicas that behave alike; each stage lists the devices of all of them.
    `micro_batches` are of the size of the stage whose `micro_batch` is the smallest: the others
    compute several of them at once."""

    count: Count  # replicas that behave alike
    micro_batches: Count  # of the size of the stage whose `micro_batch` is the smallest
    stages: tuple[PlanStage, ...]  # in order

    @property
    def micro_batch(self) -> int:
        """Sequences of one, on the stage of the smallest."""
        return min(stage.micro_batch for stage in self.stages)


@dataclass(frozen=True)
class PlanModel:
    name: FileName
    sequence_length: Tokens


@dataclass(frozen=True)
class PlanCluster:
    name: FileName
    devices: Devices


@dataclass(frozen=True)
class Expected:
    """What the planner expected; for people, and read by nothing."""

    step_time_s: Annotated[float, Rule(low=0, high=1e15)]
    bound_bytes: Annotated[int, Rule(low=0, high=1 << 53)]


@dataclass(frozen=True)
class PlanFile:
    """A plan file. `schedule` and `skeleton` name the strategy; the rest is what it left open."""

    format: Literal["ratrain plan 1"]
    model: PlanModel
    cluster: PlanCluster
    sequences: Sequences  # in a step, over all replicas
    dtype: Name  # in which ranks compute and send
    schedule: Name  # the strategy
    skeleton: FileName  # the compute order, or the path of a file with one
    without: tuple[Name, ...]  # passes of the strategy that are left out
    accumulation: Literal["local", "sharded"]
    recovery_buffer: Count  # layers recomputed at once
    # whether updates overlap with later backwards; must agree with `schedule` and `without`
    prefetch: bool
    # `count` x `micro_batches` x `micro_batch` of all of them is `sequences`
    replicas: tuple[PlanReplica, ...]
    memory_budget_bytes: Annotated[int, Rule("bytes", low=1)] | None = (
        None  # left out: all there is
    )
    backend: Name = "torch"
    passes: tuple[Name, ...] | None = None  # left out: the schedule's own
    average_every: Period | None = None
    averages: Literal["local-sgd", "dreamddp", "early-start"] = "local-sgd"
    average_between: Literal["replicas", "sites"] = "replicas"
    average_turns: FrozenMap[Turn] = _NO_TURNS  # left out: as costs least
    average_wire: AverageWire = "fp32"
    outer_learning_rate: Annotated[float, Rule(low=1e-12)] | None = None
    clip_norm: Annotated[float, Rule(low=1e-12)] | None = None
    overflow: Literal["step", "unit"] = "step"
    optimizer: Name = USUAL_OPTIMIZER
    freeze: tuple[Name, ...] = ()
    train_only: tuple[Name, ...] = ()
    lora: LoraSpec | None = None
    dropout: Annotated[float, Rule(low=0, high=1)] = 0.0
    recover_heads: bool | None = None
    sequence_parallel: bool = False
    attention: Literal["flash", "stored"] = "flash"
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    dtypes: FrozenMap[Name] = _NO_DTYPES  # of device kinds that compute in another
    gradient_wire: WireType | None = None  # left out: as dtype
    boundary_wire: WireType | None = None
    error_feedback: bool = False
    mirror: bool = False
    gradient_bucket_bytes: Annotated[int, Rule("bytes", low=1)] | None = None  # left out: whole
    # where optimizer states wait for their update; left out: on the device
    optimizer_tier: Literal["device", "host", "disk"] | None = None
    view_tier: Literal["device", "host", "disk"] | None = None  # the same of weights
    gradient_tier: Literal["device", "host", "disk"] | None = None  # of gradients that add up
    activation_tier: Literal["device", "host", "disk"] | None = None  # of what waits for backward
    collective: Name | None = None
    network: Literal["sockets", "direct"] = "sockets"
    predicted: Expected | None = None  # for people; nothing reads it


def load_plan(path: Path | str) -> PlanFile:
    """The plan of a file; whatever is wrong with it is one SpecError."""
    path = Path(path)
    if path.suffix == ".toml":
        raise SpecError(
            "it is TOML, as a job is, and not a plan (.json)",
            place=str(path),
            fix=f"write a plan with `ratrain plan {path} -o plan.json`",
        )
    return load(PlanFile, *read_json_table(path))


def parse_plan(text: str, file: str) -> PlanFile:
    """The plan of a text."""
    return load(PlanFile, *as_table(*parse_json(text, file)))


def is_uneven(plan: PlanFile) -> bool:
    """Whether stages list members, or differ in tensor degree or micro-batch, or replicas in
    anything: what no layout can say, of whichever devices."""
    stages = [stage for replica in plan.replicas for stage in replica.stages]
    degrees = {(stage.tensor, stage.micro_batch) for stage in stages}
    replicas = {
        (replica.micro_batches, tuple((s.layers, s.recovery) for s in replica.stages))
        for replica in plan.replicas
    }
    members = any(stage.members is not None for stage in stages)
    return members or len(degrees) > 1 or len(replicas) > 1


MICRO_BATCHES = "micro-batch", "micro-batches"


def placed_members(stage: PlanStage, here: Place) -> Iterator[tuple[PlanMember, Place]]:
    """The members of a stage, each with its place in the file; `here` is the stage's."""
    for number, member in enumerate(stage.held_by):
        yield member, here if stage.members is None else here.at("members").at(number)


def served_by_members(replica: PlanReplica, stage: PlanStage, here: Place) -> tuple[Served, ...]:
    """For each member of a stage what it serves. Refuses micro-batches that two members serve, or
    none; `here` is the stage's place."""
    server: dict[int, int] = {}
    shares: list[tuple[int, ...]] = []
    for number, (member, at) in enumerate(placed_members(stage, here)):
        where = str(at.at("serves"))
        share = _share(member.serves, where, replica.micro_batches)
        for micro_batch in share:
            if micro_batch in server:
                raise SpecError(
                    f"micro-batch {micro_batch} is served by member {server[micro_batch]} already",
                    place=where,
                    fix="let one member serve it",
                )
            server[micro_batch] = number
        shares.append(share)
    left = [number for number in range(replica.micro_batches) if number not in server]
    if left:
        raise SpecError(
            f"no member serves micro-batch{'es' * (len(left) > 1)} {write_ranges(left)}",
            place=str(here.at("members")),
            fix="add what is missing to the serves of a member",
        )
    return (None,) if len(shares) == 1 else tuple(shares)


def _share(text: str, where: str, micro_batches: int) -> tuple[int, ...]:
    """The micro-batches that a text names, ascending; one that it names twice is in it twice."""
    if text == ALL:
        return tuple(range(micro_batches))
    if text == NONE:
        return ()
    return tuple(sorted(read_ranges(text, where, micro_batches, MICRO_BATCHES)))


def share_text(served: Served) -> str:
    """A share as a plan file has it."""
    if served is None:
        return ALL
    return write_ranges(served) if served else NONE


# ---- written ------------------------------------------------------------------------------


def file_of_plan(plan: Plan, predicted: Expected | None = None) -> PlanFile:
    """The plan file of a plan, with all that its job says."""
    job = plan.job
    carried: dict[str, Any] = {in_plan(key): key.of(job) for key in PROGRAM_KEYS}
    return PlanFile(
        format=FORMAT,
        model=PlanModel(job.model.name, job.model.sequence_length),
        cluster=PlanCluster(job.cluster.name, job.cluster.devices),
        sequences=job.batch.sequences,
        skeleton=file_of(plan.strategy.skeleton),
        accumulation="sharded" if plan.mode.sharded_gradients else "local",
        recovery_buffer=plan.buffer,
        prefetch=plan.strategy.prefetch,
        replicas=tuple(
            PlanReplica(
                len(replica.members),
                replica.micro_batches,
                tuple(_stage(plan, replica, number) for number in range(replica.layout.stages)),
            )
            for replica in plan.replicas
        ),
        sequence_parallel=plan.sequence_parallel,
        predicted=predicted,
        **carried,
    )


def _stage(plan: Plan, replica: PlacedReplica, number: int) -> PlanStage:
    members = [
        PlanMember(
            write_ranges([d.index for groups in replica.groups for d in groups[rank]]),
            replica.tensor[rank],
            share_text(replica.serves[rank]),
            mode.value,
        )
        for (stage, rank), mode in zip(replica.held, replica.recovery, strict=True)
        if stage == number
    ]
    only = members[0] if len(members) == 1 else None
    return PlanStage(
        devices=only and only.devices,
        tensor=only and only.tensor,
        layers=replica.layers[number],
        micro_batch=replica.micro_batch * replica.joined_of(replica.ranks_of(number)[0]),
        recovery=only and only.recovery,
        sharding=plan.mode.sharding,
        members=None if only else tuple(members),
    )


_ALWAYS = (
    *("format", "model", "cluster", "sequences", "skeleton"),
    *("accumulation", "recovery_buffer", "prefetch"),
)
"""Keys that every plan file says, in their order; then those of its job that it does not leave out.
"""


def write_plan(plan: PlanFile) -> str:
    """The plan's JSON: one line for each stage or member, so that it can be read and edited."""
    head: dict[str, Any] = {name: getattr(plan, name) for name in _ALWAYS}
    if plan.sequence_parallel:
        head["sequence_parallel"] = True
    head |= {key.plan or key.file_key: value for key, value in said_by(plan)}
    if plan.predicted is not None:
        head["predicted"] = plan.predicted
    lines = [f"  {json.dumps(k)}: {json.dumps(v, default=vars)}," for k, v in head.items()]
    lines.append('  "replicas": [')
    for number, replica in enumerate(plan.replicas):
        lines.append(f'    {{"count": {replica.count}, "micro_batches": {replica.micro_batches},')
        lines.append('     "stages": [')
        lines.append(",\n".join(map(_stage_lines, replica.stages)))
        lines.append("     ]}" + "," * (number < len(plan.replicas) - 1))
    return "\n".join(["{", *lines, "  ]", "}", ""])


def _stage_lines(stage: PlanStage) -> str:
    """A stage as a line, and further lines for its members where it lists them."""
    if stage.members is None:
        return f"       {json.dumps(_said(stage))}"
    head = {name: value for name, value in _said(stage).items() if name != "members"}
    members = ",\n".join(f"          {json.dumps(_said(member))}" for member in stage.members)
    return f'       {json.dumps(head)[:-1]}, "members": [\n{members}\n       ]}}'


def _said(part: PlanStage | PlanMember) -> dict[str, Any]:
    """The fields of a stage or member; one that is left out by default is left out."""
    return {name: value for name, value in vars(part).items() if value is not None}
