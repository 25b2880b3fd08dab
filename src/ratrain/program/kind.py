"""Lanes and kinds of op, open: each is declared once, with everything that the code needs to know
about it.

Verifier, bounds, simulator, ledger, text form and reports derive from the declaration; nothing
else lists lanes or kinds. The built-in kinds are in `kinds/`; a third-party package may `declare`
further ones in the same way, and lanes (`declare_lane`) for them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from ratrain.program.declared import Declared


class Waiting(StrEnum):
    """What a rank's compute lane waits for when it does not compute; in `words`, for people."""

    words: str

    def __new__(cls, value: str, words: str) -> Self:
        made = str.__new__(cls, value)
        made._value_, made.words = value, words
        return made

    BUBBLE = "bubble", "other stages"  # their tensors are not made yet
    MESSAGE = "message", "messages"  # a tensor of another stage, under way
    REDUCE = "reduce", "gradient reductions"
    GATHER = "gather", "weight gathers"
    TENSOR = "tensor", "tensor-parallel sums"
    UPDATE = "update", "optimizer updates"  # and the norm before them
    DISK = "disk", "checkpoint writes"  # of the step before
    OFFLOAD = "offload", "states offloaded to another tier"
    FETCH = "fetch", "states fetched from another tier"
    LOAD = "load", "optimizer states fetched from another tier"
    STORE = "store", "optimizer states stored in another tier"


class Lane(Declared):
    """Where an op waits its turn: one queue for each lane of each rank, served in order. The
    field's common name for a lane is a stream."""

    word: str
    waiting: Waiting  # what compute waits for that waits for an op here
    moves: Literal["", "away", "back"] = ""  # states, to another memory tier or from there

    COMPUTE: ClassVar[Lane]
    SEND_F: ClassVar[Lane]
    RECV_F: ClassVar[Lane]
    SEND_B: ClassVar[Lane]
    RECV_B: ClassVar[Lane]
    REDUCE: ClassVar[Lane]  # gradients to their owners, over the ranks that hold the same unit
    GATHER: ClassVar[Lane]  # weights from their owners, over the same ranks
    TENSOR: ClassVar[Lane]  # activations inside a tensor-parallel group
    UPDATE: ClassVar[Lane]  # the optimizer, bound by memory bandwidth
    DISK: ClassVar[Lane]  # checkpoints on their way out
    OFFLOAD: ClassVar[Lane]
    FETCH: ClassVar[Lane]
    LOAD: ClassVar[Lane]  # optimizer states, to their update
    STORE: ClassVar[Lane]  # and back
    AVERAGE: ClassVar[Lane]  # weights that replicas or sites average that update them apart


def declare_lane(name: str, waiting: Waiting, moves: Literal["", "away", "back"] = "") -> Lane:
    """A further lane; a program's text writes its name in small letters."""
    word = name.lower()
    return Lane.declared("lane", name.upper(), word=word, waiting=waiting, moves=moves)


declare_lane("COMPUTE", Waiting.BUBBLE)
for _message in ("SEND_F", "RECV_F", "SEND_B", "RECV_B"):
    declare_lane(_message, Waiting.MESSAGE)
for _own in (Waiting.REDUCE, Waiting.GATHER, Waiting.TENSOR, Waiting.UPDATE, Waiting.DISK):
    declare_lane(_own.name, _own)
declare_lane("OFFLOAD", Waiting.OFFLOAD, "away")
declare_lane("FETCH", Waiting.FETCH, "back")
declare_lane("LOAD", Waiting.LOAD, "back")
declare_lane("STORE", Waiting.STORE, "away")
declare_lane("AVERAGE", Waiting.REDUCE)


class Scope(StrEnum):
    """What an op is about, which is what its word names."""

    UNIT_MICRO_BATCH = "unit x micro-batch"
    STAGE_MICRO_BATCH = "stage x micro-batch"
    UNIT = "unit"
    UNIT_REDUCTION = "unit, as often as gradients are reduced"  # once a step, or a micro-batch
    RANK = "rank"
    RANK_REDUCTION = "rank, as often as gradients are reduced"


class Partners(StrEnum):
    """Which other ops an op happens together with."""

    NONE = "none"
    NEXT_STAGE = "next stage"  # a message between a stage and the next one, in either direction
    PREVIOUS_STAGE = "previous stage"
    HOLDERS = "holders"  # every rank that holds the same unit
    PEERS = "peers"  # those of them that add up its gradient: all, or those of a site
    TIED = "tied"  # the rank with the other copy of a tied matrix
    EVERYONE = "everyone"


