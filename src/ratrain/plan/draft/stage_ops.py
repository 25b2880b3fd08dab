"""The ops of one replica at the grain of stages: who waits for whom, and what each takes.

A stage's forward and backward of a micro-batch are one op each, and so is a message; recovery ahead
of backward is one of its own. Each member of a stage is a rank, which computes, of the order of the
whole stage, what it serves. A rank's first forward and its last backward are left open: between
their two ends stand the stage's units, since updated weights arrive unit by unit and gradients
leave so: for each of the model's units its part of the first forward, of the last backward, its
reduction, its update and its gather. What reductions and gathers cost depends on who else holds the
unit, so it is left open here. What a device's own processors take to move tensors between stages is
part of its stages' seconds.

Of a long step the middle is left out. Every rank pauses in its place, before the forward of one
micro-batch: where the pipeline has settled, that is the same as what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from ratrain.cost.collectives import gather_loss, reduction_loss
from ratrain.cost.compute import update
from ratrain.plan.draft.parts import Part
from ratrain.plan.draft.pools import Post
from ratrain.plan.draft.stages import Stages, StageWork
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.price.stage_seconds import alone_s
from ratrain.program.families import SEND_SLOTS
from ratrain.program.kind import Kind
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import SKELETONS, Place
from ratrain.program.units import Ints
from ratrain.simulate.costs import NO_LINK, Floats

SETTLED = 32
"""Micro-batches kept of a long step, beside two for each stage."""


class Sort(IntEnum):
    """What an op of a frame is."""

    FORWARD = 0
    RECOVERY = 1
    BACKWARD = 2
    SEND_OUTPUT = 3
    SEND_GRADIENT = 4
    PAUSE = 5
    END = 6  # of a first forward or a last backward: takes no time


@dataclass(frozen=True)
class Frame:
    """Ops by what they are, their rank and, of messages, the rank that they go to; edges inside a
    step and to the next one; of each of the ranks `at_work` the two ends of its first forward and
    of its last backward."""

    sort: Ints
    rank: Ints
    target: Ints
    inside: Ints  # sources, targets
    across: Ints
    at_work: Ints  # those that compute
    hops: tuple[tuple[int, int], ...]  # who sends to whom
    forward: Ints  # begins, ends
    backward: Ints

    def __len__(self) -> int:
        return len(self.sort)


class Turns(NamedTuple):
    """What a rank computes: of which stage, whether it recovers ahead of backward, and which
    micro-batches."""

    stage: int
    early: bool
    serves: tuple[int, ...]


def kept_of(skeleton: str, stages: int, micro_batches: int) -> int:
    """How many micro-batches stand for so many. Messages take turns in slots, so what is left out
    is a multiple of these."""
    if SKELETONS[skeleton].stride(stages, 1) is None:
        return micro_batches
    most = 2 * stages + SETTLED
    left_out = max(0, micro_batches - most) // SEND_SLOTS * SEND_SLOTS
    return micro_batches - left_out


@lru_cache(maxsize=4096)
def frame_of(
    skeleton: str,
    members: tuple[int, ...],
    ranks: tuple[Turns, ...],
    micro_batches: int,
    paused: bool,
) -> Frame:
    """The `Frame` of a replica. `members`: how many of each stage compute."""
    stages = len(members)
    places = [
        Place(s, stages, 1, micro_batches, sum(members[s:]) - (stages - s)) for s in range(stages)
    ]
    lanes = [_lane(skeleton, places[turns.stage], turns, paused) for turns in ranks]
    compute = np.concatenate(lanes)
    rank = np.repeat(np.arange(len(ranks)), [len(lane) for lane in lanes])
    stage = np.array([turns.stage for turns in ranks])[rank]
    count = len(compute)

    def cells(sort: Sort) -> Ints:
        """Stages x micro-batches: the op of that sort."""
        rows = np.flatnonzero(compute[:, 0] == sort)
        cells: Ints = np.zeros((stages, micro_batches), dtype=np.int64)
        cells[stage[rows], compute[rows, 1]] = rows
        return cells

    forward, backward = cells(Sort.FORWARD), cells(Sort.BACKWARD)
    by = rank[forward]  # stages x micro-batches: who computes it
    here, there = by[:-1], by[1:]
    hops: Ints = np.arange((stages - 1) * micro_batches).reshape(stages - 1, micro_batches)
    outputs, gradients = count + hops, count + hops.size + hops  # gradients: of the stage behind
    edges = [
        _follow(np.arange(count), np.arange(count), rank, 1),
        _follow(outputs, outputs, here, 1),
        _follow(gradients, gradients, there, 1),
        *_messages(forward[:-1], outputs, forward[1:], here),
        *_messages(backward[1:], gradients, backward[:-1], there),
    ]
    if not SKELETONS[skeleton].arrival_places:  # arrived ones leave their slots
        edges.append(_follow(backward[:-1], gradients, here, SEND_SLOTS))
    across = [
        _last_and_first(np.arange(count), rank),
        _last_and_first(outputs, here),
        _last_and_first(gradients, there),
    ]
    at_work: Ints = np.unique(rank)
    ends = count + 2 * hops.size + np.arange(2 * len(at_work)).reshape(2, -1)
    exits: Ints = np.arange(int(ends.max()) + 1)
    first, last = _last_and_first(forward, by)[1], _last_and_first(backward, by)[0]
    exits[first], exits[last] = ends
    inside = np.array([np.concatenate(side) for side in zip(*edges, strict=True)])
    over = np.array([np.concatenate(side) for side in zip(*across, strict=True)])
    inside[0], over[0] = exits[inside[0]], exits[over[0]]
    both = np.tile(at_work, 2)
    pairs = zip(here.ravel().tolist(), there.ravel().tolist(), strict=True)
    return Frame(
        np.concatenate(
            [
                compute[:, 0],
                np.full(hops.size, Sort.SEND_OUTPUT),
                np.full(hops.size, Sort.SEND_GRADIENT),
                np.full(len(both), Sort.END),
            ]
        ),
        np.concatenate([rank, here.ravel(), there.ravel(), both]),
        np.concatenate([rank, there.ravel(), here.ravel(), both]),
        inside,
        over,
        at_work,
        (*dict.fromkeys(hop for r, to in pairs for hop in ((r, to), (to, r))),),
        np.array([first, ends[0]]),
        np.array([last, ends[1]]),
    )


def _lane(skeleton: str, place: Place, rank: Turns, paused: bool) -> Ints:
    """What a rank computes: (sort, micro-batch) in turn."""
    turns: list[tuple[int, int]] = []
    mine, pause = frozenset(rank.serves), place.ranks + SETTLED // 2 if paused else inf
    for kind, _, micro_batch in SKELETONS[skeleton].order(place) if mine else ():
        if micro_batch not in mine:
            continue
        if kind is Kind.F:
            if micro_batch >= pause:
                turns.append((Sort.PAUSE, micro_batch))
                pause = inf
            turns.append((Sort.FORWARD, micro_batch))
            continue
        if rank.early:
            turns.append((Sort.RECOVERY, micro_batch))
        turns.append((Sort.BACKWARD, micro_batch))
    return np.array(turns, dtype=np.int64).reshape(-1, 2)


Sides = tuple[Ints, Ints]
"""Edges: sources and targets."""


def _of_each(ops: Ints, lane: Ints) -> Sides:
    """Ops and their lanes, lane by lane, as they follow on each."""
    order = np.argsort(lane, axis=None, kind="stable")
    return ops.ravel()[order], lane.ravel()[order]


def _follow(before: Ints, after: Ints, lane: Ints, turns: int) -> Sides:
    """Each op of a lane after the one of so many turns before."""
    (sources, lanes), (targets, _) = _of_each(before, lane), _of_each(after, lane)
    same = lanes[turns:] == lanes[:-turns]
    return sources[:-turns][same], targets[turns:][same]


def _last_and_first(ops: Ints, lane: Ints) -> Sides:
    """Of each lane the last op and the first."""
    in_turn, lanes = _of_each(ops, lane)
    begins = np.flatnonzero(np.diff(lanes, prepend=-1))
    ends = np.append(begins[1:], len(lanes))[: len(begins)] - 1
    return in_turn[ends], in_turn[begins]


def _messages(made: Ints, sent: Ints, taken: Ints, sender: Ints) -> list[Sides]:
    """A tensor is made, sent and taken; the sender has places for a few at once."""
    return [
        (made.ravel(), sent.ravel()),
        (sent.ravel(), taken.ravel()),
        _follow(sent, made, sender, SEND_SLOTS),
    ]


OUT, INTO = 0, 1
Port = tuple[int, int, int]
"""A rank, OUT or INTO, and the number of the link behind it."""


@dataclass(frozen=True)
class ReplicaOps:
    """Columns over a replica's ops; edges inside a step and to the next one; the first op of each
    section about units, in each of which are those of one rank after those of another."""

    times: Floats  # fixed seconds, bytes, interrupt seconds
    ports: Ints  # of the op, of its other end; numbers in `known`
    rank: Ints
    computes: Ints  # 1: on the compute lane
    inside: Ints  # sources, targets
    across: Ints
    known: dict[Port, int]
    ranks: int
    stage_of_unit: Ints  # of the model's units
    unit: Ints  # of a section: which of the model's
    rank_of_unit: Ints  # of a section
    losses: Floats  # of each unit's device: of a reduction and of a gather, by message and by byte
    backward: int
    reduction: int
    update: int
    gather: int

    def __len__(self) -> int:
        return len(self.rank)


class _Rank(NamedTuple):
    """A member of a stage. `work`: None where it only holds it."""

    stage: int
    post: Post
    work: StageWork | None
    serves: tuple[int, ...]


def _ranks_of(part: Part, micro_batches: int) -> list[_Rank]:
    return [
        _Rank(s, *member)
        for s, (stage, works, shares) in enumerate(
            zip(part.members, part.works, part.serves(micro_batches), strict=True)
        )
        for member in (
            *zip(stage.computing, works, shares, strict=True),
            *((post, None, ()) for post in stage.holding),
        )
    ]


def replica_ops(
    stages: Stages, part: Part, micro_batches: int, pause_s: float, data: int, state: StateMode
) -> ReplicaOps:
    """The `ReplicaOps` of a part with so many micro-batches, one of `data` replicas. `pause_s`: for
    those that are left out; 0 where none is."""
    ranks = _ranks_of(part, micro_batches)
    turns = tuple(
        Turns(rank.stage, rank.work is not None and rank.work.early_s > 0, rank.serves)
        for rank in ranks
    )
    computing = tuple(map(len, part.works))
    frame = frame_of(stages.strategy.skeleton, computing, turns, micro_batches, pause_s > 0)
    in_stage = np.array(part.layers, dtype=np.int64)
    in_stage[0] += 1
    in_stage[-1] += 1
    stage_of_rank = np.array([rank.stage for rank in ranks])
    held = in_stage[stage_of_rank]
    rank_of_unit = np.repeat(np.arange(len(ranks)), held)
    units, n = len(rank_of_unit), len(frame)
    first = np.cumsum(held) - held
    begins = (np.cumsum(in_stage) - in_stage)[stage_of_rank]
    sections = n + units * np.arange(5)
    times, ports, known = _frame_costs(stages, part.micro_batch, ranks, pause_s, frame)
    unit_times = np.zeros((3, 5 * units))
    unit_times[0] = _unit_seconds(stages, part, ranks, data if state.sharding else 0).ravel()
    devices = [stages.pools[rank.post.pool].kind for rank in ranks]
    losses = np.array([(reduction_loss(device), gather_loss(device)) for device in devices])
    beside = np.array([device.driving.lost_beside for device in devices])[rank_of_unit]
    updates = slice(3 * units, 4 * units)
    unit_times[2, updates] = beside * unit_times[0, updates]
    computes = np.zeros(n + 5 * units, dtype=np.int64)
    computes[:n] = frame.sort <= Sort.BACKWARD
    computes[frame.forward[0]] = computes[frame.backward[0]] = 0
    computes[n : n + 2 * units] = 1
    lanes = _Units(sections, rank_of_unit, first, first + held - 1)
    gathers = (data > 1 or part.has_members) and state.sharding > 0
    inside, across = lanes.edges(
        frame, stages.strategy.layerwise, stages.strategy.prefetch, gathers
    )
    return ReplicaOps(
        np.concatenate([times, unit_times], axis=1),
        np.concatenate([ports, np.full((2, 5 * units), NO_LINK, dtype=np.int64)], axis=1),
        np.concatenate([frame.rank, np.tile(rank_of_unit, 5)]),
        computes,
        np.concatenate([frame.inside, *inside], axis=1),
        np.concatenate([frame.across, *across], axis=1),
        known,
        len(ranks),
        np.repeat(np.arange(len(in_stage)), in_stage),
        np.arange(units) + (begins - first)[rank_of_unit],
        rank_of_unit,
        losses[rank_of_unit],
        *sections[1:].tolist(),
    )


def _frame_costs(
    stages: Stages, micro_batch: int, ranks: Sequence[_Rank], pause_s: float, frame: Frame
) -> tuple[Floats, Ints, dict[Port, int]]:
    """Times and ports of a frame's ops, and the ports by number."""
    count = len(ranks)
    times = np.zeros((3, len(Sort), count, count))  # by the rank of an op, and that it goes to
    ports: Ints = np.full((2, len(Sort), count, count), NO_LINK, dtype=np.int64)
    known: dict[Port, int] = {}
    for r, rank in enumerate(ranks):
        if rank.work is not None:
            work, waited_s = rank.work, rank.work.backward_s - rank.work.early_s
            times[0, : Sort.BACKWARD + 1, r, r] = work.forward_s, work.early_s, waited_s
            times[0, Sort.PAUSE, r, r] = pause_s
    for r, to in frame.hops:
        message = stages.message(ranks[r].post, ranks[to].post, micro_batch)
        assert message is not None, "a part's stages are linked"
        sent, link = message
        costs = np.array([[sent.latency_s], [sent.volume_bytes], [sent.driving_s]])
        times[:, Sort.SEND_OUTPUT : Sort.SEND_GRADIENT + 1, r, to] = costs
        number = stages.links.number(link)
        for end, port in enumerate(((r, OUT, number), (to, INTO, number))):
            of = slice(Sort.SEND_OUTPUT, Sort.SEND_GRADIENT + 1)
            ports[end, of, r, to] = known.setdefault(port, len(known))
    of_ops = times[:, frame.sort, frame.rank, frame.target]
    of_ops[:, frame.forward[0]] = of_ops[:, frame.backward[0]] = 0.0
    return of_ops, ports[:, frame.sort, frame.rank, frame.target], known


