"""Plans whose stages and replicas differ, as the header of a program.

Each replica has its own depth, layers per stage, tensor degree per stage, recovery, size and number
of micro-batches. Those of one entry that stand on the same kinds of device behave alike, and are
folded into one. A tensor group is of one kind of device, and all stages of a replica take
micro-batches of one size; what differs there is refused by its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ratrain.describe.cluster import Device
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.describe.job_checks import check_heads, check_layers, check_sequence
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.build import choices_of, unequal_budgets
from ratrain.plan.enumerate import StateMode, require_tieable, strategy_of
from ratrain.plan.plan_file import Plan, PlanReplica
from ratrain.plan.plan_job import (
    devices_of_stage,
    job_of_plan,
    require_chunks,
    require_prefetch,
    require_round,
    require_strategy,
    state_mode,
)
from ratrain.plan.sizes import stages_of
from ratrain.program.setup import Accumulation, Recovery, Replica, Setup, Stage
from ratrain.program.skeletons import SKELETONS
from ratrain.program.skeletons import Place as Position
from ratrain.program.strategies import Choices, Strategy
from ratrain.readers.faults import Faults
from ratrain.readers.place import Place

Groups = tuple[tuple[Device, ...], ...]
"""The tensor group of each pipeline rank of one replica."""


@dataclass(frozen=True)
class UnevenReplica:
    """Replicas that behave alike. `groups`: for each of them its devices. `layout`: their degrees,
    with the tensor degree of the first stage."""

    layout: LayoutSpec
    tensor: tuple[int, ...]  # of each pipeline rank
    recovery: tuple[Recovery, ...]  # of each stage
    micro_batch: int
    micro_batches: int
    groups: tuple[Groups, ...]
    members: tuple[int, ...]  # their numbers among all replicas of the plan
    entry: int  # the plan's, where it stands

    @property
    def kinds(self) -> tuple[str, ...]:
        """The device kind of each pipeline rank."""
        return tuple(group[0].kind.name for group in self.groups[0])

    @property
    def sequences(self) -> int:
        """What one of them takes in a step."""
        return self.micro_batches * self.micro_batch

    def layout_of(self, pipeline: int) -> LayoutSpec:
        """The layout as a pipeline rank sees it: with its own tensor degree. A rank that is alone
        divides no sequence."""
        tensor = self.tensor[pipeline]
        divided = self.layout.sequence_parallel and tensor > 1
        return replace(self.layout, tensor=tensor, sequence_parallel=divided)


@dataclass(frozen=True)
class UnevenPlan:
    """A plan of any replicas, ready to build its program. `job` has no layout, and a micro-batch
    that says nothing."""

    job: JobSpec
    replicas: tuple[UnevenReplica, ...]
    strategy: Strategy
    mode: StateMode
    buffer: int
    sequence_parallel: bool

    def job_of(self, replica: UnevenReplica, pipeline: int) -> JobSpec:
        """The job as a pipeline rank of a replica sees it."""
        batch = Batch(self.job.batch.sequences, replica.micro_batch)
        return replace(self.job, batch=batch, layout=replica.layout_of(pipeline))

    @cached_property
    def setup(self) -> Setup:
        """The header of the program, before its strategy's passes."""
        devices = [group[0] for replica in self.replicas for group in replica.groups[0]]
        budgets = [self.job.budget_of(device.kind) for device in devices]
        return Setup(
            replicas=tuple(
                Replica(self._stages(replica), replica.micro_batches, len(replica.members))
                for replica in self.replicas
            ),
            sequence_parallel=self.sequence_parallel,
            recovery_buffer=self.buffer,
            budget_bytes=max(budgets),
            tier=devices[0].kind.memory.name,
            budgets=unequal_budgets(budgets),
        )

    @property
    def choices(self) -> Choices:
        """What the plan and its backend decide of the program."""
        recovery = tuple(replica.recovery for replica in self.replicas)
        return choices_of(self.job, self.mode.sharded_gradients, recovery_of_replicas=recovery)

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices that the plan uses, in the cluster's order."""
        used = (device for r in self.replicas for ranks in r.groups for g in ranks for device in g)
        return tuple(sorted(used, key=lambda device: device.index))

    def _stages(self, replica: UnevenReplica) -> tuple[Stage, ...]:
        """Each stage as it is in a replica whose stages all have its tensor degree."""
        sized = {
            tensor: stages_of(self.job_of(replica, rank), replica.layout_of(rank))
            for rank, tensor in enumerate(replica.tensor)
        }
        return tuple(
            sized[replica.tensor[number % replica.layout.pipeline]][number]
            for number in range(replica.layout.stages)
        )


