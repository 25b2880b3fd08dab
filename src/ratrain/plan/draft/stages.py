"""What a stage takes on a post: its seconds and recovery, for every number of layers it may hold.

Memory decides the recovery, as in `search`: everything is kept where that fits, and where nothing
fits the stage cannot hold that many layers. Bytes and seconds are those of `price.bill` and of
`price.stage_seconds`, asked for many stages at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from ratrain.cost.blocks import Block
from ratrain.cost.collectives import (
    Transfer,
    gather_loss,
    message_loss,
    reduction_loss,
    ring_half,
)
from ratrain.cost.compute import BlockTimes, reduced_bytes_per_param
from ratrain.cost.measured import Unmeasured
from ratrain.describe.cluster import Link
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.plan.draft.pools import Pool, PoolLinks, Post, Shape, StageMembers
from ratrain.plan.layout.enumerate import StateMode, kinds_of_block
from ratrain.plan.layout.links import speed
from ratrain.plan.layout.sizes import (
    passed_bytes,
    sent_boundary_bytes,
    stores_scores,
    trained_params,
    unit_of,
)
from ratrain.plan.layout.times import boundary_message, times_in_layout
from ratrain.plan.price.bill import Billed, bill_of_stages
from ratrain.plan.price.reductions import reduction
from ratrain.plan.price.stage_seconds import (
    UnitSeconds,
    alone_s,
    stage_seconds,
    units_seconds,
)
from ratrain.program.replicas import Recovery, Unit
from ratrain.program.strategies import Strategy
from ratrain.program.units import RECOVERY_CODE, Ints
from ratrain.simulate.costs import Floats

ENDS: Ints = np.array([[0, 1, 0, 1], [0, 0, 1, 1]])
"""Whether a stage has the embedding, and whether the head: in every way."""
HELD = 8
"""Numbers of micro-batches held for which stages are billed at once."""


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


class StageRows(NamedTuple):
    """A stage by its layers: the work of each member that computes, of each that only holds it, and
    that of all together, as of a single member."""

    computing: tuple[Row, ...]
    holding: tuple[Row, ...]
    together: Row


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
        self.links = PoolLinks(job.cluster.spec, pools)
        self.sized = cache(self._sized)
        self.row = cache(self._row)
        self.rows = cache(self._rows)
        self.times = cache(self._times)
        self.seconds = cache(self._seconds)
        self.is_priced = cache(self._is_priced)
        self.units = cache(self._units)
        self.works = cache(self._works)
        self.modes_of = cache(self._modes_of)
        self.message = cache(self._message)
        self.driving_s = cache(self._driving_s)
        self.message_s = cache(self._message_s)
        self.holders = cache(self._holders)
        self.reduction_link = cache(self._reduction_link)
        self.exchange_s = cache(self._exchange_s)

    def _sized(self, micro_batch: int, layout: LayoutSpec) -> JobSpec:
        batch = Batch(self.job.batch.sequences, micro_batch)
        return replace(self.job, batch=batch, layout=layout)

    def _times(self, post: Post, micro_batch: int) -> tuple[BlockTimes, ...]:
        """Of an embedding, a layer, a head, and a layer in selective recovery."""
        layout = post.layout
        job, link = self.sized(micro_batch, layout), self.links.inside(post.pool, post.tensor)
        kind = self.pools[post.pool].kind

        def time(block: Block, *, selective: bool = False) -> BlockTimes:
            return times_in_layout(job, layout, block, kind, link, selective=selective)

        times = tuple(time(block) for block in self.blocks)
        again = time(self.blocks[1], selective=True) if stores_scores(self.job) else times[1]
        return *times, again

    def _seconds(
        self, post: Post, micro_batch: int
    ) -> tuple[UnitSeconds, UnitSeconds, UnitSeconds]:
        """Of an embedding, a layer and a head."""
        layout, link = post.layout, self.links.inside(post.pool, post.tensor)
        job, kind = self.sized(micro_batch, layout), self.pools[post.pool].kind
        times = self.times(post, micro_batch)
        return units_seconds(job, self.strategy, layout, kind, link, times)

    def _is_priced(self, post: Post, micro_batch: int) -> bool:
        """Whether the layers are measured in this tensor degree, or their device has rates."""
        try:
            self.seconds(post, micro_batch)
        except Unmeasured:
            return False
        return True

    def _units(self, post: Post, micro_batch: int, data: int) -> tuple[Unit, Unit, Unit]:
        """Their bytes; `data`: replicas that hold them."""
        layout = replace(post.layout, pipeline=2, data=data)
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
        link = self.links.boundary(source.pool, target.pool)
        if link is None:
            return None
        layout = replace(source.layout, pipeline=2)
        size_bytes = sent_boundary_bytes(self.sized(micro_batch, layout))
        inside = self.links.inside(target.pool, target.tensor)
        kind = self.pools[source.pool].kind
        groups = source.layout, target.layout
        sent = boundary_message(self.job, size_bytes, link, kind, groups, inside)
        return sent, link

    def _exchange_s(
        self, post: Post, params: float, data: int, link: Link, weight_bytes: int
    ) -> tuple[float, float, float]:
        """Seconds in which a ring of so many has a gradient of these parameters reduced, divided
        among them, and their weights gathered; and what both take of a rank's compute."""
        job, kind, rate = self.job, self.pools[post.pool].kind, link.bandwidth_bytes_per_s

        def half(size_bytes: float, widened: float = 1.0, /) -> Transfer:
            return ring_half(size_bytes, data, link, widened)

        each_bytes = reduced_bytes_per_param(kind, job.schedule.dtype, job.schedule.gradient_wire)
        size = params / post.tensor
        reduced = reduction(job, half, size, each_bytes * size, kind, owners=data)
        gathered = half(weight_bytes * size)
        driving_s = reduction_loss(kind).of(reduced) + gather_loss(kind).of(gathered)
        return reduced.alone_s(rate), gathered.alone_s(rate), driving_s

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
        return min(map(self.links.slowest, of_layers), key=speed)

    def _rows(
        self,
        members: StageMembers,
        micro_batch: int,
        behind: int,
        first: bool,
        last: bool,
        beside: int,
        state: StateMode,
        most: int,
    ) -> StageRows:
        """The work of a stage's members. `behind`: members that compute from this stage on: each
        holds its share of as many micro-batches. `beside`: further replicas. `most`: who hold any
        stage of the replica."""
        rest = first, last, len(members.posts) + beside, state, most + beside
        held = self._held(members.computing, micro_batch, behind)
        computing = tuple(
            self.row(post, micro_batch, in_flight, *rest)
            for post, in_flight in zip(members.computing, held, strict=True)
        )
        holding = tuple(self.row(post, micro_batch, 0, *rest) for post in members.holding)
        return StageRows(computing, holding, _together(computing))

    def _held(self, posts: Shape, micro_batch: int, behind: int) -> list[int]:
        """How many of so many micro-batches each of the members of a stage holds: the faster ones
        serve more of them."""
        if len(posts) == 1 or not all(self.is_priced(post, micro_batch) for post in posts):
            return [behind] * len(posts)
        rates = [1 / sum(alone_s(self.seconds(post, micro_batch))[1]) for post in posts]
        return [ceil(behind * rate / sum(rates) - 1e-9) for rate in rates]

    def _row(
        self,
        post: Post,
        micro_batch: int,
        behind: int,
        first: bool,
        last: bool,
        data: int,
        state: StateMode,
        most: int = 1,
    ) -> Row:
        """A stage's work by its layers. `behind`: stages from it to the end, itself included, as
        many as the micro-batches that it holds in 1F1B. `data`: replicas that share its states;
        `most`: that share those of any stage."""
        if not self.is_priced(post, micro_batch):
            return Row((None,) * (self.job.model.spec.layers + 1))
        held = min(behind, self._micro_batches(micro_batch))
        block, column = divmod(held, HELD)
        end, works = first + 2 * last, self.works(post, micro_batch)
        modes = self.modes_of(post, micro_batch, data, state, block, most)[end][column]
        by_mode = works[end]
        return Row(
            by_mode[mode][layers] if mode < len(by_mode) else None
            for layers, mode in enumerate(modes)
        )

    def _micro_batches(self, micro_batch: int) -> int:
        """Of the whole batch."""
        return -(-self.job.batch.sequences // micro_batch)

    @cached_property
    def _every_row(self) -> tuple[Ints, Ints]:
        """A row for every number of layers in every mode: both."""
        most, count = self.job.model.spec.layers + 1, len(self.modes)
        codes = np.array([RECOVERY_CODE[mode] for mode in self.modes], dtype=np.int64)
        return np.tile(np.arange(most), count)[:, None], np.repeat(codes, most)[:, None]

    def work(
        self, post: Post, micro_batch: int, layers: int, first: bool, last: bool, mode: Recovery
    ) -> StageWork:
        return self.works(post, micro_batch)[first + 2 * last][self.modes.index(mode)][layers]

    def _works(self, post: Post, micro_batch: int) -> tuple[tuple[tuple[StageWork, ...], ...], ...]:
        """By the units at its ends (`ENDS`), by mode, by layers."""
        layers, recovery = self._every_row
        units, buffer = self.seconds(post, micro_batch), self.job.schedule.recovery_buffer

        def column(unit: int, name: str) -> Floats:
            return np.array([getattr(units[unit], name)])

        made = stage_seconds(
            self.job, self.strategy, column, layers, recovery, np.array(buffer), (ENDS[0], ENDS[1])
        )
        # To a stage beside it a tensor goes, and from there one comes.
        moved_s = self.driving_s(post, micro_batch) * (2 - ENDS.sum(axis=0))
        times_s = [made.forward_s + moved_s, made.backward_s + moved_s, made.early_s]
        shape = len(self.modes), self.job.model.spec.layers + 1
        every = [(seconds + 0.0 * moved_s).T.reshape(-1, *shape).tolist() for seconds in times_s]
        return tuple(
            tuple(
                tuple(StageWork(f, b, e, mode) for f, b, e in zip(*of_mode, strict=True))
                for mode, *of_mode in zip(self.modes, *of_end, strict=True)
            )
            for of_end in zip(*every, strict=True)
        )

    def _modes_of(
        self, post: Post, micro_batch: int, data: int, state: StateMode, block: int, most: int
    ) -> list[list[list[int]]]:
        """By the units at its ends, by `HELD` numbers of micro-batches held: for each number of
        layers which mode is the first to fit; as many as there are where none does."""
        budget = self.job.budget_of(self.pools[post.pool].kind)
        over = self.bills(post, micro_batch, data, state, block, most) > budget
        return np.moveaxis(over.cumprod(axis=0).sum(axis=0), 0, -1).tolist()

    def bills(
        self, post: Post, micro_batch: int, data: int, state: StateMode, block: int, most: int = 1
    ) -> Ints:
        """Bytes of a rank: by mode, by layers, by ends, by micro-batches held. What reductions need
        is sized by as many as hold any stage."""
        layers, recovery = self._every_row
        layout = replace(post.layout, pipeline=2, data=data)
        first, last = np.repeat(ENDS, HELD, axis=1)
        held = np.tile(np.arange(block * HELD, (block + 1) * HELD), ENDS.shape[1])
        row, none = np.ones((len(layers), 1), dtype=np.int64), np.zeros_like(layers + first)
        stages = Billed(
            self.sized(micro_batch, layout).of_kind(self.pools[post.pool].kind),
            layout,
            self.strategy,
            self.units(post, micro_batch, max(most, data)),
            layers + none,
            row * state.sharding,
            row * state.sharded_gradients > 0,
            row * self.job.schedule.recovery_buffer,
            self._micro_batches(micro_batch),
            first,
            last,
            held,
        )
        total = bill_of_stages(stages, recovery + none).total
        return total.reshape(len(self.modes), -1, ENDS.shape[1], HELD)
