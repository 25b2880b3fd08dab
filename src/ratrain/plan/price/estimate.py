"""The step time by closed formulas, for all rows of a group at once.

Symbols, for stage s of p, m micro-batches: f forward; b backward with recovery, of which u lies on
the gradient's path and e = b - u goes ahead; c a message; k = min(p - s, m) micro-batches held.

    ramp(s) = sum over stages before s of (f + u + 2 c)
    deep(s) = sum over stages behind s of (f + u + 2 c), and the last one's early recovery
    T(s)    = ramp(s) + max(k f + e, f + deep) - e + (m - k)(f + b) + max(k b, deep + u)

and the step takes the largest T(s): the slot of the busiest stage, between the ramps. With long
messages a loop over stages i to j, which j - i + 1 micro-batches share, can be slower than any
stage alone: ramp(i) + m (sum over i..j of (f + u) + 2 c) / (j - i + 1). What a link carries for
each micro-batch bounds the slot from below as well.

A slow stage or line ahead of stage s sets a pace: forwards come every F, the largest f or c before
it, and gradients go every B, the largest b or c. Its first backward comes after k forwards, and
k backwards after its last forward:

    T(s) >= ramp(s) + f + u + max((k - 1) F + (m - 1) B, (m - 1) F + (k - 1) B)

The tail of stage s (reduce, update, gather after its last backward) is exposed where it outlasts
the time until the stage's first forward of the next step: tail(s) - ramp(s). It hides beneath one
micro-batch's backward and forward, or beneath as many as an order takes layer by layer. Where
replicas average their weights every H steps, averages stand for reductions in one tail of H.

Not modelled: links shared between a message and a collective in the ramps; what updates beside
compute take from it; interleaved stages wait for each other only in the ramp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ratrain.cost.collectives import NOTHING, Transfer, gather_loss, message_loss, reduction_loss
from ratrain.cost.compute import reduced_bytes_per_param, update
from ratrain.plan.layout.enumerate import Group, kinds_of_block
from ratrain.plan.layout.links import NamedHalf
from ratrain.plan.layout.placement import ReplicaClass
from ratrain.plan.layout.sizes import (
    gathered_bytes_per_param,
    held_view_bytes,
    sent_boundary_bytes,
    trained_params,
    trains_tied,
)
from ratrain.plan.layout.tiers import move_rate_bytes_per_s
from ratrain.plan.layout.times import boundary_message
from ratrain.plan.price.bill import BACKWARD, NONE, SELECTIVE, SPILL
from ratrain.plan.price.loops import loops
from ratrain.plan.price.reductions import reduction, tied_sum
from ratrain.plan.price.stage_seconds import (
    StageSeconds,
    UnitSeconds,
    stage_seconds,
    units_seconds,
)
from ratrain.program.skeletons import SKELETONS
from ratrain.program.units import Ints
from ratrain.simulate.costs import Floats


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step, for each row; and of its tail, of the stage that decides."""

    step_s: Floats
    tail_s: Floats  # exposed reduction, update and gather


def estimate(group: Group, recovery: Ints) -> Estimate:
    """The `Estimate` of a group: of its slowest class of replicas."""
    estimates = [_Pace(group, recovery, alike).estimate for alike in group.placement.classes]
    if len(estimates) == 1:
        return estimates[0]
    slowest = np.argmax([each.step_s for each in estimates], axis=0)
    rows = np.arange(len(group))
    of_classes = zip(*(vars(each).values() for each in estimates), strict=True)
    return Estimate(*(np.array(column)[slowest, rows] for column in of_classes))


@dataclass(frozen=True)
class _Unit(UnitSeconds):
    """One kind of unit on one device, with its state work."""

    reduce_s: float
    gather_s: float
    reduce_driving_s: float
    gather_driving_s: float
    link_s: float  # of either, for which it has its link to itself: not the latency
    update_s: float
    launch_s: float  # before each update, on the unit's own device
    view_s: float  # to or from the tier in which it waits
    saved_s: float  # the same of what forward saves