def uneven_plan(plan: Plan, file: str) -> UnevenPlan:
    """The `UnevenPlan` of a plan, alike replicas or not. Raises a SpecError for what contradicts
    itself, and for what no program can say."""
    place = Place(file, form="json")
    require_strategy(plan, place)
    _require_stages(plan, place.at("replicas"))
    mode = state_mode(plan, place)
    job = job_of_plan(plan, None, 1, place)
    _require_devices_once(plan, place)
    replicas = _folded(plan, job, place)
    _require_sequences(plan, place)
    widest = max((r.layout_of(p) for r in replicas for p in range(r.layout.pipeline)), key=_tensor)
    chosen = strategy_of(replace(job, layout=widest))  # which asks for the tensor degree
    require_prefetch(plan, chosen, place)
    require_tieable(job)
    if plan.gradient_bucket_bytes is not None:
        raise SpecError(
            "replicas or stages that differ cannot send gradients in buckets yet",
            place=str(place.at("gradient_bucket")),
            fix="leave it out",
        )
    made = UnevenPlan(
        job,
        replicas,
        replace(chosen, sharding=mode.sharding),
        mode,
        plan.recovery_buffer,
        plan.sequence_parallel,
    )
    require_runnable(made, place)
    return made


def require_runnable(made: UnevenPlan, place: Place) -> None:
    """Refuses what no program of these replicas can do."""
    _require_orders(made, place.at("replicas"))
    _require_program(made, place)
    _require_one_order(made, place)


def _tensor(layout: LayoutSpec) -> int:
    return layout.tensor


def _require_stages(plan: Plan, here: Place) -> None:
    """Refuses what the stages of one program, or of one replica, must have in common."""
    if not plan.replicas:
        raise SpecError("no stages", place=str(here), fix="give one replica with one stage")
    faults = Faults()
    for number, replica in enumerate(plan.replicas):
        with faults:
            _require_stages_of(plan, replica, here.at(number))
    faults.raise_all()


def _require_stages_of(plan: Plan, replica: PlanReplica, here: Place) -> None:
    if not replica.stages:
        raise SpecError("no stages", place=str(here), fix="give the replica one stage")
    first = replica.stages[0]
    sharding = plan.replicas[0].stages[0].sharding if plan.replicas[0].stages else first.sharding
    for index, stage in enumerate(replica.stages):
        at = here.at("stages").at(index)
        if stage.micro_batch != first.micro_batch:
            raise SpecError(
                f"micro_batch {stage.micro_batch} here, {first.micro_batch} on the replica's first "
                "stage: stages that pass micro-batches on must agree on their size",
                place=str(at.at("micro_batch")),
                fix=f"write {first.micro_batch}; other replicas may have another size",
            )
        if stage.sharding != sharding:
            raise SpecError(
                f"sharding {stage.sharding} here, {sharding} on the first stage: the level is one "
                "for the whole plan",
                place=str(at.at("sharding")),
                fix=f"write {sharding}",
            )
        if stage.offload is not None:
            raise SpecError(
                f"offload to {stage.offload!r} cannot run yet",
                place=str(at.at("offload")),
                fix="leave it out",
            )


