"""The ops of one replica at the grain of stages: who waits for whom, and what each takes.

A stage's forward and backward of a micro-batch are one op each, and so is a message; recovery ahead
of backward is one of its own. A rank's first forward and its last backward are left open: between
their two ends stand the stage's units, since updated weights arrive unit by unit and gradients
leave so: for each of the model's units its part of the first forward, of the last backward, its
reduction, its update and its gather. What reductions and gathers cost depends on who else holds the
unit, so it is left open here. What a device's own processors take to move tensors between stages is
part of its stages' seconds.

Of a long step the middle is left out. Every rank pauses in its place, before the forward of one
micro-batch: where the pipeline has settled, that is the same as what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from ratrain.cost.collectives import gather_loss, reduction_loss
from ratrain.cost.compute import update
from ratrain.plan.draft.parts import Part
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, kinds_of_block
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
    """Ops by what they are and their stage; edges inside a step and to the next one; of each stage
    the two ends of its first forward and of its last backward."""

    sort: Ints
    stage: Ints
    inside: Ints  # sources, targets
    across: Ints
    forward: Ints  # begins, ends
    backward: Ints

    def __len__(self) -> int:
        return len(self.sort)


def kept_of(skeleton: str, stages: int, micro_batches: int) -> int:
    """How many micro-batches stand for so many. Messages take turns in slots, so what is left out
    is a multiple of these."""
    if SKELETONS[skeleton].stride(stages, 1) is None:
        return micro_batches
    most = 2 * stages + SETTLED
    left_out = max(0, micro_batches - most) // SEND_SLOTS * SEND_SLOTS
    return micro_batches - left_out


@lru_cache(maxsize=4096)
def frame_of(skeleton: str, early: tuple[bool, ...], micro_batches: int, paused: bool) -> Frame:
    """The `Frame` of a replica whose stages recover ahead of backward or do not."""
    stages = len(early)
    lanes = [_lane(skeleton, s, stages, micro_batches, early[s], paused) for s in range(stages)]
    firsts = np.cumsum([0, *(len(lane) for lane in lanes)])
    compute = np.concatenate(lanes)
    stage = np.repeat(np.arange(stages), [len(lane) for lane in lanes])
    count = len(compute)

    def cells(sort: Sort) -> Ints:
        """Stages x micro-batches: the op of that sort."""
        rows = np.flatnonzero(compute[:, 0] == sort)
        cells: Ints = np.zeros((stages, micro_batches), dtype=np.int64)
        cells[stage[rows], compute[rows, 1]] = rows
        return cells

    forward, backward = cells(Sort.FORWARD), cells(Sort.BACKWARD)
    hops: Ints = np.arange((stages - 1) * micro_batches).reshape(stages - 1, micro_batches)
    outputs, gradients = count + hops, count + hops.size + hops  # gradients: of the stage behind
    ends = count + 2 * hops.size + np.arange(2 * stages).reshape(2, stages)
    edges = [
        _chain(compute_rows := np.arange(count), stage[compute_rows]),
        *(_follow(lane, lane, 1) for lane in (outputs, gradients)),
        *_messages(forward[:-1], outputs, forward[1:]),
        *_messages(backward[1:], gradients, backward[:-1]),
    ]
    if not SKELETONS[skeleton].arrival_places:
        edges.append(
            _follow(backward[:-1], gradients, SEND_SLOTS)
        )  # arrived ones leave their slots
    lane_ends = firsts[1:] - 1, firsts[:-1]
    across = [lane_ends, (outputs[:, -1], outputs[:, 0]), (gradients[:, -1], gradients[:, 0])]
    first, last = forward[:, 0], backward[:, -1]
    exits: Ints = np.arange(int(ends.max()) + 1)
    exits[first], exits[last] = ends
    inside = np.array([np.concatenate(side) for side in zip(*edges, strict=True)])
    over = np.array([np.concatenate(side) for side in zip(*across, strict=True)])
    inside[0], over[0] = exits[inside[0]], exits[over[0]]
    send_stage = np.repeat(np.arange(stages - 1), micro_batches)
    return Frame(
        np.concatenate(
            [
                compute[:, 0],
                np.full(hops.size, Sort.SEND_OUTPUT),
                np.full(hops.size, Sort.SEND_GRADIENT),
                np.full(2 * stages, Sort.END),
            ]
        ),
        np.concatenate([stage, send_stage, send_stage + 1, np.tile(np.arange(stages), 2)]),
        inside,
        over,
        np.array([first, ends[0]]),
        np.array([last, ends[1]]),
    )


def _lane(
    skeleton: str, stage: int, stages: int, micro_batches: int, early: bool, paused: bool
) -> Ints:
    """What a stage computes: (sort, micro-batch) in turn."""
    turns: list[tuple[int, int]] = []
    for kind, _, micro_batch in SKELETONS[skeleton].order(Place(stage, stages, 1, micro_batches)):
        if kind is Kind.F:
            if paused and micro_batch == stages + SETTLED // 2:
                turns.append((Sort.PAUSE, micro_batch))
            turns.append((Sort.FORWARD, micro_batch))
            continue
        if early:
            turns.append((Sort.RECOVERY, micro_batch))
        turns.append((Sort.BACKWARD, micro_batch))
    return np.array(turns, dtype=np.int64)


Sides = tuple[Ints, Ints]
"""Edges: sources and targets."""


def _chain(rows: Ints, lane: Ints) -> Sides:
    """Each op after the one before it on its lane."""
    same = lane[1:] == lane[:-1]
    return rows[:-1][same], rows[1:][same]


def _follow(before: Ints, after: Ints, turns: int) -> Sides:
    """An op of each micro-batch after one of so many micro-batches before."""
    return before[:, :-turns].ravel(), after[:, turns:].ravel()


def _messages(made: Ints, sent: Ints, taken: Ints) -> list[Sides]:
    """A tensor is made, sent and taken; the sender has places for a few at once."""
    return [
        (made.ravel(), sent.ravel()),
        (sent.ravel(), taken.ravel()),
        _follow(sent, made, SEND_SLOTS),
    ]


OUT, INTO = 0, 1
Port = tuple[int, int, int]
"""A stage, OUT or INTO, and the number of the link behind it."""


@dataclass(frozen=True)
class ReplicaOps:
    """Columns over a replica's ops; edges inside a step and to the next one; the first op of each
    section about units."""

    times: Floats  # fixed seconds, bytes, interrupt seconds
    ports: Ints  # of the op, of its other end; numbers in `known`
    stage: Ints
    computes: Ints  # 1: on the compute lane
    inside: Ints  # sources, targets
    across: Ints
    known: dict[Port, int]
    stage_of_unit: Ints
    losses: Floats  # of each unit's device: of a reduction and of a gather, by message and by byte
    first_unit: Ints  # of each stage
    backward: int
    reduction: int
    update: int
    gather: int

    def __len__(self) -> int:
        return len(self.stage)


def replica_ops(
    stages: Stages, part: Part, micro_batches: int, pause_s: float, data: int, state: StateMode
) -> ReplicaOps:
    """The `ReplicaOps` of a part with so many micro-batches, one of `data` replicas. `pause_s`: for
    those that are left out; 0 where none is."""
    count = len(part.shape)
    early = tuple(work.early_s > 0 for work in part.works)
    frame = frame_of(stages.strategy.skeleton, early, micro_batches, pause_s > 0)
    layers = np.array(part.layers, dtype=np.int64)
    layers[0] += 1
    layers[-1] += 1
    stage_of_unit = np.repeat(np.arange(count), layers)
    units, n = len(stage_of_unit), len(frame)
    first = np.cumsum(layers) - layers
    sections = n + units * np.arange(5)
    times, ports, known = _frame_costs(stages, part, pause_s, frame)
    unit_times = np.zeros((3, 5 * units))
    unit_times[0] = _unit_seconds(stages, part, data if state.sharding else 1).ravel()
    devices = [stages.pools[post.pool].kind for post in part.shape]
    losses = np.array([(reduction_loss(device), gather_loss(device)) for device in devices])
    beside = np.array([device.driving.lost_beside for device in devices])[stage_of_unit]
    updates = slice(3 * units, 4 * units)
    unit_times[2, updates] = beside * unit_times[0, updates]
    computes = np.zeros(n + 5 * units, dtype=np.int64)
    computes[:n] = frame.sort <= Sort.BACKWARD
    computes[frame.forward[0]] = computes[frame.backward[0]] = 0
    computes[n : n + 2 * units] = 1
    lanes = _Units(sections, stage_of_unit, first, first + layers - 1)
    gathers = data > 1 and state.sharding > 0
    inside, across = lanes.edges(
        frame, stages.strategy.layerwise, stages.strategy.prefetch, gathers
    )
    return ReplicaOps(
        np.concatenate([times, unit_times], axis=1),
        np.concatenate([ports, np.full((2, 5 * units), NO_LINK, dtype=np.int64)], axis=1),
        np.concatenate([frame.stage, np.tile(stage_of_unit, 5)]),
        computes,
        np.concatenate([frame.inside, *inside], axis=1),
        np.concatenate([frame.across, *across], axis=1),
        known,
        stage_of_unit,
        losses[stage_of_unit],
        first,
        *sections[1:].tolist(),
    )


def _frame_costs(
    stages: Stages, part: Part, pause_s: float, frame: Frame
) -> tuple[Floats, Ints, dict[Port, int]]:
    """Times and ports of a frame's ops, and the ports by number."""
    shape, count = part.shape, len(part.shape)
    times = np.zeros((3, len(Sort), count))
    ports: Ints = np.full((2, len(Sort), count), NO_LINK, dtype=np.int64)
    known: dict[Port, int] = {}
    for s, work in enumerate(part.works):
        waited_s = work.backward_s - work.early_s
        times[0, : Sort.BACKWARD + 1, s] = work.forward_s, work.early_s, waited_s
        times[0, Sort.PAUSE, s] = pause_s
        for sort, target in ((Sort.SEND_OUTPUT, s + 1), (Sort.SEND_GRADIENT, s - 1)):
            if not 0 <= target < count:
                continue
            message = stages.message(shape[s], shape[target], part.micro_batch)
            assert message is not None, "a part's stages are linked"
            sent, link = message
            times[:, sort, s] = sent.latency_s, sent.volume_bytes, sent.driving_s
            number = stages.links.number(link)
            ports[0, sort, s] = known.setdefault((s, OUT, number), len(known))
            ports[1, sort, s] = known.setdefault((target, INTO, number), len(known))
    of_ops = times[:, frame.sort, frame.stage]
    of_ops[:, frame.forward[0]] = of_ops[:, frame.backward[0]] = 0.0
    return of_ops, ports[:, frame.sort, frame.stage], known


