"""Kinds of op, open: each is declared once, with everything that the code needs to know about it.

Verifier, bounds, simulator, ledger, text form and reports derive from the declaration; nothing
else lists kinds. The built-in ones are in `kinds/`; a third-party package may `declare`
further ones in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ratrain.errors import ProgramError
from ratrain.plugins import load_plugins


class Lane(IntEnum):
    """Where an op waits its turn: one queue for each lane of each rank, served in order. The
    field's common name for a lane is a stream."""

    COMPUTE = 0
    SEND_F = 1
    RECV_F = 2
    SEND_B = 3
    RECV_B = 4
    REDUCE = 5  # gradients to their owners, over the ranks that hold the same unit
    GATHER = 6  # weights from their owners, over the same ranks
    TENSOR = 7  # activations inside a tensor-parallel group
    UPDATE = 8  # the optimizer, bound by memory bandwidth
    DISK = 9  # checkpoints on their way out
    OFFLOAD = 10  # states on their way to another memory tier
    FETCH = 11  # states on their way back
    LOAD = 12  # optimizer states on their way from another memory tier to their update
    STORE = 13  # and back
    AVERAGE = 14  # weights that replicas or sites average, between those that update them apart

    @property
    def word(self) -> str:
        return self.name.lower()


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
    UPDATE = "update"
    NORM = "norm"
    SAVE = "save"
    TIE = "tie"
    AVERAGE = "average"
    COPY_WEIGHTS = "copy weights"
    MIRROR = "mirror"
    MIRROR_UPDATE = "mirror update"
    COPY_INPUT = "copy input"
    MOVE_OPTIMIZER = "move optimizer"
    MOVE_VIEW = "move view"
    MOVE_GRADIENT = "move gradient"
    MOVE_SAVED = "move activations"


class Waiting(StrEnum):
    """What a rank's compute lane waits for when it does not compute."""

    BUBBLE = "bubble"  # other stages: their tensors are not made yet
    MESSAGE = "message"  # a tensor of another stage, under way
    REDUCE = "reduce"  # a gradient reduction
    GATHER = "gather"  # a weight gather
    TENSOR = "tensor"  # sums inside a tensor group
    UPDATE = "update"  # the optimizer, and the norm before it
    DISK = "disk"  # a checkpoint of the step before
    OFFLOAD = "offload"  # a state on its way to another memory tier
    FETCH = "fetch"  # a state on its way back
    LOAD = "load"  # optimizer states on their way to their update
    STORE = "store"  # and back


_WAIT_OF_LANE = {
    Lane.COMPUTE: Waiting.BUBBLE,
    Lane.REDUCE: Waiting.REDUCE,
    Lane.GATHER: Waiting.GATHER,
    Lane.TENSOR: Waiting.TENSOR,
    Lane.UPDATE: Waiting.UPDATE,
    Lane.DISK: Waiting.DISK,
    Lane.OFFLOAD: Waiting.OFFLOAD,
    Lane.FETCH: Waiting.FETCH,
    Lane.LOAD: Waiting.LOAD,
    Lane.STORE: Waiting.STORE,
    Lane.AVERAGE: Waiting.REDUCE,
}


class Kind(int):
    """What an op does: a number for columns, and its declaration. `Kind(7)` is the kind of that
    number; the built-in kinds are attributes by their names."""

    name: str
    lane: Lane
    scope: Scope
    partners: Partners
    cost: str
    waiting: Waiting
    method: str
    picture_width: int
    needs_whole_gradient: bool
    renews: tuple[str, ...]
    synchronises: tuple[str, ...]
    is_message: bool
    is_barrier: bool  # it does nothing but wait
    is_state_work: bool  # neither compute nor a message: it moves or changes states
    whole_stage: bool  # about a stage or rank: its action's unit is always 0, never written
    names_micro_batch: bool  # its word names a micro-batch in every program
    changes_weights: bool  # it makes weights, or a gradient, what they are after the step
    is_reduction: bool  # its word names one where gradients are reduced once in each

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

    def __new__(cls, number: int) -> Kind:
        return _KINDS[number]

    def __repr__(self) -> str:
        return f"Kind.{self.name}"

    def __reduce__(self) -> tuple[object, ...]:
        return kind_named, (self.name,)


