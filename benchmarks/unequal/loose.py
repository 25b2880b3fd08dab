"""The least that a plan's step takes: its program at the grain of stages, with nothing in it that a
whole program may hide or not have.

Sums of tensor groups take no time, every transfer has a link to itself, a unit's parts are as small
as the largest tensor degree makes them, and the devices that hold it are those that take least. All
else is an op of the whole program, or several in one. What is left are fixed times and waits, so no
op ends later for what was taken away. (With shared links it might: one that comes late leaves them
to others.)
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from ratrain.describe.cluster import Device, Link
from ratrain.describe.job import JobSpec
from ratrain.plan.draft.clock import STEPS, Holders, StageClock, StageProgram, UnitSums
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Part
from ratrain.plan.draft.pools import Pool, PoolLinks, Post, pools_of
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.price.stage_seconds import UnitSeconds
from ratrain.program.replicas import Recovery


class _WholeLinks(PoolLinks):
    """Links that every group has for itself."""

    def _shared(self, link: Link, pool: Pool, members: int) -> Link:
        return link


class LooseStages(Stages):
    """Stages without the sums of their tensor groups. Memory is ample, so nothing is recovered."""

    def __init__(self, job: JobSpec) -> None:
        pools = pools_of(job.cluster.members())
        super().__init__(job, pools, strategy_of(job), [Recovery.NONE])
        self.links = _WholeLinks(job.cluster.spec, pools)

    def _seconds(
        self, post: Post, micro_batch: int
    ) -> tuple[UnitSeconds, UnitSeconds, UnitSeconds]:
        embedding, layer, head = (
            replace(unit, sums_s=0.0, sums_driving_s=0.0)
            for unit in super()._seconds(post, micro_batch)
        )
        return embedding, layer, head


class LooseClock(StageClock):
    """Times drafts, none above its whole program."""

    def least_s(self, draft: Draft) -> float:
        """The least that a draft of level 0 or 1 takes."""
        step_s = self.step_s(draft)
        assert step_s is not None, "levels 0 and 1 have such programs"
        return step_s

    def replica_s(self, part: Part, share: int, data: int, state: StateMode) -> float:
        """The least that a replica among `data` takes, were the others never late."""
        return self.least_s(Draft((part,) * data, (share,) * data, state, 0.0, trainable=True))

    def _ends_s(self, program: StageProgram, *, compiled: bool) -> list[float]:
        program.part_links()
        return program.ends_s(STEPS, compiled=compiled)

    def _collectives_of(
        self, holders: Holders, block: int, sharded: bool, used: tuple[int, ...]
    ) -> UnitSums:
        """The least over all devices that may hold a unit. Where all holders are alike they may
        stand for one of them and others that are not known yet."""
        widest = max(post.tensor for post, _ in holders)
        groups = self._groups(*holders[0]) if len(holders) == 1 else [self._members(holders)]
        return min(
            (self._sums_of(holders, block, group, group, widest, sharded) for group in groups),
            key=self._alone_s,
        )

    def _groups(self, post: Post, count: int) -> list[list[Device]]:
        """So many devices of any pools, one of them of the post's."""
        pools = self._stages.pools
        return [
            [d for pool, taken in zip(pools, counts, strict=True) for d in pool.devices[:taken]]
            for counts in product(*(range(len(pool.devices) + 1) for pool in pools))
            if sum(counts) == count and counts[post.pool] > 0
        ]

    def _alone_s(self, sums: UnitSums) -> float:
        rate = self._stages.links.rates_bytes_per_s[sums.link]
        return sums.reduction.alone_s(rate) + sums.gather.alone_s(rate)
