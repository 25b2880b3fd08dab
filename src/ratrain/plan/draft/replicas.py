"""The priced ops of one replica at the grain of stages, ready to stand in a program.

First the frame's ops, then for each of the model's units its part of the first forward, of the last
backward, its reduction, its update and its gather. What reductions and gathers cost depends on who
else holds the unit, so it is left open here. What a device's own processors take to move tensors
between stages is part of its stages' seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.cost.collectives import gather_loss, reduction_loss
from ratrain.cost.compute import update
from ratrain.plan.draft.frames import Frame, Sort, frame_of
from ratrain.plan.draft.parts import Part
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, kinds_of_block
from ratrain.program.replicas import Recovery
from ratrain.program.units import Ints
from ratrain.simulate.costs import NO_LINK, Floats

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
