"""A plan before it has devices: replicas, their shares of the step, and about what they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heapreplace
from math import inf

from ratrain.cost.algorithms import DIRECT
from ratrain.describe.job import JobSpec
from ratrain.plan.draft.parts import Part
from ratrain.plan.draft.pools import Post, used_of
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.sizes import gathered_bytes_per_param, trains_tied


@dataclass(frozen=True)
class Draft:
    """A plan before it has devices: parts, each with its micro-batches."""

    parts: tuple[Part, ...]
    shares: tuple[int, ...]
    state: StateMode
    estimate_s: float
    trainable: bool  # whether processes can run replicas that differ so: see `trainable`

    @property
    def alone_s(self) -> float:
        """How long its slowest part takes, without what replicas send each other."""
        return max(part.step_s(share) for part, share in zip(self.parts, self.shares, strict=True))

    @cached_property
    def has_members(self) -> bool:
        """Whether a stage has several."""
        return any(part.has_members for part in self.parts)

    @property
    def shares_states(self) -> bool:
        """Whether anyone holds what someone else holds too."""
        return len(self.parts) > 1 or self.has_members

    @property
    def exchanges_more(self) -> bool:
        """Whether states travel with every micro-batch: never faster than where all fits
        without."""
        state = self.state
        return self.shares_states and (state.sharded_gradients or state.sharding == 3)

    @property
    def all_posts(self) -> Iterator[Post]:
        return (post for part in self.parts for shape in part.posts for post in shape)

    def used(self, pools: int) -> tuple[int, ...]:
        """How many devices of each pool it takes."""
        return used_of(tuple(self.all_posts), pools)

    @property
    def divided(self) -> bool:
        """Whether its tensor groups divide sequences."""
        return any(post.divided for post in self.all_posts)

    @property
    def ops(self) -> int:
        """About as many ops as its program has; long ones repeat themselves and are kept short."""
        return sum(
            min(share, 64) * (2 * sum(part.layers) + 4 * len(part.members))
            for part, share in dict.fromkeys(zip(self.parts, self.shares, strict=True))
        )

    @cached_property
    def key(self) -> object:
        """What tells drafts apart: the order of parts does not, nor how a part alone would share
        its states."""
        return self.work, self.state if self.shares_states else None

    @cached_property
    def work(self) -> object:
        """What is the same of drafts that differ in how states are shared alone."""
        return frozenset(Counter(zip(self.parts, self.shares, strict=True)).items())

    @cached_property
    def family(self) -> object:
        """What is the same of drafts that differ in cuts and shares alone."""
        return frozenset(Counter(part.posts for part in self.parts).items()), self.state


def shared(stages: Stages, parts: Sequence[Part], shares: Sequence[int], state: StateMode) -> Draft:
    """Parts with given shares."""
    sides = dict.fromkeys(zip(parts, shares, strict=True))
    pipe_s = max(part.step_s(share) for part, share in sides)
    has_members = any(part.has_members for part in parts)
    tail_s = _tail_s(stages, parts, state) if len(parts) > 1 or has_members else 0.0
    trainable = _is_trainable(stages.job, parts)
    return Draft(tuple(parts), tuple(shares), state, pipe_s + tail_s, trainable)


def _is_trainable(job: JobSpec, parts: Sequence[Part]) -> bool:
    if job.collective == DIRECT and not job.schedule.error_feedback:
        return True
    kinds = dict.fromkeys(parts)
    ends = {post.tensor for part in kinds for post in (part.shape[0], part.shape[-1])}
    units = zip(*(part.degrees_of_units for part in kinds), strict=True)
    if len(ends) > 1 < len(parts) and trains_tied(job):
        return False
    return all(len(frozenset[int]().union(*of_unit)) == 1 for of_unit in units)


def shares_of(parts: Sequence[Part], sequences: int) -> tuple[int, ...] | None:
    """Micro-batches of each part, one for each member of a stage at least: each next one goes to
    the part that will end first with it. None where that does not come to the whole batch."""
    shares = _begun_shares(parts, sequences)
    left = sequences - sum(n * part.micro_batch for n, part in zip(shares, parts, strict=True))
    heap = [(part.step_s(shares[place] + 1), place) for place, part in enumerate(parts)]
    heapify(heap)
    while left > 0 and heap[0][0] < inf:
        place = heap[0][1]
        if parts[place].micro_batch > left:
            heapreplace(heap, (inf, place))
            continue
        shares[place] += 1
        left -= parts[place].micro_batch
        heapreplace(heap, (parts[place].step_s(shares[place] + 1), place))
    return tuple(shares) if left == 0 else None


def _begun_shares(parts: Sequence[Part], sequences: int) -> list[int]:
    """Micro-batches that each part gets in any case, so that few are left to hand out one by one.

    A part's time T(n) is convex in its micro-batches n. With s the slope of very many, N sequences,
    T(1) + s (n - 1) >= T(n) >= T(N) - s (N - n). The right bound gives a time before which the
    whole batch cannot end, the left one how many micro-batches each part has done by then.
    """
    slopes_s = [part.step_s(sequences + 1) - part.step_s(sequences) for part in parts]
    above_s = [part.step_s(1) - slope_s for part, slope_s in zip(parts, slopes_s, strict=True)]
    below_s = [
        part.step_s(sequences) - sequences * slope_s
        for part, slope_s in zip(parts, slopes_s, strict=True)
    ]
    rates = [part.micro_batch / slope_s for part, slope_s in zip(parts, slopes_s, strict=True)]
    rest = sequences - sum(part.micro_batch for part in parts)
    end_s = (
        rest + sum(rate * at_none_s for rate, at_none_s in zip(rates, below_s, strict=True))
    ) / sum(rates)
    return [
        max(part.fewest, int((end_s - at_none_s) / slope_s) - 1)
        for part, at_none_s, slope_s in zip(parts, above_s, slopes_s, strict=True)
    ]


def _tail_s(stages: Stages, parts: Sequence[Part], state: StateMode) -> float:
    """About what reductions and gathers add behind the last backward of those who share states."""
    alike, holders = dict.fromkeys(parts), 0
    for part in alike:
        holders |= stages.holders(part.posts, part.layers)
    used = {stages.pools[post.pool].kind for part in alike for of in part.posts for post in of}
    gathered, shares = gathered_bytes_per_param(stages.job, used), state.sharding > 0
    key = len(parts) - 1, holders, gathered, shares
    for part in alike:
        if key not in part.tails_s:
            part.tails_s[key] = _tail_of(stages, part, *key)
    return max(part.tails_s[key] for part in alike)


def _tail_of(
    stages: Stages, part: Part, beside: int, holders: int, weight_bytes: int, shares: bool
) -> float:
    """The same of one of them; `beside`: further replicas, `holders`: the pools of each layer,
    `weight_bytes`: of a gathered parameter, `shares`: whether they share states."""
    embedding, layer, head = stages.trained
    last, longest = len(part.members) - 1, 0.0
    for s, (stage, works, count) in enumerate(
        zip(part.members, part.works, part.layers, strict=True)
    ):
        bits, data = count * len(stages.pools), len(stage.posts) + beside
        held, holders = holders & (1 << bits) - 1, holders >> bits
        if data == 1:
            continue
        link = stages.reduction_link(held)
        params = count * layer + (s == 0) * embedding + (s == last) * head
        for post, work in zip(stage.computing, works, strict=True):
            known = data, link, weight_bytes
            reduced_s, gathered_s, driving_s = stages.exchange_s(post, params, *known)
            largest = max(layer, (s == 0) * embedding)
            unit_s, unit_back_s, _ = stages.exchange_s(post, largest, *known)
            twice = 1 if shares else 2
            tail_s = max(twice * reduced_s - work.backward_s, twice * unit_s)
            if shares:
                tail_s += max(gathered_s - work.forward_s, unit_back_s)
            longest = max(longest, tail_s, driving_s + unit_s + unit_back_s)
    return longest