class Cost(StrEnum):
    """What an op costs: a name that the planner's and the run's cost models put a price on. A kind
    of somebody's own may name another, and `plan.durations.declare_cost` says what it takes."""

    NOTHING = "nothing"
    FORWARD = "forward"
    RECOVERY = "recovery"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"
    SEND_OUTPUT = "send output"
    RECEIVE_INPUT = "receive input"
    SEND_GRADIENT = "send gradient"
    RECEIVE_GRADIENT = "receive gradient"
    REDUCE = "reduce"
    GATHER = "gather"
    TENSOR_SUM = "tensor sum"
    RECOVERED_SUM = "recovered sum"
    UPDATE = "update"
    NORM = "norm"
    SAVE = "save"
    TIE = "tie"
    AVERAGE = "average"
    COPY_WEIGHTS = "copy weights"
    MIRROR = "mirror"
    MIRROR_UPDATE = "mirror update"


class Kind(Declared):
    """What an op does: a number for columns, and its declaration. The built-in kinds are attributes
    by their names."""

    lane: Lane
    scope: Scope
    uses: Callable[[Any, Any], None]  # its rule (`rules.Rule`)
    partners: Partners = Partners.NONE
    cost: str = Cost.NOTHING  # of one that `moves` states, their bytes
    waiting: Waiting  # left out: its lane's
    method: str = ""  # of the runtime's `RankOps`, or "module:function"; "": it only waits
    words: str = ""  # what its ops do, for people; left out: what is waited for, or its name
    picture_width: int = 0  # its length in a drawn schedule
    receives: Kind | None = None  # the kind that sends what it receives
    is_forward: bool = False  # each unit has one for each of its micro-batches
    adds_gradient: bool = False  # it adds a micro-batch's gradient to its unit's
    needs_whole_gradient: bool = False  # what it reads of one must hold every micro-batch
    is_save: bool = False  # a step that has any has one for each unit
    is_commit: bool = False  # a rank changes no mirrored state before it
    moves: str = ""  # the states that it takes to another tier or back: of a row of `tiers.WAITING`
    renews: tuple[str, ...] = ()  # the lasting families that it writes once
    # Families whose states are alike on all ranks that hold the unit once its ops there have ended.
    synchronises: tuple[str, ...] = ()

    # What follows from these.
    is_message: bool
    is_collective: bool  # it happens together with others that hold its unit
    is_tie: bool  # it adds up the copies of a tied matrix
    is_barrier: bool  # it does nothing but wait
    is_state_work: bool  # neither compute nor a message: it moves or changes states
    whole_stage: bool  # about a stage or rank: its action's unit is always 0, never written
    names_micro_batch: bool  # its word names a micro-batch in every program
    changes_weights: bool  # it makes weights, or a gradient, what they are after the step
    is_reduction: bool  # its word names one where gradients are reduced once in each
    uses_buckets: bool  # it fills or sends them, where backward sends gradients

    F: ClassVar[Kind]
    B: ClassVar[Kind]
    I: ClassVar[Kind]  # noqa: E741
    W: ClassVar[Kind]
    R: ClassVar[Kind]
    SEND_F: ClassVar[Kind]
    RECV_F: ClassVar[Kind]
    SEND_B: ClassVar[Kind]
    RECV_B: ClassVar[Kind]
    GradSync: ClassVar[Kind]
    UpdateShard: ClassVar[Kind]
    PrefetchW: ClassVar[Kind]
    Gather_F: ClassVar[Kind]
    Gather_B: ClassVar[Kind]
    AllReduce_F: ClassVar[Kind]
    AllReduce_R: ClassVar[Kind]
    AllReduce_B: ClassVar[Kind]
    AllBackward: ClassVar[Kind]
    AllSynced: ClassVar[Kind]
    AllUpdated: ClassVar[Kind]
    AllReady: ClassVar[Kind]
    ClipNorm: ClassVar[Kind]
    Save: ClassVar[Kind]
    MirrorGradient: ClassVar[Kind]
    Commit: ClassVar[Kind]
    MirrorUpdate: ClassVar[Kind]
    TieSync: ClassVar[Kind]
    OffloadInput: ClassVar[Kind]
    FetchInput: ClassVar[Kind]
    AverageW: ClassVar[Kind]
    CopyW: ClassVar[Kind]
    AverageCopy: ClassVar[Kind]
    FetchOptimizer: ClassVar[Kind]
    StoreOptimizer: ClassVar[Kind]
    FetchView_F: ClassVar[Kind]
    FetchView_R: ClassVar[Kind]
    FetchView_B: ClassVar[Kind]
    StoreView: ClassVar[Kind]
    FetchGradient: ClassVar[Kind]
    StoreGradient: ClassVar[Kind]
    Spill: ClassVar[Kind]
    Fill: ClassVar[Kind]
    StoreSum: ClassVar[Kind]
    FetchSum: ClassVar[Kind]


def kinds_where(condition: str) -> npt.NDArray[np.bool_]:
    """For each kind's number whether its property of that name holds."""
    return np.array([bool(getattr(kind, condition)) for kind in Kind])