def _unit_seconds(stages: Stages, part: Part, owners: int) -> Floats:
    """Sections x units: forward, backward with what is recovered then, nothing for the reduction,
    the update of a share, nothing for the gather."""
    blocks, last = kinds_of_block(stages.job), len(part.shape) - 1
    columns: list[tuple[float, float, float, float, float]] = []
    for s, (post, work, count) in enumerate(zip(part.shape, part.works, part.layers, strict=True)):
        kind = stages.pools[post.pool].kind
        seconds = stages.seconds(post, part.micro_batch)
        block_times = stages.times(post, part.micro_batch)
        held = [0] * (s == 0) + [1] * count + [2] * (s == last)
        plain_s = sum(seconds[block].backward_s for block in held)
        keeps_all = work.recovery is Recovery.NONE
        again_s = 0.0 if keeps_all else (work.backward_s - work.early_s - plain_s) / count
        of_block: list[tuple[float, float, float, float, float]] = []
        for block in range(3):
            moved = update(block_times[block], blocks[block].params / post.tensor, owners, kind)
            update_s = moved.alone_s(kind.memory.bandwidth_bytes_per_s)
            backward_s = seconds[block].backward_s + again_s * (block == 1)
            of_block.append((seconds[block].forward_s, backward_s, 0.0, update_s, 0.0))
        columns += [of_block[block] for block in held]
    return np.array(columns).T.copy()