def _require_devices_once(plan: Plan, place: Place) -> None:
    """Refuses a device that is named twice, but by a later round of one replica's stages."""
    known: dict[int, tuple[int, int]] = {}
    for number, replica in enumerate(plan.replicas):
        rounds: set[tuple[int, ...]] = set()
        for index in range(len(replica.stages)):
            devices = devices_of_stage(plan, number, index, place)
            here = place.at("replicas").at(number).at("stages").at(index).at("devices")
            if tuple(devices) in rounds:
                continue
            rounds.add(tuple(devices))
            for device in devices:
                if device in known:
                    entry, stage = known[device]
                    raise SpecError(
                        f"device {device} is in stage {stage} of entry {entry} already",
                        place=str(here),
                        fix="list each device once",
                    )
                known[device] = number, index


def _require_sequences(plan: Plan, place: Place) -> None:
    """Refuses replicas whose micro-batches are not the whole batch."""
    parts = [
        (replica.count, replica.micro_batches, replica.stages[0].micro_batch)
        for replica in plan.replicas
    ]
    total = sum(count * batches * size for count, batches, size in parts)
    if total != plan.sequences:
        words = " + ".join(f"{count} x {batches} x {size}" for count, batches, size in parts)
        raise SpecError(
            f"replicas x micro-batches x their size are {words} = {total} sequences, not "
            f"{plan.sequences}",
            place=str(place.at("sequences")),
            fix=f"write {total}, or give replicas other micro_batches",
        )


def _folded(plan: Plan, job: JobSpec, place: Place) -> tuple[UnevenReplica, ...]:
    """The plan's replicas, those that behave alike as one, in the order of the first of each."""
    alike: dict[object, UnevenReplica] = {}
    for number, entry, replica in _each(plan, job, place):
        key = (
            replica.layout,
            replica.tensor,
            replica.recovery,
            replica.micro_batch,
            replica.micro_batches,
            replica.kinds,
        )
        first = alike.get(key)
        if first is None:
            alike[key] = replace(replica, members=(number,), entry=entry)
        else:
            alike[key] = replace(
                first, groups=first.groups + replica.groups, members=(*first.members, number)
            )
    return tuple(alike.values())


def _each(plan: Plan, job: JobSpec, place: Place) -> Iterator[tuple[int, int, UnevenReplica]]:
    """Every single replica, with its number and its entry's."""
    data = sum(replica.count for replica in plan.replicas)
    devices = job.cluster.members()
    number = 0
    for entry, replica in enumerate(plan.replicas):
        here = place.at("replicas").at(entry)
        lists = [devices_of_stage(plan, entry, s, place) for s in range(len(replica.stages))]
        pipeline = len(dict.fromkeys(map(tuple, lists)))
        require_round(lists, pipeline, here)
        first, tensor = replica.stages[0], tuple(s.tensor for s in replica.stages[:pipeline])
        layout = LayoutSpec(
            pipeline,
            data,
            first.tensor,
            len(lists) // pipeline,
            tuple(stage.layers for stage in replica.stages),
            plan.sequence_parallel,
        )
        _require_dividable(job, replace(layout, sequence_parallel=False), tensor, here)
        _require_division(plan, job, layout, place)
        for copy in range(replica.count):
            groups = tuple(
                tuple(devices[i] for i in of_stage[copy * t : (copy + 1) * t])
                for of_stage, t in zip(lists[:pipeline], tensor, strict=True)
            )
            _require_kinds(groups, here)
            yield (
                number,
                entry,
                UnevenReplica(
                    layout,
                    tensor,
                    tuple(Recovery(stage.recovery) for stage in replica.stages),
                    first.micro_batch,
                    replica.micro_batches,
                    (groups,),
                    (),
                    entry,
                ),
            )
            number += 1


def _require_dividable(
    job: JobSpec, layout: LayoutSpec, tensor: tuple[int, ...], here: Place
) -> None:
    """Refuses layers that are not the model's, and degrees that do not divide it."""
    check_layers(layout, job.model.spec, here.at("layers"))
    for index, degree in enumerate(tensor):
        at = here.at("stages").at(index)
        check_heads(replace(layout, tensor=degree), job.model.spec, at)


