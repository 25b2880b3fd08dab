"""What a stage takes on a post: its seconds and recovery, for every number of layers it may hold.

Memory decides the recovery, as in `search`: everything is kept where that fits, and where nothing
fits the stage cannot hold that many layers. The bill is rougher than `bill`; the verifier decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import inf
from typing import NamedTuple

from ratrain.cost.blocks import BlockKind
from ratrain.cost.collectives import Transfer, message_loss
from ratrain.cost.compute import BlockTimes
from ratrain.cost.measured import Unmeasured
from ratrain.describe.cluster import Link
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.plan.draft.pools import Pool, PoolLinks, Post, Shape, StageMembers
from ratrain.plan.layout.enumerate import StateMode, kinds_of_block
from ratrain.plan.layout.links import speed
from ratrain.plan.layout.sizes import (
    boundary_bytes,
    passed_bytes,
    sent_boundary_bytes,
    trained_params,
    unit_of,
)
from ratrain.plan.layout.times import boundary_message, sums_of_op, times_in_layout
from ratrain.plan.price.kind_speed import kind_speed
from ratrain.program.families import OPTIMIZER_SLOTS
from ratrain.program.passes.state_pipeline import TRANSIT_SLOTS
from ratrain.program.replicas import Recovery, Unit
from ratrain.program.strategies import Strategy


@dataclass(frozen=True)
class Seconds:
    """One micro-batch of a unit: forward and backward with the sums of its tensor group."""

    forward_s: float
    backward_s: float


class StageWork(NamedTuple):
    """A stage of this many layers for one micro-batch, with what its own processors take to move
    tensors between stages. `early_s`: recovery ahead of backward."""

    forward_s: float
    backward_s: float
    early_s: float
    recovery: Recovery

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.backward_s


class Row(tuple[StageWork | None, ...]):
    """By the number of layers; None where they do not fit."""

    @cached_property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds of compute of each, infinite where they do not fit, and where there are more
        than all."""
        return (*(inf if work is None else work.busy_s for work in self), inf, inf)

    @cached_property
    def kept(self) -> int:
        """Up to how many layers everything is kept."""
        return sum(work is not None and work.recovery is Recovery.NONE for work in self) - 1


class StageRows(NamedTuple):
    """A stage by its layers: the work of each member that computes, of each that only holds it, and
    that of all together, as of a single member; and up to how many of them no member recovers."""

    computing: tuple[Row, ...]
    holding: tuple[Row, ...]
    together: Row
    kept: int


def _together(rows: Sequence[Row]) -> Row:
    """The work of a stage whose members have these, as that of a single one: with f + b seconds
    each they work like one of 1 / sum of 1 / (f + b) seconds a micro-batch."""
    if len(rows) == 1:
        return rows[0]

    def together(busy_s: Sequence[float]) -> StageWork | None:
        if inf in busy_s or 0.0 in busy_s:
            return None
        return StageWork(
            0.0, 1 / sum(1 / of_member_s for of_member_s in busy_s), 0.0, Recovery.NONE
        )

    of_layers = zip(*(row.busy_s[1 : len(row)] for row in rows), strict=True)
    return Row((None, *map(together, of_layers)))


