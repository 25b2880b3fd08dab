"""The words of a program: what kinds of op there are, on which lane each runs, how each is written.

A word is `<stage>[.<unit>]<Kind>[<micro-batch>]`: `2F0` is the forward of micro-batch 0 on
stage 2, `2.1R7` the recovery of unit 1 of stage 2 for micro-batch 7, `0.3GradSync` a gradient
reduction that belongs to no micro-batch. Kinds shared with PyTorch pipelining (F, B, I, W,
SEND_F, ...) are spelled as PyTorch spells them.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from ratrain.errors import ProgramError

NONE = -1
"""Stands in an action for "belongs to no micro-batch"."""


class Lane(IntEnum):
    """Where an op waits its turn: one queue for each lane of each rank, served in order."""

    COMPUTE = 0
    SEND_F = 1
    RECV_F = 2
    SEND_B = 3
    RECV_B = 4
    REDUCE = 5  # gradients to their owners, over the data-parallel group
    GATHER = 6  # weights from their owners, over the data-parallel group
    TENSOR = 7  # activations inside a tensor-parallel group
    UPDATE = 8  # the optimizer, bound by memory bandwidth
    DISK = 9  # checkpoints on their way out

    @property
    def word(self) -> str:
        return self.name.lower()


class Kind(IntEnum):
    """What an op does. The rules of each kind stand in `rules`."""

    F = 0  # forward
    B = 1  # backward: input and weight gradients in one
    I = 2  # noqa: E741  backward, input gradient only (zero-bubble's B)
    W = 3  # backward, weight gradient only
    R = 4  # recovery: a layer's activations computed again from its checkpoint
    SEND_F = 5
    RECV_F = 6
    SEND_B = 7
    RECV_B = 8
    GradSync = 9  # reduce a gradient over the replicas
    UpdateShard = 10  # the optimizer on the shard that this rank owns
    PrefetchW = 11  # gather the next step's weight view
    Gather_F = 12  # gather a view for one forward (sharding level 3)
    Gather_B = 13  # gather a view for one backward (sharding level 3)
    AllReduce_F = 14  # tensor-parallel sums of one unit's forward
    AllReduce_R = 15  # the same sums again, in recovery
    AllReduce_B = 16  # tensor-parallel sums of one unit's backward
    AllBackward = 17  # barrier: every gradient of the rank is complete
    AllSynced = 18  # barrier: every gradient of the rank is reduced
    AllUpdated = 19  # barrier: every shard of the rank is updated
    AllReady = 20  # barrier: every view of the rank is the next step's
    ClipNorm = 21  # the gradient's global norm: all ranks of all replicas meet
    Save = 22  # a unit's new states, to a checkpoint
    TieSync = 23  # the gradients of two copies of one matrix, added up on both ranks


LANE_OF: dict[Kind, Lane] = {
    Kind.F: Lane.COMPUTE,
    Kind.B: Lane.COMPUTE,
    Kind.I: Lane.COMPUTE,
    Kind.W: Lane.COMPUTE,
    Kind.R: Lane.COMPUTE,
    Kind.SEND_F: Lane.SEND_F,
    Kind.RECV_F: Lane.RECV_F,
    Kind.SEND_B: Lane.SEND_B,
    Kind.RECV_B: Lane.RECV_B,
    Kind.GradSync: Lane.REDUCE,
    Kind.UpdateShard: Lane.UPDATE,
    Kind.PrefetchW: Lane.GATHER,
    Kind.Gather_F: Lane.GATHER,
    Kind.Gather_B: Lane.GATHER,
    Kind.AllReduce_F: Lane.TENSOR,
    Kind.AllReduce_R: Lane.TENSOR,
    Kind.AllReduce_B: Lane.TENSOR,
    Kind.AllBackward: Lane.REDUCE,
    Kind.AllSynced: Lane.UPDATE,
    Kind.AllUpdated: Lane.GATHER,
    Kind.AllReady: Lane.COMPUTE,
    Kind.ClipNorm: Lane.UPDATE,
    Kind.Save: Lane.DISK,
    Kind.TieSync: Lane.REDUCE,
}

MESSAGES = frozenset({Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B})
BARRIERS = frozenset({Kind.AllBackward, Kind.AllSynced, Kind.AllUpdated, Kind.AllReady})
WHOLE_STAGE = MESSAGES | BARRIERS | {Kind.ClipNorm}
"""Kinds that concern a stage as a whole: their action's unit is always 0 and never written."""


class Action(NamedTuple):
    """One op of a program. `stage` and `unit` count within the rank's replica and the stage."""

    kind: Kind
    stage: int
    unit: int
    micro_batch: int


_WORD = re.compile(r"^(\d+)(?:\.(\d+))?([A-Za-z_]+?)(\d+)?$")


def format_action(action: Action, units_of_stage: int) -> str:
    """The word for an action; the unit is left out where the stage has only one."""
    kind, stage, unit, micro_batch = action
    with_unit = units_of_stage > 1 and kind not in WHOLE_STAGE
    return (
        f"{stage}{f'.{unit}' if with_unit else ''}{kind.name}"
        f"{micro_batch if micro_batch != NONE else ''}"
    )


def parse_action(word: str, place: str = "") -> Action:
    """The action that a word stands for; a `ProgramError` names the word and its place."""
    match = _WORD.match(word)
    if match is None:
        raise ProgramError(f"{word!r} is not an action", place=place, fix="write e.g. 2F0 or 2.1R7")
    stage, unit, kind, micro_batch = match.groups()
    if kind not in Kind.__members__:
        raise ProgramError(
            f"{word!r} names no kind of op",
            place=place,
            fix=f"use one of {', '.join(Kind.__members__)}",
        )
    return Action(
        Kind[kind],
        int(stage),
        int(unit) if unit is not None else 0,
        int(micro_batch) if micro_batch is not None else NONE,
    )