_KINDS: list[Kind] = []
_BY_NAME: dict[str, Kind] = {}


def new_kind(
    name: str,
    lane: Lane,
    scope: Scope,
    *,
    partners: Partners = Partners.NONE,
    cost: str = Cost.NOTHING,
    waiting: Waiting | None = None,
    method: str = "",
    picture_width: int = 0,
    needs_whole_gradient: bool = False,
    renews: tuple[str, ...] = (),
    synchronises: tuple[str, ...] = (),
) -> Kind:
    """A further kind. `method`: of the runtime's `RankOps`, which runs it; "": it only waits.
    `picture_width`: its length in a drawn schedule. `needs_whole_gradient`: what it reads of a
    gradient must hold every micro-batch. `renews`: the lasting families that it writes once.
    `synchronises`: the families whose states are alike on all ranks that hold the unit once its
    ops there have ended. The rule of what it uses is declared with it (`rules.declare`)."""
    if name in _BY_NAME:
        raise ProgramError(f"the kind of op {name} is declared twice", fix="choose another name")
    kind = int.__new__(Kind, len(_KINDS))
    kind.name, kind.lane, kind.scope, kind.partners = name, lane, scope, partners
    kind.cost, kind.method = cost, method
    kind.waiting = waiting or _WAIT_OF_LANE.get(lane, Waiting.MESSAGE)
    kind.picture_width, kind.needs_whole_gradient = picture_width, needs_whole_gradient
    kind.renews, kind.synchronises = renews, synchronises
    _derive(kind)
    _KINDS.append(kind)
    _BY_NAME[name] = kind
    setattr(Kind, name, kind)
    return kind


def _derive(kind: Kind) -> None:
    """What follows from the rest: attributes, since columns and texts ask for them all the time."""
    scope, about_rank = kind.scope, (Scope.RANK, Scope.RANK_REDUCTION)
    kind.is_message = scope is Scope.STAGE_MICRO_BATCH
    kind.is_barrier = not kind.method and scope in about_rank
    kind.is_state_work = kind.is_barrier or not (kind.is_message or kind.lane is Lane.COMPUTE)
    kind.whole_stage = kind.is_message or scope in about_rank
    kind.names_micro_batch = kind.is_message or scope is Scope.UNIT_MICRO_BATCH
    kind.changes_weights = bool(kind.renews or kind.synchronises)
    kind.is_reduction = scope in (Scope.UNIT_REDUCTION, Scope.RANK_REDUCTION)


def kinds() -> Iterator[Kind]:
    """Every kind, in the order of declaration."""
    return iter(tuple(_KINDS))


def kind_named(name: str) -> Kind:
    """The kind of a name; a KeyError where there is none."""
    return _BY_NAME[name]


def is_kind(name: str) -> bool:
    """Whether a kind has this name. A rank may read a word of a plugin's before anything else has
    asked for plugins."""
    if name not in _BY_NAME:
        load_plugins()
    return name in _BY_NAME


def kind_names() -> list[str]:
    return list(_BY_NAME)


def kinds_where(condition: str) -> npt.NDArray[np.bool_]:
    """For each kind's number whether its property of that name holds."""
    return np.array([bool(getattr(kind, condition)) for kind in _KINDS])


def forget(kind: Kind) -> None:
    """Takes back the last declaration: for tests, which must leave no kind behind."""
    if _KINDS[-1] is not kind:
        raise ProgramError(f"{kind.name} is not the last kind declared")
    _KINDS.pop()
    del _BY_NAME[kind.name]
    delattr(Kind, kind.name)
