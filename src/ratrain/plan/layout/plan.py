"""A plan: a job on replicas, all that its program needs to be said.

    job, replicas > stages > members, who owns which states, compute order and passes, buffer

Each replica has its own depth, layers per stage, tensor degree per stage, recovery, size and number
of micro-batches. Those that stand on the same kinds of device and are divided alike behave alike,
and are folded into one entry. A stage may compute several of its replica's micro-batches at once.
It may have several members, each a rank of its own kind and degree; a micro-batch may change its
member where stages meet.

Where all replicas are divided alike a layout says it all: `plan_of_layout` makes a plan of one, and
`placed` knows the layout and its devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from ratrain.cost.blocks import Block
from ratrain.describe.cluster import Device
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.describe.train import DIRECT
from ratrain.errors import SpecError
from ratrain.plan.layout.enumerate import Group, StateMode, group_of_layout, with_kinds_reversed
from ratrain.plan.layout.jobs import (
    SPLIT_ORDERS,
    WORTH_MEMORY,
    WORTH_SPLIT,
    fault,
    in_order,
    in_split_order,
    layer_orders,
    takes_other_orders,
)
from ratrain.plan.layout.links import Groups, Holders, Links, links_of
from ratrain.plan.layout.placement import PlacedReplica, Placement
from ratrain.plan.layout.sizes import blocks_of_stages, layers_of_stages, stages_of, trains_tied
from ratrain.plan.layout.tiers import tier_budgets
from ratrain.plan.layout.turns import asked_turns, equal_turns
from ratrain.program.families import DEVICE
from ratrain.program.replicas import Member, Recovery, Replica, Stage
from ratrain.program.setup import Accumulation, Averages, Budget, Setup
from ratrain.program.strategies import Choices, Strategy
from ratrain.program.units import Ints

MODES = tuple(Recovery)


def has_members(plan: Plan) -> bool:
    """Whether a stage of a plan has several members."""
    return any(replica.has_members for replica in plan.replicas)


@dataclass(frozen=True)
class Plan:
    """A plan, ready to build its program. Where a layout says it all, `job` has it, with the
    micro-batch, and `placed` the devices of it; else `job` has none, and its micro-batch says
    nothing."""

    job: JobSpec
    replicas: tuple[PlacedReplica, ...]
    strategy: Strategy
    mode: StateMode
    buffer: int
    sequence_parallel: bool
    placed: Placement | None = field(default=None, compare=False, repr=False)

    def job_of(self, replica: PlacedReplica, rank: int) -> JobSpec:
        """The job as a rank of a replica sees it: with micro-batches of what it computes at
        once, in the dtype of its kind of device."""
        return self.job_of_messages(replica, rank, rank)

    def job_of_messages(self, replica: PlacedReplica, rank: int, other: int) -> JobSpec:
        """The same for a message between two ranks: of as many sequences as both compute at
        once."""
        joined = min(replica.joined_of(rank), replica.joined_of(other))
        batch = Batch(self.job.batch.sequences, replica.micro_batch * joined)
        sized = replace(self.job, batch=batch, layout=replica.layout_of(rank))
        return sized.of_kind(replica.groups[0][rank][0].kind)

    @cached_property
    def setup(self) -> Setup:
        """The header of the program, before its strategy's passes."""
        kinds = [r.kinds_of(rank) for r in self.replicas for rank in range(r.ranks)]
        budgets = [min(map(self.job.budget_of, of_rank)) for of_rank in kinds]
        return Setup(
            replicas=tuple(
                Replica(
                    self._stages(replica),
                    replica.micro_batches,
                    len(replica.members),
                    self._site(replica),
                )
                for replica in self.replicas
            ),
            sequence_parallel=self.sequence_parallel,
            recovery_buffer=self.buffer,
            budget_bytes=max(budgets),
            tier=self.replicas[0].groups[0][0][0].kind.memory.name,
            budgets=(*_unequal_budgets(budgets), *tier_budgets(self.job, kinds)),
        )

    @property
    def choices(self) -> Choices:
        """What the plan and its backend decide of the program."""
        job, schedule = self.job, self.job.schedule
        tie = trains_tied(job, max(replica.layout.pipeline for replica in self.replicas))
        chosen = Choices(
            accumulation=self.mode.accumulation,
            bucket_bytes=job.bucket_bytes,
            backward_sends=job.backward_sends,
            clip=job.train.clip_norm is not None or job.awaits_overflow,
            save=job.backend.saves,
            tie=tie,
            error_feedback=job.residuals,
            mirror=schedule.mirror,
            in_turn=job.train.network == DIRECT,
            optimizer_tier=job.optimizer_tier,
            view_tier=job.view_tier,
            gradient_tier=job.gradient_tier,
            activation_tier=job.activation_tier,
            average_steps=schedule.average_every or 0,
            averages=Averages(schedule.averages),
            average_wire="" if schedule.average_wire == "fp32" else schedule.average_wire,
            outer=job.train.outer_learning_rate is not None,
            recovery_of_replicas=tuple(replica.recovery for replica in self.replicas),
        )
        if not schedule.averages_by_turns:
            return chosen
        asked = asked_turns(job, self.setup, tied=tie)
        turns = asked or equal_turns(self.setup, chosen.average_steps, tied=tie)
        return replace(chosen, average_turns=turns)

    @property
    def is_layout(self) -> bool:
        """Whether a layout says it all: its replicas are divided alike."""
        return self.placed is not None

    @property
    def placement(self) -> Placement:
        """The layout on its devices, where one says it all."""
        assert self.placed is not None
        return self.placed

    @property
    def layout(self) -> LayoutSpec:
        """The layout, where one says it all."""
        return self.placement.layout

    @property
    def alike(self) -> PlacedReplica:
        """Any of its replicas, where all are divided alike."""
        return self.replicas[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sequences that a rank computes at once: every number that there is."""
        return tuple(sorted({size for replica in self.replicas for size in replica.sizes}))

    @property
    def modes(self) -> tuple[Recovery, ...]:
        """What becomes of activations, member by member of each stage."""
        return tuple(mode for replica in self.replicas for mode in replica.recovery)

    @property
    def key(self) -> object:
        """What tells it from other plans of its job."""
        return self.replicas, self.strategy.skeleton, self.mode

    def keeping(self, ranks: Collection[int]) -> Plan:
        """The plan whose stages on these program ranks keep every activation; of a layout, in every
        replica."""
        if self.is_layout:
            kept = {rank % self.layout.pipeline for rank in ranks}
            return self.in_modes(Recovery.NONE, [kept] * len(self.replicas))
        return self.in_mode(Recovery.NONE, ranks)

    def in_mode(self, mode: Recovery, ranks: Collection[int]) -> Plan:
        """The plan with another recovery mode on these program ranks."""
        return self.in_modes(mode, [{r - first for r in ranks} for first in self.setup.first_rank])

    def in_modes(self, mode: Recovery, ranks: Sequence[Collection[int]]) -> Plan:
        """The same for ranks of each replica."""
        changed = (r.in_mode(mode, of) for r, of in zip(self.replicas, ranks, strict=True))
        return replace(self, replicas=tuple(changed))

    def in_order_of(self, job: JobSpec) -> Plan:
        """The plan in the compute order that a job names."""
        order = job.schedule.skeleton or self.strategy.skeleton
        return replace(self, job=job, strategy=replace(self.strategy, skeleton=order))

    def recovering(self, recovery: tuple[Recovery, ...]) -> Plan:
        """The plan of a layout whose stages recover so, in every replica."""
        changed = tuple(replace(replica, recovery=recovery) for replica in self.replicas)
        return replace(self, replicas=changed)

    @property
    def links(self) -> Links:
        """The links between its ranks."""
        return links_of(self.job.cluster.spec, tuple(replica.seats for replica in self.replicas))

    @cached_property
    def blocks(self) -> tuple[tuple[tuple[Block, ...], ...], ...]:
        """The blocks of each stage of each of its replicas."""
        return tuple(blocks_of_stages(self.job_of(r, 0), r.layout) for r in self.replicas)

    @cached_property
    def holders(self) -> dict[tuple[str, int], Holders]:
        """Who holds each block, by its kind and index."""
        ranks: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for replica, blocks in zip(self.replicas, self.blocks, strict=True):
            for stage, parts in enumerate(blocks):
                for block in parts:
                    held = ranks.setdefault((block.kind, block.index), [])
                    held.append(replica.ranks_of(stage))
        return {block: tuple(held) for block, held in ranks.items()}

    @property
    def by_number(self) -> tuple[Groups, ...]:
        """The tensor groups of each replica, in the order of their numbers."""
        of_number = {
            number: groups
            for replica in self.replicas
            for number, groups in zip(replica.members, replica.groups, strict=True)
        }
        return tuple(of_number[number] for number in sorted(of_number))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """All devices that the plan uses, in the cluster's order."""
        used = (device for replica in self.replicas for device in replica.seats.devices)
        return tuple(sorted(used, key=lambda device: device.index))

    @cached_property
    def idle(self) -> tuple[Device, ...]:
        """The job's devices that it leaves idle."""
        if len(self.devices) == self.job.cluster.devices:
            return ()
        used = {device.index for device in self.devices}
        return tuple(d for d in self.job.cluster.members() if d.index not in used)

    @property
    def idle_kinds(self) -> frozenset[str]:
        """Device kinds of which it uses none."""
        used = {device.kind.name for device in self.devices}
        return frozenset(kind.name for kind in self.job.cluster.kinds) - used

    @property
    def reversed_kinds(self) -> bool:
        """Whether the last kinds of device hold the first stages of its layout."""
        if self.placed is None:
            return False
        in_order = self.devices
        return self.placed.devices == with_kinds_reversed(in_order) != in_order

    def _stages(self, replica: PlacedReplica) -> tuple[Stage, ...]:
        """Each stage with its members, each as it is in a replica whose stages all have its tensor
        degree, its kind of device and its size."""
        sorts = tuple(zip(replica.tensor, replica.kinds, replica.sizes, strict=True))
        firsts = {sort: rank for rank, sort in reversed(list(enumerate(sorts)))}
        sized = {
            sort: stages_of(self.job_of(replica, rank), self._shared_layout(replica, rank))
            for sort, rank in firsts.items()
        }

        def member(stage: int, rank: int) -> Member:
            described = sized[sorts[rank]][stage].only
            serves, joined = replica.serves[rank], replica.joined_of(rank)
            return replace(described, rank=rank, serves=serves, joined=joined)

        return tuple(
            Stage(tuple(member(stage, rank) for rank in replica.ranks_of(stage)))
            for stage in range(replica.layout.stages)
        )

    def _site(self, replica: PlacedReplica) -> int | None:
        """Where sites average weights: the one where a replica stands, with all of its devices."""
        sites = {self.job.site_of(device) for device in replica.seats.devices}
        if len(sites) > 1:
            what = f"replica {replica.members[0]} stands at several sites, between which weights "
            fix = "use devices of one site for each replica, or leave it out"
            raise fault(self.job, "[schedule] average_between", f"{what}are averaged", fix)
        return sites.pop()

    def _shared_layout(self, replica: PlacedReplica, rank: int) -> LayoutSpec:
        """The layout of a rank in which as many reduce a gradient as do of any: what it needs for
        that is sized by them."""
        most = sum(len(r.members) * max(map(len, r.places)) for r in self.replicas)
        return replace(replica.layout_of(rank), data=most)


def plan_of_layout(
    job: JobSpec,
    placement: Placement,
    strategy: Strategy,
    mode: StateMode,
    *,
    recovery: Sequence[Recovery] = (),
    buffer: int | None = None,
) -> Plan:
    """The plan of a layout on its devices. `recovery`: of each stage; left out: all keep their
    activations. `buffer`: left out, as the job has it."""
    layout = replace(placement.layout, layers=layers_of_stages(job, placement.layout))
    placement = replace(placement, layout=layout)
    modes = tuple(recovery) or (Recovery.NONE,) * layout.stages
    size = job.batch.micro_batch
    share = job.batch.sequences // (layout.data * size)
    tensor = (layout.tensor,) * layout.pipeline
    return Plan(
        replace(job, layout=layout),
        tuple(
            PlacedReplica(layout, tensor, modes, size, share, seats, entry)
            for entry, seats in enumerate(placement.seats)
        ),
        strategy,
        mode,
        job.schedule.recovery_buffer if buffer is None else buffer,
        layout.sequence_parallel,
        placement,
    )


def plan_of_setup(job: JobSpec, placement: Placement, chosen: Strategy, setup: Setup) -> Plan:
    """The plan of a laid out job, as the setup of its program has it."""
    return plan_of_layout(
        job,
        placement,
        chosen,
        StateMode(setup.sharding, setup.accumulation is Accumulation.SHARDED),
        recovery=[stage.members[0].recovery for stage in setup.replicas[0].stages],
        buffer=setup.recovery_buffer,
    )


def plan_of_row(group: Group, row: int, recovery: Ints) -> Plan:
    """The plan of a group's row, with the recovery code of each of its stages."""
    layout = replace(group.layout, layers=tuple(int(n) for n in group.layers[row]))
    mode = group.modes[int(group.mode[row])]
    return plan_of_layout(
        replace(group.job, layout=layout),
        replace(group.placement, layout=layout),
        replace(group.strategy, sharding=mode.sharding),
        mode,
        recovery=[MODES[int(code)] for code in recovery],
        buffer=int(group.buffer[row]),
    )


def require_one_dtype(
    job: JobSpec, groups: Iterable[Sequence[Device]], places: Iterable[str]
) -> None:
    """Refuses tensor groups whose devices compute in different dtypes, each by its place."""
    for group, place in zip(groups, places, strict=False):
        dtype = job.dtype_of(group[0].kind)
        other = next((device for device in group if job.dtype_of(device.kind) != dtype), None)
        if other is not None:
            raise SpecError(
                f"devices {group[0].index} and {other.index} of one tensor group are of two kinds, "
                f"{group[0].kind.name} and {other.kind.name}, which compute in different dtypes",
                place=place,
                fix="let a tensor group stand on devices of one kind",
            )


def group_of_plan(plan: Plan) -> Group:
    """The group of one row that the plan of a layout is."""
    return group_of_layout(plan.job, plan.strategy, plan.placement, plan.mode.sharded_gradients)


def _unequal_budgets(budgets: list[int]) -> Iterator[Budget]:
    """Budgets of their own for ranks that have less than the others."""
    largest = max(budgets)
    for size, run in groupby(range(len(budgets)), key=budgets.__getitem__):
        ranks = list(run)
        if size < largest:
            yield Budget(ranks[0], ranks[-1], DEVICE, size)


@dataclass(frozen=True)
class Reordering:
    """A sort of compute order that the planner may choose. `names`: the orders that a plan may be
    in; `ordered`: a job in one of them; `worth`: the part of the fastest known step that the first
    must save, and `further` what each next one must save of that; `recovers`: whether stages may
    recover where memory is short."""

    names: Callable[[Plan], tuple[str, ...]]
    ordered: Callable[[JobSpec, str], JobSpec]
    worth: float
    further: float
    recovers: bool

    def plans(self, plan: Plan) -> Iterator[Plan]:
        """The plan in each of its orders."""
        return (plan.in_order_of(self.ordered(plan.job, name)) for name in self.names(plan))


def _layer_orders(plan: Plan) -> tuple[str, ...]:
    """The layer-major orders that a plan may be in, under the conditions of alike replicas: its
    order is left to the planner, ranks that hold the whole model exchange gradients, and the ends
    of its step count. None where a stage computes several micro-batches at once."""
    if any(replica.joined for replica in plan.replicas):
        return ()
    counts = [replica.micro_batches for replica in plan.replicas]
    shared = sum(len(replica.members) for replica in plan.replicas) > 1 or has_members(plan)
    whole_model = shared and any(replica.layout.stages == 1 for replica in plan.replicas)
    return layer_orders(plan.job, plan.strategy, counts, whole_model=whole_model)


def _split_orders(plan: Plan) -> tuple[str, ...]:
    """The orders that split backward and that a plan may be in: its order is left to the planner,
    it keeps all activations, and a replica has waits that weight gradients could fill."""
    asked = plan.job.schedule.recovery in ("auto", "keep-all")
    waits = any(r.layout.pipeline > 1 and r.micro_batches > 1 for r in plan.replicas)
    alone = not any(replica.layout.virtual > 1 for replica in plan.replicas)
    may = asked and waits and alone and keeps_all(plan)
    return SPLIT_ORDERS if may and takes_other_orders(plan.job, plan.strategy) else ()


def keeps_all(plan: Plan) -> bool:
    """Whether no stage recovers or spills anything."""
    return all(mode is Recovery.NONE for mode in plan.modes)


LAYER_MAJOR = Reordering(_layer_orders, in_order, WORTH_MEMORY, WORTH_MEMORY, recovers=True)
SPLIT = Reordering(_split_orders, in_split_order, WORTH_SPLIT, 0.0, recovers=False)