def _unit_seconds(stages: Stages, part: Part, ranks: Sequence[_Rank], data: int) -> Floats:
    """Sections x units: forward, backward with what is recovered then, nothing for the reduction,
    the update of a share, nothing for the gather. `data`: replicas that share states; 0: none
    does."""
    last = len(part.members) - 1
    columns: list[tuple[float, float, float, float, float]] = []
    for s, post, work, serves in ranks:
        count, kind = part.layers[s], stages.pools[post.pool].kind
        owners = len(part.members[s].posts) + data - 1 if data else 1
        seconds = alone_s(stages.seconds(post, part.micro_batch))
        block_times = stages.times(post, part.micro_batch)
        held = [0] * (s == 0) + [1] * count + [2] * (s == last)
        again_s = 0.0
        if work is not None and work.recovery is not Recovery.NONE:
            plain_s = sum(seconds[block][1] for block in held)
            again_s = (work.backward_s - work.early_s - plain_s) / count
        of_block: list[tuple[float, float, float, float, float]] = []
        for block in range(3):
            moved = update(block_times[block], stages.trained[block] / post.tensor, owners, kind)
            update_s = moved.alone_s(kind.memory.bandwidth_bytes_per_s)
            forward_s, backward_s = seconds[block]
            backward_s += again_s * (block == 1)
            once = (forward_s, backward_s) if serves else (0.0, 0.0)
            of_block.append((*once, 0.0, update_s, 0.0))
        columns += [of_block[block] for block in held]
    return np.array(columns).T.copy()