class _Pace:
    """One class of replicas: arrays are rows x stages."""

    def __init__(self, group: Group, recovery: Ints, alike: ReplicaClass) -> None:
        self.group, self.recovery, self.alike = group, recovery, alike
        layout = group.layout
        self.stages, self.ranks = layout.stages, layout.pipeline
        self.rank_of = np.arange(self.stages) % self.ranks
        self.data = layout.data
        self.sharded = (group.sharded_gradients & (self.data > 1))[:, None]
        self.per_use = ((group.sharding == 3) & (self.data > 1))[:, None]
        same = group.placement.links.ranks(alike)
        self.alike_units = [self._units(rank) for rank, _ in same.examples]
        self.unit_of = same.which[self.rank_of]
        self.columns: dict[tuple[int, str], Floats] = {}
        self.totals: dict[str, Floats] = {}
        together = SKELETONS[group.strategy.skeleton].together
        self.together = min(together, group.micro_batches)
        self.first = (np.arange(self.stages) == 0) * 1
        self.last = (np.arange(self.stages) == self.stages - 1) * 1

    def _units(self, rank: int) -> tuple[_Unit, _Unit, _Unit]:
        """(embedding, layer, head) on a pipeline rank."""
        group, placement = self.group, self.group.placement
        layout = group.layout
        data = placement.links.data[rank] if self.data > 1 else None
        half = (
            NamedHalf(group.job.collective, placement.data_group(rank)) if data else _nothing_sent
        )
        tensor = placement.inside(rank)
        device = placement.kind(self.alike.kinds[rank])
        times = group.times[device.name]
        parts = kinds_of_block(group.job)
        schedule = group.job.schedule
        dtype = schedule.dtype
        holders = {placement.kind(alike.kinds[rank]) for alike in placement.classes}
        weight_bytes = gathered_bytes_per_param(group.job, holders)
        reduced_bytes = reduced_bytes_per_param(device, dtype, schedule.gradient_wire)

        move_rate = move_rate_bytes_per_s(device, group.job.optimizer_tier)
        view_rate = move_rate_bytes_per_s(device, group.job.view_tier)
        activation_rate = move_rate_bytes_per_s(device, group.job.activation_tier)
        seconds = units_seconds(group.job, group.strategy, layout, device, tensor, times)

        def made(block: int) -> _Unit:
            params = trained_params(group.job, parts[block], layout.pipeline) / layout.tensor
            viewed = held_view_bytes(group.job, parts[block], layout.pipeline, weight_bytes)
            gather = half(viewed / layout.tensor)
            reduce = NOTHING
            if schedule.average_every is not None:
                peers = group.job.peers(self.data)
                reduce = half(group.job.averaged_bytes * params / peers)
            elif data:  # as where states are sharded: `tail_s` counts it twice where they are not
                size_bytes = reduced_bytes * params
                reduce = reduction(group.job, half, params, size_bytes, device, owners=self.data)
            rate = data.bandwidth_bytes_per_s if data else 1.0
            updated = update(times[block], params, 1, device)
            moved_s = 2 * group.units[block].optimizer_bytes / move_rate if move_rate else 0.0
            return _Unit(
                **vars(seconds[block]),
                reduce_s=reduce.alone_s(rate),
                gather_s=gather.alone_s(rate),
                reduce_driving_s=reduction_loss(device).driven(reduce).driving_s,
                gather_driving_s=gather_loss(device).driven(gather).driving_s,
                link_s=max(reduce.volume_bytes, gather.volume_bytes) / rate,
                update_s=max(updated.volume_bytes / device.memory.bandwidth_bytes_per_s, moved_s),
                launch_s=updated.latency_s,
                view_s=group.units[block].view_bytes / view_rate if view_rate else 0.0,
                saved_s=group.units[block].saved_bytes / activation_rate
                if activation_rate
                else 0.0,
            )

        return made(0), made(1), made(2)

    def _column(self, unit: int, name: str) -> Floats:
        """One number for each stage: of an embedding, a layer or a head there."""
        if (unit, name) not in self.columns:
            values = np.array([getattr(units[unit], name) for units in self.alike_units])
            self.columns[unit, name] = values[self.unit_of]
        return self.columns[unit, name]

    def _total(self, name: str) -> Floats:
        """Rows x stages: a unit's number added up over the stage."""
        if name not in self.totals:
            e, layer, h = (self._column(unit, name) for unit in range(3))
            self.totals[name] = self.group.layers * layer + (self.first * e + self.last * h)
        return self.totals[name]

    @cached_property
    def messages(self) -> tuple[Floats, Floats]:
        """Seconds of the message behind each stage: forward, backward."""
        return self._hops[0][:, 0], self._hops[1][:, 0]

    @cached_property
    def driving(self) -> tuple[Floats, Floats]:
        """What a stage's compute loses to the messages of a micro-batch that it sends and receives:
        forward, backward."""
        forward, back = self._hops
        from_before, to_before = forward[:-1, 2], back[:-1, 1]
        return (
            forward[:, 1] + np.r_[0.0, from_before],
            back[:, 2] + np.r_[0.0, to_before],
        )

    @cached_property
    def _hops(self) -> tuple[Floats, Floats]:
        """Stages x (seconds, what the sender's compute loses, what the receiver's loses) of the
        message behind each stage: forward, backward."""
        sent_bytes, placement = sent_boundary_bytes(self.group.job), self.group.placement
        if self.ranks == 1:
            none = np.zeros((self.stages, 3))
            return none, none
        hops, groups = placement.links.hops(self.alike), (self.group.layout, self.group.layout)
        times: list[tuple[float, float, float]] = []
        for source, target in hops.examples:
            link = placement.links.stage(source, target, self.alike.members)
            device, receiver = (placement.kind(self.alike.kinds[end]) for end in (source, target))
            inside = placement.inside(target)
            sent = boundary_message(self.group.job, sent_bytes, link, device, groups, inside)
            taken_s = message_loss(device).driven(sent).driving_s, message_loss(receiver).of(sent)
            times.append((sent.alone_s(link.bandwidth_bytes_per_s), *taken_s))
        every = np.array(times)[hops.which]
        forward, back = every[self.rank_of], every[self.ranks + self.rank_of]
        forward[-1], back[-1] = 0.0, 0.0  # nothing follows the last stage
        return forward, back

    @cached_property
    def _compute(self) -> StageSeconds:
        group = self.group
        buffer, ends = group.buffer[:, None], (self.first, self.last)
        of = group.job, group.strategy, self._column, group.layers, self.recovery, buffer, ends
        return stage_seconds(*of)

    @cached_property
    def forward_s(self) -> Floats:
        """Rows x stages: one micro-batch's forward."""
        time_s = self._compute.forward_s
        gathers_s = self._total("gather_s")
        time_s = np.where(self.per_use, np.maximum(time_s, gathers_s), time_s)
        time_s = np.maximum(time_s, self._moved_s)
        time_s = time_s + self.per_use * self._total("gather_driving_s")
        return time_s + self.driving[0]

    @cached_property
    def backward_s(self) -> tuple[Floats, Floats]:
        """Rows x stages: one micro-batch's backward, and how much of it precedes the gradient."""
        time_s = self._compute.backward_s
        state_s = np.maximum(self.sharded * self._total("reduce_s"), self._moved_s)
        state_s = np.maximum(state_s, self.per_use * self._total("gather_s"))
        longest = np.maximum(state_s, time_s) + self._crowded_s(time_s)
        driving_s = self.sharded * self._total("reduce_driving_s")
        driving_s = driving_s + self.per_use * self._total("gather_driving_s")
        return longest + driving_s + self.driving[1], self._compute.early_s

    @cached_property
    def _moved_s(self) -> Floats:
        """Rows x stages: what one micro-batch's views and activations take from the tiers in which
        they wait, or to them. Micro-batches that go layer by layer share a view."""
        views_s = self._total("view_s") / self.together
        return views_s + (self.recovery == SPILL) * self._total("saved_s")

    @cached_property
    def _hidden_sums_s(self) -> Floats:
        """Rows x ranks: what a step saves where micro-batches go layer by layer: a tensor group
        adds up one micro-batch's layer while it computes the same layer of the next."""
        if self.together == 1 or self.group.job.backend.sums_in_compute:
            return np.zeros((len(self.group), self.ranks))
        sums_s, drive_s = self._column(1, "sums_s"), self._column(1, "sums_driving_s")
        forward_s = self._column(1, "forward_s")
        again = self.recovery == BACKWARD
        backward_s = self._column(1, "backward_s") + again * (forward_s + drive_s) + drive_s
        saved_s = self._saved_by_turns(forward_s + drive_s, sums_s)
        in_turn = again | (self.recovery == NONE) | (self.recovery == SELECTIVE)
        saved_s = saved_s + in_turn * self._saved_by_turns(backward_s, sums_s * (1 + again))
        return _summed(self, self.group.layers * saved_s)

    def _saved_by_turns(self, compute_s: Floats, sums_s: Floats) -> Floats:
        """Seconds of a layer that its micro-batches save by computing and adding up in turns."""
        count = self.together
        busiest_s = np.maximum(count * np.maximum(compute_s, sums_s), compute_s + sums_s)
        return count * (compute_s + sums_s) - busiest_s

    def _crowded_s(self, backward_s: Floats) -> Floats:
        """Rows x stages: what sums lose where reductions of every micro-batch use their link.

        Two that share a link each get half of it; a reduction is under way for a part of the
        slot, and sums take longer accordingly.
        """
        placement, crowded_s = self.group.placement, np.zeros_like(backward_s)
        if self.data == 1 or self.group.layout.tensor == 1:
            return crowded_s
        same = [
            placement.sums_share_data_link(rank)
            for rank, _ in placement.links.ranks(self.alike).examples
        ]
        sums_s = 2 * self.group.layers * self._column(1, "sums_s")
        reduces_s = self.sharded * self._total("reduce_s")
        part = np.minimum(1.0, reduces_s / np.maximum(self.forward_s + backward_s, 1e-12))
        return np.array(same)[self.unit_of] * part * sums_s

    @cached_property
    def tail_s(self) -> Floats:
        """Rows x stages: from the last backward until the next step's first forward may begin."""
        return self._tail_s(np.where(self.group.sharding == 0, 2, 1)[:, None])

    @cached_property
    def _tie_s(self) -> Floats:
        """Rows x 1: what adding up the gradients of both copies of a tied matrix takes."""
        group, placement = self.group, self.group.placement
        if not trains_tied(group.job, self.ranks):
            return np.zeros((len(group), 1))
        device, last = placement.kind(self.alike.kinds[0]), self.ranks - 1
        link = placement.links.stage(0, last, self.alike.members) if last else None
        rate = (link or device.memory).bandwidth_bytes_per_s
        alone, shared = (
            tied_sum(group.job, device, group.layout.tensor * owners, link).alone_s(rate)
            for owners in (1, self.data)
        )
        return np.where(group.sharding > 0, shared, alone)[:, None]

    def _tail_s(self, two: Ints) -> Floats:
        """The same where reductions take so many halves of a transfer: 0, none is made."""
        group, strategy = self.group, self.group.strategy
        layers = group.layers
        reduces = two * self._total("reduce_s")
        owners = np.where(group.sharding > 0, self.data, 1)[:, None]
        updates = self._total("update_s") / owners + self._total("launch_s")
        gathers_once = ~(self.per_use | (group.sharding[:, None] == 0))
        gathers = gathers_once * self._total("gather_s")
        # The sum of a tied matrix follows the reduction of the embedding, the last of all.
        tie_s = self.first * self._tie_s
        # A rank that waits for its transfers drives them meanwhile.
        reduces_drive = two * self._total("reduce_driving_s")
        gathers_drive = gathers_once * self._total("gather_driving_s")
        if not strategy.layerwise:
            lump = np.where(self.sharded, 0.0, 1.0)
            reduces = lump * np.maximum(reduces, reduces_drive) + tie_s
            return _summed(self, reduces + updates + np.maximum(gathers, gathers_drive))
        # The reduce lane runs behind backward: its end is the latest of four beginnings.
        r_e, r_l, r_h = (two * self._column(unit, "reduce_s") for unit in range(3))
        # Gathers for every use take the link from what would hide beneath the last backward.
        taken_s = (self.per_use & ~self.sharded) * self._total("link_s")
        backward_s = self.together * self.backward_s[0]
        free_s = np.maximum(backward_s - taken_s, 0.0)
        b_e = self.together * self._column(0, "backward_s")
        b_l = free_s / np.maximum(layers, 1)
        e, h, n = self.first, self.last, layers
        ends = np.maximum.reduce(
            [
                h * r_h + n * r_l + e * r_e - n * b_l - e * b_e,
                np.where(n > 0, n * r_l + e * r_e - (n - 1) * b_l - e * b_e, 0),
                np.where(n > 0, r_l + e * r_e - e * b_e, 0),
                e * r_e * np.ones_like(r_l),
            ]
        )
        ends = ends + tie_s
        if not strategy.prefetch:
            ends = np.maximum(ends, reduces_drive)
            return _summed(self, ends + updates + np.maximum(gathers, gathers_drive))
        # Updates follow reductions one by one; gathers run in forward order beneath forward.
        last_update, last_launch = (
            np.where(e > 0, self._column(0, name), self._column(1, name))
            for name in ("update_s", "launch_s")
        )
        chain = np.maximum(ends, updates - backward_s) + last_update / owners
        chain = chain + last_launch
        first = np.where(e > 0, self._column(0, "gather_s"), self._column(1, "gather_s"))
        forward_s = self.together * self.forward_s
        hidden = np.maximum(gathers - forward_s, np.where(gathers > 0, first, 0))
        chain = np.maximum(chain, reduces_drive)
        return _summed(self, np.maximum(chain, 0) + np.maximum(hidden, gathers_drive))

    @cached_property
    def estimate(self) -> Estimate:
        group, m = self.group, self.group.micro_batches
        f, (b, early) = self.forward_s, self.backward_s
        u = b - early
        cf, cb = self.messages
        hop = f + u + cf + cb
        ramp = np.cumsum(hop, axis=1) - hop
        if self.stages > self.ranks:
            times = m * _summed(self, f + b) + ramp[:, : self.ranks]
        elif group.strategy.skeleton == "gpipe":
            whole = ramp[:, -1:] + (f + b)[:, -1:]
            times = whole + (m - 1) * (f.max(axis=1) + b.max(axis=1))[:, None]
        else:
            times = self._one_f_one_b(f, b, u, early, hop, ramp)
        times = np.maximum(times, m * self._link_s + ramp[:, : self.ranks])
        busiest = times.argmax(axis=1)
        rows = np.arange(len(group))
        pipe_s = times[rows, busiest] - self._hidden_sums_s[rows, busiest]
        tail_s = self._exposed_tail_s(ramp[:, : self.ranks], pipe_s)
        return Estimate(pipe_s + tail_s, tail_s)

    def _exposed_tail_s(self, ramp: Floats, pipe_s: Floats) -> Floats:
        """For each row what the tails take beyond the ramps; the mean over a period's steps, of
        which one ends with averages and the others with updates alone; or each with a part of the
        averages, which hide behind all of its compute, or behind its last backward."""

        def beyond(tail_s: Floats) -> Floats:
            return np.maximum((tail_s - ramp).max(axis=1), 0.0)

        steps = self.group.job.schedule.average_every or 1
        if steps == 1 and not self.group.job.schedule.averages_by_turns:
            return beyond(self.tail_s)
        alone_s = beyond(self._tail_s(np.zeros_like(self.group.sharding)[:, None]))
        if self.group.job.schedule.averages_by_turns:
            early = self.group.job.schedule.averages == "early-start"
            hidden_s = pipe_s[:, None] if early else _summed(self, self.backward_s[0])
            sent_s = _summed(self, 2 * self._total("reduce_s")) / steps
            return alone_s + np.maximum(sent_s - hidden_s, 0.0).max(axis=1)
        return (beyond(self.tail_s) + (steps - 1) * alone_s) / steps

    def _one_f_one_b(
        self, f: Floats, b: Floats, u: Floats, early: Floats, hop: Floats, ramp: Floats
    ) -> Floats:
        m, p = self.group.micro_batches, self.stages
        split = SKELETONS[self.group.strategy.skeleton].split_backward
        deep = hop.sum(axis=1, keepdims=True) - ramp - hop + early[:, -1:]
        cf, cb = self.messages
        deep = deep + (cf + cb)
        deep[:, -1] = 0.0  # its own early recovery is on its own lane
        k = np.minimum(p - np.arange(p), m)
        if split:  # the weight gradient's half leaves the ramps
            return ramp - ramp * self._weight_share + m * (f + b)
        begin = np.maximum(k * f + early, f + deep) - early
        end = np.maximum(k * b, deep + u)
        once = np.maximum(begin + k * b, k * f + end)
        times = ramp + np.where(m > k, begin + (m - k) * (f + b) + end, once)
        # Messages of one direction leave one by one.
        whole = ramp[:, -1] + hop[:, -1] + early[:, -1]
        sends = (m - 1) * max(float(cf.max()), float(cb.max()))
        times[:, 0] = np.maximum(times[:, 0], whole + sends)
        # What lies before a stage sets the pace at which forwards come and gradients go. Its first
        # backward comes after k forwards, and k backwards after its last forward.
        if p > 1:
            come = np.maximum.accumulate(np.maximum(f, cf), axis=1)[:, :-1]
            go = np.maximum.accumulate(np.maximum(b, cb), axis=1)[:, :-1]
            held = k[1:] - 1
            paced = np.maximum(held * come + (m - 1) * go, (m - 1) * come + held * go)
            np.maximum(times[:, 1:], (ramp + f + u)[:, 1:] + paced, out=times[:, 1:])
        for begins, pace in loops(f + u, cf + cb, early):
            np.maximum(times[:, :begins], ramp[:, :begins] + m * pace, out=times[:, :begins])
        return times

    @property
    def _weight_share(self) -> float:
        times = self.group.times[self.alike.kinds[0]][1]
        whole = times.forward_s + times.backward_s
        return times.weight_gradient_s / whole

    @cached_property
    def _link_s(self) -> Floats:
        """Rows x ranks: what a rank's reductions and gathers of one micro-batch need: each by
        itself one after another, and their bytes over the link that they share."""
        reduces, gathers = self.sharded * 1, self.per_use * 2
        shared = (reduces + gathers) * self._total("link_s")
        alone = np.maximum(reduces * self._total("reduce_s"), gathers * self._total("gather_s"))
        return np.maximum(_summed(self, shared), _summed(self, alone))


def _nothing_sent(_size_bytes: float, _widened: float = 1.0, /) -> Transfer:
    return NOTHING


def _summed(pace: _Pace, stages: Floats) -> Floats:
    """Rows x stages as rows x ranks."""
    return stages.reshape(len(stages), -1, pace.ranks).sum(axis=1)
