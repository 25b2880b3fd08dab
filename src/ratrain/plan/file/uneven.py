"""Plans whose stages and replicas differ, as the header of a program.

Each replica has its own depth, layers per stage, tensor degree per stage, recovery, size and number
of micro-batches. Those of one entry that stand on the same kinds of device behave alike, and are
folded into one. A tensor group is of one kind of device; what differs there is refused by its
place. A stage may compute several of its replica's micro-batches at once. It may have several
members, each a rank of its own kind and degree; a micro-batch may change its member where stages
meet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from ratrain.describe.cluster import Device
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.plan.file.members import Served
from ratrain.plan.layout.candidate import choices_of, unequal_budgets
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.sizes import stages_of, trains_tied
from ratrain.plan.layout.tiers import tier_budgets
from ratrain.program.replicas import Member, Recovery, Replica, Stage
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, Strategy

Groups = tuple[tuple[Device, ...], ...]
"""The tensor group of each rank of one replica."""


@dataclass(frozen=True)
class UnevenReplica:
    """Replicas that behave alike. `groups`: for each of them its devices. `layout`: their degrees,
    with the tensor degree of the first rank. Ranks count the members of one place in the pipeline
    after those of the place before; a rank whose stage has one member is a place of its own."""

    layout: LayoutSpec
    tensor: tuple[int, ...]  # of each rank
    recovery: tuple[Recovery, ...]  # of each member of each stage
    micro_batch: int  # sequences of one, on the stage of the smallest
    micro_batches: int  # of that size
    groups: tuple[Groups, ...]
    members: tuple[int, ...]  # their numbers among all replicas of the plan
    entry: int  # the plan's, where it stands
    serving: tuple[tuple[Served, ...], ...] = ()
    """For each place in the pipeline, what its members serve; (): each has one, which serves all"""
    joined: tuple[int, ...] = ()
    """Of each rank, how many micro-batches it computes at once; (): each computes one by one"""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The device kind of each rank."""
        return tuple(group[0].kind.name for group in self.groups[0])

    @property
    def ranks(self) -> int:
        return len(self.tensor)

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """For each place in the pipeline the ranks of its members."""
        counts = [len(shares) for shares in self.serving] or [1] * self.layout.pipeline
        ends = list(accumulate(counts))
        return tuple(tuple(range(e - n, e)) for n, e in zip(counts, ends, strict=True))

    @cached_property
    def serves(self) -> tuple[Served, ...]:
        """What each rank serves."""
        shares = tuple(share for shares in self.serving for share in shares)
        return shares or (None,) * self.ranks

    def computing(self, sizes: Sequence[int]) -> UnevenReplica:
        """The same share of a step, with so many sequences at once on each rank."""
        smallest = min(sizes)
        joined = tuple(size // smallest for size in sizes)
        return replace(
            self,
            micro_batch=smallest,
            micro_batches=self.sequences // smallest,
            joined=joined if max(joined) > 1 else (),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of each rank, the sequences that it computes at once."""
        return tuple(self.micro_batch * self.joined_of(rank) for rank in range(self.ranks))

    def joined_of(self, rank: int) -> int:
        """How many micro-batches a rank computes at once."""
        return self.joined[rank] if self.joined else 1

    @property
    def has_members(self) -> bool:
        """Whether a stage has several."""
        return self.ranks > self.layout.pipeline

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """The ranks that hold a stage."""
        return self.places[stage % self.layout.pipeline]

    @property
    def held(self) -> tuple[tuple[int, int], ...]:
        """(stage, rank) of each member of each stage, in the order of the setup's members."""
        stages = range(self.layout.stages)
        return tuple((stage, rank) for stage in stages for rank in self.ranks_of(stage))

    def counts_of(self, rank: int) -> int:
        """How many micro-batches a rank computes."""
        share = self.serves[rank]
        return self.micro_batches if share is None else len(share)

    @property
    def sequences(self) -> int:
        """What one of them takes in a step."""
        return self.micro_batches * self.micro_batch

    def layout_of(self, rank: int) -> LayoutSpec:
        """The layout as a rank sees it: with its own tensor degree. A rank that is alone divides
        no sequence."""
        tensor = self.tensor[rank]
        divided = self.layout.sequence_parallel and tensor > 1
        return replace(self.layout, tensor=tensor, sequence_parallel=divided)


def has_members(plan: UnevenPlan) -> bool:
    """Whether a stage of a plan has several members."""
    return any(replica.has_members for replica in plan.replicas)


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

    def job_of(self, replica: UnevenReplica, rank: int) -> JobSpec:
        """The job as a rank of a replica sees it: with micro-batches of what it computes at
        once, in the dtype of its kind of device."""
        return self.job_of_messages(replica, rank, rank)

    def job_of_messages(self, replica: UnevenReplica, rank: int, other: int) -> JobSpec:
        """The same for a message between two ranks: of as many sequences as both compute at
        once."""
        joined = min(replica.joined_of(rank), replica.joined_of(other))
        batch = Batch(self.job.batch.sequences, replica.micro_batch * joined)
        sized = replace(self.job, batch=batch, layout=replica.layout_of(rank))
        return sized.of_kind(replica.groups[0][rank][0].kind)

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
            budgets=(
                *unequal_budgets(budgets),
                *tier_budgets(self.job, [device.kind for device in devices]),
            ),
        )

    @property
    def choices(self) -> Choices:
        """What the plan and its backend decide of the program."""
        recovery = tuple(replica.recovery for replica in self.replicas)
        deepest = max(replica.layout.pipeline for replica in self.replicas)
        made = choices_of(self.job, self.mode.sharded_gradients, recovery_of_replicas=recovery)
        return replace(made, tie=trains_tied(self.job, deepest))

    @property
    def is_layout(self) -> bool:
        """Whether a layout says it all: see `Candidate`."""
        return False

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

    def keeping(self, ranks: Collection[int]) -> UnevenPlan:
        """The plan whose stages on these program ranks keep every activation."""
        replicas = [
            _keeping(replica, {rank - first for rank in ranks})
            for first, replica in zip(self.setup.first_rank, self.replicas, strict=True)
        ]
        return replace(self, replicas=tuple(replicas))

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices that the plan uses, in the cluster's order."""
        used = (device for r in self.replicas for ranks in r.groups for g in ranks for device in g)
        return tuple(sorted(used, key=lambda device: device.index))

    def _stages(self, replica: UnevenReplica) -> tuple[Stage, ...]:
        """Each stage with its members, each as it is in a replica whose stages all have its tensor
        degree, its kind of device and its size."""
        sorts = tuple(zip(replica.tensor, replica.kinds, replica.sizes, strict=True))
        sized = {
            sort: stages_of(self.job_of(replica, rank), self._shared_layout(replica, rank))
            for rank, sort in enumerate(sorts)
        }

        def member(stage: int, rank: int) -> Member:
            described = sized[sorts[rank]][stage].only
            serves, joined = replica.serves[rank], replica.joined_of(rank)
            return replace(described, rank=rank, serves=serves, joined=joined)

        return tuple(
            Stage(tuple(member(stage, rank) for rank in replica.ranks_of(stage)))
            for stage in range(replica.layout.stages)
        )

    def _shared_layout(self, replica: UnevenReplica, rank: int) -> LayoutSpec:
        """The layout of a rank in which as many reduce a gradient as do of any: what it needs for
        that is sized by them."""
        most = sum(len(r.members) * max(map(len, r.places)) for r in self.replicas)
        return replace(replica.layout_of(rank), data=most)


def _keeping(replica: UnevenReplica, ranks: Collection[int]) -> UnevenReplica:
    recovery = tuple(
        Recovery.NONE if rank in ranks else mode
        for (_, rank), mode in zip(replica.held, replica.recovery, strict=True)
    )
    return replace(replica, recovery=recovery)
