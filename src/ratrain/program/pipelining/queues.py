"""Who waits for whom under a rule of how a rank's messages queue, and for how long.

A rank computes its actions in the order of its row. It posts a message, to send or to receive,
when it comes to it: when all compute before it in the row is done; it does not wait for it. A
message passes when both sides have posted it and it stands first in its queue on both; it leaves
both queues when it has passed. Compute that needs a message waits for it. A group of messages is
one entry of each queue it has a message in: it leaves when all of them have passed.

So an op waits for ops that are known beforehand, and for all of them: the schedule runs to its end
if and only if these waits have no cycle, and nobody waits for a message with one side only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ratrain.program.pipelining.cells import COMPUTE, Act, Action, Schedule, steps_of
from ratrain.program.pipelining.messages import Mail, Message, Name


class Queueing(StrEnum):
    """How the messages of a rank queue, strictest first: what runs to its end under one of these
    does so under each that follows."""

    ONE = "one"  # one queue: a communicator of all ranks
    PAIR = "pair"  # one for each other rank: a communicator of two
    DIRECTED = "directed"  # one for each other rank and direction
    FREE = "free"  # none: messages are told apart by their names

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Queueing.ONE: "one per rank",
    Queueing.PAIR: "one per pair of ranks",
    Queueing.DIRECTED: "one per direction",
    Queueing.FREE: "free",
}

TIMES: Mapping[str, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "message": 0.05}
"""What compute and messages take, where nothing else is said."""


class Why(StrEnum):
    """Why an op waits for another one."""

    ROW = "row"  # the rank computes in the order of its row
    INPUT = "input"  # it needs what this message brings
    REACHED = "reached"  # the rank comes to it when this is computed
    QUEUE = "queue"  # this stands before it in a queue of the rank


@dataclass(frozen=True)
class Wait:
    """One wait: for the op of this number, on this rank."""

    op: int
    why: Why
    rank: int


@dataclass
class Op:
    """Compute, or a message: what it waits for."""

    of: Action | Message
    waits: list[Wait]

    @property
    def never(self) -> bool:
        """Whether it cannot pass, since one of its sides is not there."""
        return isinstance(self.of, Message) and len(self.of.ends) < 2

    def at(self, rank: int) -> Action:
        """How the op is written in a rank's row."""
        if isinstance(self.of, Action):
            return self.of
        return next(end for end in self.of.ends if end.rank == rank)


def ops_of(schedule: Schedule, mail: Mail, rule: Queueing) -> list[Op]:
    """The ops of a schedule, with their waits."""
    ops = [Op(message, []) for message in mail.messages]
    number = {end: op for op, message in enumerate(mail.messages) for end in message.ends}
    for rank in range(len(schedule.rows)):
        _wait_in_row(schedule, rank, rule, ops, number)
    return ops


def _wait_in_row(
    schedule: Schedule, rank: int, rule: Queueing, ops: list[Op], number: Mapping[Action, int]
) -> None:
    """Adds a row's compute to the ops, and what its actions wait for."""
    computed: int | None = None
    received: dict[Name, int] = {}
    ahead: dict[object, list[int]] = {}  # the last entry of each queue
    for cell in schedule.rows[rank]:
        entry: dict[object, list[int]] = {}
        for action in cell.actions:
            if action.act in COMPUTE:
                inputs = (received[name] for name in needs_of(action) if name in received)
                waits = [Wait(op, Why.INPUT, rank) for op in inputs]
                if computed is not None:
                    waits.append(Wait(computed, Why.ROW, rank))
                computed = len(ops)
                ops.append(Op(action, waits))
            elif action in number:
                op = number[action]
                message, waits = ops[op].of, ops[op].waits
                assert isinstance(message, Message)
                if action is message.receive:
                    received.setdefault(message.name, op)
                if computed is not None:
                    waits.append(Wait(computed, Why.REACHED, rank))
                key = queue_of(message, rank, rule)
                waits.extend(Wait(other, Why.QUEUE, rank) for other in ahead.get(key, ()))
                entry.setdefault(key, []).append(op)
        ahead |= entry


def needs_of(compute: Action) -> Iterator[Name]:
    """What compute needs of the stages beside it; of W nothing, since its I had it."""
    for step in steps_of(compute):
        if step is not Act.WEIGHTS:
            forward = step is Act.FORWARD
            yield Name(forward, compute.stage + (-1 if forward else 1), compute.micro_batch)


def queue_of(message: Message, rank: int, rule: Queueing) -> object:
    """Which of a rank's queues a message stands in."""
    if rule is Queueing.ONE:
        return None
    if rule is Queueing.PAIR:
        source, target = message.ranks
        return target if source == rank else source
    return message.ranks if rule is Queueing.DIRECTED else message


@dataclass(frozen=True)
class Run:
    """A schedule run to its end, or to where it stops."""

    ops: tuple[Op, ...]
    begun: tuple[float | None, ...]
    """When each op begins; None for those that never do."""
    ended: tuple[float | None, ...]

    @property
    def stops(self) -> bool:
        return None in self.ended

    @property
    def time(self) -> float:
        """When the last op that runs is over, but for how floats add up."""
        return round(max((end for end in self.ended if end is not None), default=0.0), 9)


def run(ops: Sequence[Op], times: Mapping[str, float] = TIMES) -> Run:
    """When each op runs: as soon as what it waits for is over."""
    followers: list[list[int]] = [[] for _ in ops]
    left = [len(op.waits) + op.never for op in ops]
    for number, op in enumerate(ops):
        for wait in op.waits:
            followers[wait.op].append(number)
    begins = [0.0] * len(ops)
    begun: list[float | None] = [None] * len(ops)
    ended: list[float | None] = [None] * len(ops)
    ready = deque(number for number, waits in enumerate(left) if not waits)
    while ready:
        number = ready.popleft()
        begun[number] = begins[number]
        end = ended[number] = begins[number] + time_of(ops[number], times)
        for follower in followers[number]:
            begins[follower] = max(begins[follower], end)
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    return Run(tuple(ops), tuple(begun), tuple(ended))


def time_of(op: Op, times: Mapping[str, float]) -> float:
    """What an op takes."""
    return times["message"] if isinstance(op.of, Message) else duration(op.of, times)


def duration(compute: Action, times: Mapping[str, float]) -> float:
    """What compute takes."""
    return sum(times[step] for step in steps_of(compute))