class Stages:
    """The stages that a job can have on pools, each priced once."""

    def __init__(
        self, job: JobSpec, pools: Sequence[Pool], strategy: Strategy, modes: Sequence[Recovery]
    ) -> None:
        self.job, self.pools, self.strategy, self.modes = job, pools, strategy, modes
        self.blocks = kinds_of_block(job)
        self.trained = tuple(trained_params(job, block, 2) for block in self.blocks)
        self._links = PoolLinks(job.cluster.spec, pools)
        self._recovers_heads = strategy.recovers_heads
        self._speeds = [1 / kind_speed(job, pool.kind).layer_s for pool in pools]
        self.row = cache(self._row)
        self.rows = cache(self._rows)
        self.times = cache(self._times)
        self.seconds = cache(self._seconds)
        self.scores_s = cache(self._scores_s)
        self.is_priced = cache(self._is_priced)
        self.units = cache(self._units)
        self.message = cache(self._message)
        self.driving_s = cache(self._driving_s)
        self.message_s = cache(self._message_s)
        self.holders = cache(self._holders)
        self.reduction_link = cache(self._reduction_link)

    def speed_of(self, used: Sequence[int]) -> float:
        """The rate of these numbers of devices of each pool: layers of a sequence per second."""
        return sum(count * speed for count, speed in zip(used, self._speeds, strict=True))

    @property
    def links(self) -> PoolLinks:
        return self._links

    def sized(self, micro_batch: int, layout: LayoutSpec) -> JobSpec:
        batch = Batch(self.job.batch.sequences, micro_batch)
        return replace(self.job, batch=batch, layout=layout)

    def _times(self, post: Post, micro_batch: int) -> tuple[BlockTimes, BlockTimes, BlockTimes]:
        """Of an embedding, a layer and a head."""
        layout = post.layout
        job, link = self.sized(micro_batch, layout), self._links.inside(post.pool, post.tensor)
        kind = self.pools[post.pool].kind
        embedding, layer, head = (
            times_in_layout(job, layout, block, kind, link) for block in self.blocks
        )
        return embedding, layer, head

    def _seconds(self, post: Post, micro_batch: int) -> tuple[Seconds, Seconds, Seconds]:
        """Of an embedding, a layer and a head."""
        layout = post.layout
        job, link = self.sized(micro_batch, layout), self._links.inside(post.pool, post.tensor)

        seen = job.of_kind(self.pools[post.pool].kind)

        def seconds(block_times: BlockTimes, sums_s: float) -> Seconds:
            sums_s = 0.0 if block_times.sums_inside else sums_s
            return Seconds(block_times.forward_s + sums_s, block_times.backward_s + sums_s)

        embedding, layer, head = (
            seconds(block_times, _sums_s(seen, layout, block.kind, link))
            for block_times, block in zip(self.times(post, micro_batch), self.blocks, strict=True)
        )
        return embedding, layer, head

    def _scores_s(self, post: Post, micro_batch: int) -> float:
        """What selective recovery adds to a layer's backward."""
        job, link = self.sized(micro_batch, post.layout), self._links.inside(post.pool, post.tensor)
        layer, kind = self.blocks[1], self.pools[post.pool].kind
        again = times_in_layout(job, post.layout, layer, kind, link, selective=True)
        return again.backward_s - self.times(post, micro_batch)[1].backward_s

    def _is_priced(self, post: Post, micro_batch: int) -> bool:
        """Whether the layers are measured in this tensor degree, or their device has rates."""
        try:
            self.seconds(post, micro_batch)
        except Unmeasured:
            return False
        return True

    def _units(self, post: Post, micro_batch: int, many: bool) -> tuple[Unit, Unit, Unit]:
        """Their bytes; `many`: other replicas hold them as well."""
        layout = replace(post.layout, pipeline=2, data=2 if many else 1)
        job = self.sized(micro_batch, layout).of_kind(self.pools[post.pool].kind)
        embedding, layer, head = (
            unit_of(job, layout, block, passed_bytes(job, layout)) for block in self.blocks
        )
        return embedding, layer, head

    def _driving_s(self, post: Post, micro_batch: int) -> float:
        """What a rank of a post loses of its compute to a tensor that it sends or receives."""
        layout = replace(post.layout, pipeline=2)
        size_bytes = sent_boundary_bytes(self.sized(micro_batch, layout))
        per_message_s, per_byte_s = message_loss(self.pools[post.pool].kind)
        return per_message_s + per_byte_s * size_bytes

    def _message_s(self, source: Post, target: Post, micro_batch: int) -> float:
        """Seconds of a tensor from one post to another."""
        sent = self.message(source, target, micro_batch)
        return inf if sent is None else sent[0].alone_s(sent[1].bandwidth_bytes_per_s)

    def _message(
        self, source: Post, target: Post, micro_batch: int
    ) -> tuple[Transfer, Link] | None:
        """A tensor from one post to another, and its link; None where there is none."""
        link = self._links.boundary(source.pool, target.pool)
        if link is None:
            return None
        layout = replace(source.layout, pipeline=2)
        size_bytes = sent_boundary_bytes(self.sized(micro_batch, layout))
        inside = self._links.inside(target.pool, target.tensor)
        kind = self.pools[source.pool].kind
        groups = source.layout, target.layout
        sent = boundary_message(self.job, size_bytes, link, kind, groups, inside)
        return sent, link

    def _holders(self, posts: tuple[Shape, ...], layers: tuple[int, ...]) -> int:
        """The pools that hold each layer: layer by layer one bit for each pool, the first layer in
        the lowest bits."""
        bits = place = 0
        for of_stage, count in zip(posts, layers, strict=True):
            pools = 0
            for post in of_stage:
                pools |= 1 << post.pool
            for _ in range(count):
                bits |= pools << place
                place += len(self.pools)
        return bits

    def _reduction_link(self, holders: int) -> Link:
        """The slowest link that the reductions of layers cross, whose `holders` these are over all
        replicas."""
        pools, of_layers = len(self.pools), set[frozenset[int]]()
        while holders:
            of_layers.add(frozenset(pool for pool in range(pools) if holders >> pool & 1))
            holders >>= pools
        return min(map(self._links.slowest, of_layers), key=speed)

    def _rows(
        self,
        members: StageMembers,
        micro_batch: int,
        behind: int,
        first: bool,
        last: bool,
        beside: int,
        state: StateMode,
    ) -> StageRows:
        """The work of a stage's members. `behind`: members that compute from this stage on: each
        holds its share of as many micro-batches. `beside`: further replicas."""
        owners, held = len(members.posts) + beside, -(-behind // len(members.computing))
        computing, holding = (
            tuple(
                self.row(post, micro_batch, in_flight, first, last, owners, state) for post in posts
            )
            for posts, in_flight in ((members.computing, held), (members.holding, 0))
        )
        kept = min(row.kept for row in computing)
        return StageRows(computing, holding, _together(computing), kept)

    def _row(
        self,
        post: Post,
        micro_batch: int,
        behind: int,
        first: bool,
        last: bool,
        data: int,
        state: StateMode,
    ) -> Row:
        """A stage's work by its layers. `behind`: stages from it to the end, itself included, as
        many as the micro-batches that it holds in 1F1B. `data`: replicas that share its states."""
        most = self.job.model.spec.layers
        if not self.is_priced(post, micro_batch):
            return Row((None,) * (most + 1))
        budget = self.job.budget_of(self.pools[post.pool].kind)
        units = self.units(post, micro_batch, data > 1)
        ends = tuple(
            unit for unit, is_there in zip(units[::2], (first, last), strict=True) if is_there
        )
        held = min(behind, -(-self.job.batch.sequences // micro_batch))
        bills = [(mode, self.bill(ends, units[1], mode, held, data, state)) for mode in self.modes]
        limits = [(mode, _most_layers(bill, budget, most)) for mode, bill in bills]
        row: list[StageWork | None] = []
        for layers in range(most + 1):
            mode = next((mode for mode, limit in limits if layers <= limit), None)
            row.append(
                None if mode is None else self.work(post, micro_batch, layers, first, last, mode)
            )
        return Row(row)

    def work(
        self, post: Post, micro_batch: int, layers: int, first: bool, last: bool, mode: Recovery
    ) -> StageWork:
        embedding, layer, head = self.seconds(post, micro_batch)
        forward_s = layers * layer.forward_s
        backward_s = layers * layer.backward_s
        early_s = 0.0
        if mode.again:
            backward_s += layers * layer.forward_s
            if mode is Recovery.FORWARD:
                early_s = min(self.job.schedule.recovery_buffer, layers) * layer.forward_s
            if last and self._recovers_heads:
                backward_s += head.forward_s
        if mode is Recovery.SELECTIVE:
            backward_s += layers * self.scores_s(post, micro_batch)
        for unit, is_there in ((embedding, first), (head, last)):
            if is_there:
                forward_s += unit.forward_s
                backward_s += unit.backward_s
            else:  # a stage beside it: a tensor comes and one goes
                forward_s += self.driving_s(post, micro_batch)
                backward_s += self.driving_s(post, micro_batch)
        return StageWork(forward_s, backward_s, early_s, mode)

    def bill(
        self,
        ends: Sequence[Unit],
        layer: Unit,
        mode: Recovery,
        held: int,
        data: int,
        state: StateMode,
    ) -> Callable[[int], int]:
        """About how many bytes a rank needs for so many layers, and an embedding or a head at its
        ends."""
        owners = data if state.sharding else 1
        views = _total(ends, layer, lambda unit: unit.view_bytes)
        gradients = _total(ends, layer, lambda unit: unit.gradient_bytes)
        away = bool(self.job.optimizer_tier)  # slots of the largest, in place of all

        def owned(unit: Unit) -> int:
            return -(-unit.optimizer_bytes // owners)

        optimizer = _total(ends, layer, lambda unit: 0 if away else owned(unit))
        inputs = _total(ends, layer, lambda unit: unit.input_bytes)
        kept = _total(ends, layer, lambda unit: unit.saved_bytes - _freed(unit, mode))
        buffer = self.job.schedule.recovery_buffer if mode is Recovery.FORWARD else 1
        residuals = self.job.residuals * (data > 1)
        bucket = self.job.bucket_bytes

        def fixed(sorts: Sequence[Unit]) -> tuple[int, int, int]:
            """Slots and scratch with what is recovered; gathered views; gradients in transit."""
            if not sorts:
                return 0, 0, 0
            lean = max((unit.saved_bytes for unit in sorts if unit.recoverable), default=0)
            again = buffer * lean if mode.again else 0
            slots = 6 * max(unit.input_bytes for unit in sorts)
            slots += OPTIMIZER_SLOTS * away * max(map(owned, sorts))
            scratch = max(unit.scratch_bytes for unit in sorts)
            largest = max(unit.gradient_bytes for unit in sorts)
            transit = largest if bucket is None else min(largest, bucket)
            gathered = 3 * max(unit.view_bytes for unit in sorts)
            return again + slots + scratch, gathered, TRANSIT_SLOTS * transit

        alone, together = fixed(ends), fixed((*ends, layer))

        def bill(layers: int) -> int:
            rest, gathered, transit = together if layers else alone
            view, whole = views(layers), gradients(layers)
            gradient = -(-whole // data) + transit if state.sharded_gradients else whole
            if state.sharding == 3:
                view = -(-view // data) + gathered
            left = residuals * whole
            activations = held * (inputs(layers) + kept(layers))
            return view + gradient + left + optimizer(layers) + activations + rest

        return bill


def _most_layers(bill: Callable[[int], int], budget: int, most: int) -> int:
    """How many layers have room in a budget, -1 where not even none have: more need more."""
    return bisect_right(range(most + 1), budget, key=bill) - 1


def _total(ends: Sequence[Unit], layer: Unit, size: Callable[[Unit], int]) -> Callable[[int], int]:
    """A size of the units at a stage's ends and of so many layers."""
    of_ends, of_layer = sum(map(size, ends)), size(layer)
    return lambda layers: of_ends + layers * of_layer


def _freed(unit: Unit, mode: Recovery) -> int:
    """What a recovery mode does not keep of a unit's activations."""
    if mode is Recovery.SELECTIVE:
        return unit.scores_bytes
    return unit.saved_bytes if mode.again and unit.recoverable else 0


def _sums_s(job: JobSpec, layout: LayoutSpec, kind: BlockKind, link: Link | None) -> float:
    """Seconds of a unit's sums that are ops of their own, in one direction."""
    if link is None:
        return 0.0
    sums = sums_of_op(job, kind, boundary_bytes(job), layout, link)
    return sums.alone_s(link.bandwidth_bytes_per_s)