Edges = Ints
"""Sources and targets."""


@dataclass(frozen=True)
class _Units:
    """The sections of ops about units, and the units at the ends of each stage."""

    sections: Ints
    stage_of_unit: Ints
    first: Ints
    last: Ints

    def edges(
        self, frame: Frame, layerwise: bool, prefetch: bool, gathers: bool
    ) -> tuple[list[Edges], list[Edges]]:
        """Who waits for whom, as the passes of a strategy leave it: see `state_pipeline`."""
        forward, backward, reduction, updated, gathered = self.sections.tolist()
        every: Ints = np.arange(len(self.stage_of_unit))
        first, last = self.first, self.last
        inside = [
            self._up(forward),
            _edge(frame.forward[0], forward + first),
            _edge(forward + last, frame.forward[1]),
            self._down(backward),
            _edge(frame.backward[0], backward + last),
            _edge(backward + first, frame.backward[1]),
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
        """Each unit after the one before it in its stage."""
        before = np.flatnonzero(self.stage_of_unit[1:] == self.stage_of_unit[:-1])
        return _edge(section + before, section + before + 1)

    def _down(self, section: int) -> Edges:
        """Each unit after the one behind it in its stage."""
        return self._up(section)[::-1]


def _edge(source: Ints, target: Ints) -> Edges:
    return np.stack([source, target])
