"""What a stage takes on a post: its seconds and recovery, for every number of layers it may hold.

Memory decides the recovery, as in `search`: everything is kept where that fits, and where nothing
fits the stage cannot hold so many layers. The bill is rougher than `bill`; the verifier decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from ratrain.cost.blocks import BlockKind
from ratrain.cost.compute import BlockTimes
from ratrain.cost.measured import Unmeasured
from ratrain.describe.cluster import Link
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.plan.compute_times import times_in_layout
from ratrain.plan.enumerate import StateMode, kinds_of_block
from ratrain.plan.kind_speed import kind_speed
from ratrain.plan.sizes import boundary_bytes, sent_boundary_bytes, unit_of
from ratrain.plan.transfers import group_message, regrouped_message, sums_of_op, tensor_sums
from ratrain.plan.unequal_pools import Pool, PoolLinks, Post
from ratrain.program.setup import Recovery, Unit
from ratrain.program.strategies import Strategy

_TRANSIT_BYTES = 25_000_000


@dataclass(frozen=True)
class Seconds:
    """One micro-batch of a unit: forward and backward with the sums of its tensor group."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class StageWork:
    """A stage of so many layers for one micro-batch. `early_s`: recovery ahead of backward."""

    forward_s: float
    backward_s: float
    early_s: float
    recovery: Recovery

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.backward_s


Row = tuple[StageWork | None, ...]
"""By the number of layers; None where they do not fit."""


