"""What can be wrong with a schedule, by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ratrain.program.pipelining.cells import Action


class Wrong(StrEnum):
    """The names of findings."""

    MISSING_SEND = "MissingSend"
    MISSING_RECEIVE = "MissingReceive"
    MISSING_MESSAGE = "MissingMessage"
    DOUBLE_MESSAGE = "DoubleMessage"
    NO_SUCH_MESSAGE = "NoSuchMessage"
    SEND_BEFORE_COMPUTE = "SendBeforeCompute"
    COMPUTE_BEFORE_RECEIVE = "ComputeBeforeReceive"
    COMPUTE_BEFORE_INPUT = "ComputeBeforeInput"
    MISSING_FORWARD = "MissingForward"
    MISSING_BACKWARD = "MissingBackward"
    DOUBLE_COMPUTE = "DoubleCompute"
    BACKWARD_BEFORE_FORWARD = "BackwardBeforeForward"
    WEIGHTS_BEFORE_INPUT = "WeightsBeforeInput"
    WRONG_RANK = "WrongRank"
    NOT_UNSHARDED = "NotUnsharded"
    UNSHARDED_TWICE = "UnshardedTwice"
    UNSHARDED_IN_VAIN = "UnshardedInVain"
    NOT_RESHARDED = "NotResharded"
    RESHARDED_TWICE = "ReshardedTwice"
    NOT_REDUCED = "NotReduced"
    REDUCED_TWICE = "ReducedTwice"
    REDUCED_TOO_EARLY = "ReducedTooEarly"
    NOT_AWAITED = "NotAwaited"
    AWAITED_IN_VAIN = "AwaitedInVain"
    CROSSED_ORDER = "CrossedOrder"
    DEADLOCK = "Deadlock"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its name, in words, and where: a row, and an action of it where one
    is there."""

    wrong: Wrong
    message: str
    rank: int
    action: Action | None = None


def of_action(wrong: Wrong, action: Action, words: str) -> Finding:
    """A finding about an action: its message begins with it."""
    return Finding(wrong, f"{action} {words}", action.rank, action)