def _require_division(plan: Plan, job: JobSpec, layout: LayoutSpec, place: Place) -> None:
    """Refuses a sequence that some group cannot divide, where groups divide it."""
    degrees = {stage.tensor for replica in plan.replicas for stage in replica.stages}
    asked, length = job.schedule.sequence_parallel, job.model.sequence_length
    here = place.at("sequence_parallel")
    for tensor in sorted(degrees - {1}) or [1]:
        check_sequence(asked, length, replace(layout, tensor=tensor), here)


def _require_kinds(groups: Groups, here: Place) -> None:
    for index, group in enumerate(groups):
        other = next((device for device in group if device.kind != group[0].kind), None)
        if other is not None:
            raise SpecError(
                f"devices {group[0].index} and {other.index} of one tensor group are of two kinds, "
                f"{group[0].kind.name} and {other.kind.name}",
                place=str(here.at("stages").at(index).at("devices")),
                fix="let a tensor group stand on devices of one kind",
            )


def _require_orders(made: UnevenPlan, here: Place) -> None:
    """Refuses a number of micro-batches for which the compute order does not exist."""
    for replica in made.replicas:
        layout, at = replica.layout, here.at(replica.entry)
        if layout.virtual > 1:
            require_chunks(made.strategy, at)
        position = Position(0, layout.pipeline, layout.virtual, replica.micro_batches)
        try:
            next(SKELETONS[made.strategy.skeleton].order(position), None)
        except ProgramError as error:
            raise SpecError(error.what, place=str(at.at("micro_batches")), fix=error.fix) from None


def _require_program(made: UnevenPlan, place: Place) -> None:
    """Refuses what the strategy's passes cannot do with replicas that differ."""
    sequences = {replica.sequences for replica in made.replicas}
    if made.job.schedule.average_every is not None and len(sequences) > 1:
        raise SpecError(
            "replicas that average their weights must train on equally many sequences, not on "
            f"{', '.join(map(str, sorted(sequences)))}",
            place=str(place.at("average_every")),
            fix="leave it out, or give every replica the same share",
        )
    mode = made.mode
    try:
        marked = replace(
            made.setup,
            sharding=mode.sharding,
            accumulation=Accumulation.SHARDED if mode.sharded_gradients else Accumulation.LOCAL,
            gathers_per_pass=True,
            tied=made.choices.tie,
            averages=made.job.schedule.average_every is not None,
        )
    except ProgramError as error:
        raise SpecError(error.what, place=str(place.at("replicas")), fix=error.fix) from None
    try:  # a pass that gathers less often begins with a program that gathers for every use
        replace(marked, gathers_per_pass=False)
    except ProgramError as error:
        fix = "use sharding 2, or divide all replicas alike"
        raise SpecError(error.what, place=str(place.at("replicas")), fix=fix) from None


def _require_one_order(made: UnevenPlan, place: Place) -> None:
    """Refuses replicas that would meet each other in different orders, and wait for ever."""
    mode = made.mode
    cuts = {(replica.layout.pipeline, replica.layout.layers) for replica in made.replicas}
    loops = any(replica.layout.virtual > 1 for replica in made.replicas)
    if mode.sharded_gradients and loops and len(cuts) > 1:
        raise SpecError(
            "ranks of several stages end the gradients of a micro-batch in an order that follows "
            "from their cut: replicas cut differently cannot reduce once per micro-batch",
            place=str(place.at("accumulation")),
            fix='write "local", or give each stage its own devices',
        )
    ahead = {tuple(mode is Recovery.FORWARD for mode in r.recovery) for r in made.replicas}
    if mode.sharding == 3 and len(ahead) > 1:
        raise SpecError(
            "recovery ahead of backward gathers views in another order: at sharding 3 replicas "
            "that gather together must recover alike",
            place=str(place.at("replicas")),
            fix='write "forward" on the same stages of every replica, or on none',
        )
