"""The ops of one replica at the grain of stages, and who waits for whom, without their times.

A stage's forward and backward of a micro-batch are one op each, and so is a message; recovery ahead
of backward is one of its own. A rank's first forward and its last backward are left open: between
their two ends the clock puts the stage's units, since updated weights arrive unit by unit and
gradients leave so.

Of a long step the middle is left out. Every rank pauses in its place, before the forward of one
micro-batch: where the pipeline has settled, that is the same as what was left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from ratrain.program.families import SEND_SLOTS
from ratrain.program.kind import Kind
from ratrain.program.skeletons import SKELETONS, Place
from ratrain.program.units import Ints

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