class Stages:
    """The stages that a job can have on pools, each priced once."""

    def __init__(
        self, job: JobSpec, pools: Sequence[Pool], strategy: Strategy, modes: Sequence[Recovery]
    ) -> None:
        self.job, self.pools, self.modes = job, pools, modes
        self._links = PoolLinks(job.cluster.spec, pools)
        self._recovers_heads = strategy.recovers_heads
        self._speeds = [1 / kind_speed(job, pool.kind).layer_s for pool in pools]
        self.row = cache(self._row)
        self.seconds = cache(self._seconds)
        self.is_priced = cache(self._is_priced)
        self.units = cache(self._units)
        self.message_s = cache(self._message_s)

    def speed_of(self, used: Sequence[int]) -> float:
        """What so many devices of each pool are worth: layers of a sequence per second."""
        return sum(count * speed for count, speed in zip(used, self._speeds, strict=True))

    @property
    def links(self) -> PoolLinks:
        return self._links

    def sized(self, micro_batch: int, layout: LayoutSpec) -> JobSpec:
        batch = Batch(self.job.batch.sequences, micro_batch)
        return replace(self.job, batch=batch, layout=layout)

    def _seconds(self, post: Post, micro_batch: int) -> tuple[Seconds, Seconds, Seconds]:
        """Of an embedding, a layer and a head."""
        layout = LayoutSpec(1, 1, post.tensor)
        job, link = self.sized(micro_batch, layout), self._links.inside(post.pool, post.tensor)

        def seconds(block_times: BlockTimes, sums_s: float) -> Seconds:
            sums_s = 0.0 if block_times.sums_inside else sums_s
            return Seconds(block_times.forward_s + sums_s, block_times.backward_s + sums_s)

        kind = self.pools[post.pool].kind
        embedding, layer, head = (
            seconds(
                times_in_layout(job, layout, block, kind, link),
                _sums_s(job, layout, block.kind, link),
            )
            for block in kinds_of_block(job)
        )
        return embedding, layer, head

    def _is_priced(self, post: Post, micro_batch: int) -> bool:
        """Whether the layers are measured in this tensor degree, or their device has rates."""
        try:
            self.seconds(post, micro_batch)
        except Unmeasured:
            return False
        return True

    def _units(self, tensor: int, micro_batch: int, many: bool) -> tuple[Unit, Unit, Unit]:
        """Their bytes; `many`: other replicas hold them as well."""
        layout = LayoutSpec(2, 2 if many else 1, tensor)
        job = self.sized(micro_batch, layout)
        embedding, layer, head = (
            unit_of(job, layout, block, boundary_bytes(job)) for block in kinds_of_block(job)
        )
        return embedding, layer, head

    def _message_s(self, source: Post, target: Post, micro_batch: int) -> float:
        """Seconds of a tensor from one post to another."""
        link = self._links.boundary(source.pool, target.pool)
        if link is None:
            return inf
        layout = LayoutSpec(2, 1, source.tensor)
        size_bytes = sent_boundary_bytes(self.sized(micro_batch, layout))
        inside = self._links.inside(target.pool, target.tensor)
        kind = self.pools[source.pool].kind
        if source.tensor == target.tensor:
            sent = group_message(size_bytes, link, kind, layout, inside)
        else:
            degrees = source.tensor, target.tensor
            sent = regrouped_message(size_bytes, link, kind, degrees, gathered_over=inside)
        return sent.alone_s(link.bandwidth_bytes_per_s)

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
        if not self.is_priced(post, micro_batch):
            return (None,) * (self.job.model.spec.layers + 1)
        budget = self.job.budget_of(self.pools[post.pool].kind)
        units = self.units(post.tensor, micro_batch, data > 1)
        ends = tuple(
            unit for unit, is_there in zip(units[::2], (first, last), strict=True) if is_there
        )
        held = min(behind, -(-self.job.batch.sequences // micro_batch))
        row: list[StageWork | None] = []
        for layers in range(self.job.model.spec.layers + 1):
            held_units = (*ends[: int(first)], *(units[1],) * layers, *ends[int(first) :])
            mode = next(
                (
                    mode
                    for mode in self.modes
                    if self._bytes(held_units, mode, held, data, state) <= budget
                ),
                None,
            )
            row.append(
                None if mode is None else self.work(post, micro_batch, layers, first, last, mode)
            )
        return tuple(row)

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
        for unit, is_there in ((embedding, first), (head, last)):
            if is_there:
                forward_s += unit.forward_s
                backward_s += unit.backward_s
        return StageWork(forward_s, backward_s, early_s, mode)

    def _bytes(
        self, units: Sequence[Unit], mode: Recovery, held: int, data: int, state: StateMode
    ) -> int:
        """About what a rank needs for its units."""
        if not units:
            return 0
        owners = data if state.sharding else 1
        views = sum(unit.view_bytes for unit in units)
        if state.sharding == 3:
            views = -(-views // data) + 3 * max(unit.view_bytes for unit in units)
        gradients = sum(unit.gradient_bytes for unit in units)
        if state.sharded_gradients:
            largest = max(unit.gradient_bytes for unit in units)
            gradients = -(-gradients // data) + 2 * min(largest, _TRANSIT_BYTES)
        optimizer = sum(-(-unit.optimizer_bytes // owners) for unit in units)
        inputs = held * sum(unit.input_bytes for unit in units)
        kept = sum(unit.saved_bytes - _freed(unit, mode) for unit in units)
        lean = max((unit.saved_bytes for unit in units if unit.recoverable), default=0)
        buffer = self.job.schedule.recovery_buffer if mode is Recovery.FORWARD else 1
        again = buffer * lean if mode.again else 0
        slots = 6 * max(unit.input_bytes for unit in units)
        scratch = max(unit.scratch_bytes for unit in units)
        residuals = self.job.residuals * (data > 1) * sum(unit.gradient_bytes for unit in units)
        states = views + gradients + residuals + optimizer
        return states + inputs + held * kept + again + slots + scratch


def _freed(unit: Unit, mode: Recovery) -> int:
    """What a recovery mode does not keep of a unit's activations."""
    if mode is Recovery.SELECTIVE:
        return unit.scores_bytes
    return unit.saved_bytes if mode.again and unit.recoverable else 0


def _sums_s(job: JobSpec, layout: LayoutSpec, kind: BlockKind, link: Link | None) -> float:
    """Seconds of a unit's sums that are ops of their own, in one direction."""
    if link is None:
        return 0.0
    sums = tensor_sums(sums_of_op(job, kind), boundary_bytes(job), layout, link)
    return sums.alone_s(link.bandwidth_bytes_per_s)