Edges = Ints
"""Sources and targets."""


@dataclass(frozen=True)
class _Units:
    """The sections of ops about units, and the units at the ends of each rank's."""

    sections: Ints
    rank_of_unit: Ints
    first: Ints
    last: Ints

    def edges(
        self, frame: Frame, layerwise: bool, prefetch: bool, gathers: bool
    ) -> tuple[list[Edges], list[Edges]]:
        """Who waits for whom, as the passes of a strategy leave it: see `state_pipeline`."""
        forward, backward, reduction, updated, gathered = self.sections.tolist()
        every: Ints = np.arange(len(self.rank_of_unit))
        first, last = self.first, self.last
        ahead, behind = first[frame.at_work], last[frame.at_work]
        inside = [
            self._up(forward),
            _edge(frame.forward[0], forward + ahead),
            _edge(forward + behind, frame.forward[1]),
            self._down(backward),
            _edge(frame.backward[0], backward + behind),
            _edge(backward + ahead, frame.backward[1]),
            self._down(reduction),
            _edge(backward + every, reduction + every),
            _edge(reduction + every, updated + every),
        ]
        if not layerwise:
            inside.append(_edge(backward + first, reduction + last))
        if prefetch:
            inside.append(self._down(updated))
        else:
            inside += [self._up(updated), _edge(reduction + first, updated + first)]
        inside += [self._up(gathered), _edge(updated + every, gathered + every)]
        if gathers and not prefetch:
            inside.append(_edge(updated + last, gathered + first))
        if prefetch and gathers:
            across = [_edge(gathered + every, forward + every)]
        elif prefetch:
            across = [_edge(updated + every, forward + every)]
        else:
            across = [_edge(gathered + last, forward + first)]
        return inside, across

    def _up(self, section: int) -> Edges:
        """Each unit after the one before it on its rank."""
        before = np.flatnonzero(self.rank_of_unit[1:] == self.rank_of_unit[:-1])
        return _edge(section + before, section + before + 1)

    def _down(self, section: int) -> Edges:
        """Each unit after the one behind it on its rank."""
        return self._up(section)[::-1]


def _edge(source: Ints, target: Ints) -> Edges:
    return np.stack([source, target])
