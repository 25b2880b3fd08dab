"""Why a schedule stops: a short way from wait to wait that comes back, or what waits for a message
with one side only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ratrain.program.pipelining.cells import Action
from ratrain.program.pipelining.messages import Message
from ratrain.program.pipelining.queues import Queueing, Run, Wait, Why


@dataclass(frozen=True)
class Hop:
    """One wait: what waits on a rank, for what on the same rank, and why, in words."""

    waits: Action
    what: Action
    why: str


@dataclass(frozen=True)
class Stop:
    """The waits that stop a schedule. Each begins with what the one before waits for, or with the
    other side of that message. In a cycle the last one waits for what the first begins with; else
    for a message whose other side is not there, `lost`."""

    hops: tuple[Hop, ...]
    lost: str = ""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The waits, a line each."""
        before: Action | None = None
        for hop in self.hops:
            if before is not None and before != hop.waits:
                yield f"{before} is one message with {hop.waits}"
            yield f"{hop.waits} {hop.why} {hop.what}"
            before = hop.what
        first = self.hops[0].waits
        if self.lost:
            yield f"{before} has no {self.lost}"
        elif before is not None and before != first:
            yield f"{before} is one message with {first}"


def stop_of(run: Run, rule: Queueing) -> Stop | None:
    """Why a run stops; None where it does not, or where the only ops that never run are messages
    with one side, for which nothing waits."""
    stuck = [n for n, end in enumerate(run.ended) if end is None and not run.ops[n].never]
    if not stuck:
        return None
    for number in stuck:
        for wait in _open(run, number):
            message = run.ops[wait.op].of
            if run.ops[wait.op].never and isinstance(message, Message):
                other = message.name.send if message.send is None else message.name.receive
                return Stop(_hops(run, [(number, wait)], rule), other)
    cycle = min((_way(run, number) for number in _in_a_cycle(run, stuck[0])), key=len)
    return Stop(_hops(run, cycle, rule))


Way = list[tuple[int, Wait]]
"""Ops, each with what it waits for: the op that follows."""


def _open(run: Run, number: int) -> Iterator[Wait]:
    return (wait for wait in run.ops[number].waits if run.ended[wait.op] is None)


def _in_a_cycle(run: Run, number: int) -> list[int]:
    """The ops of some cycle, from a stuck op on. Every stuck op waits for a stuck one."""
    came: dict[int, int] = {}
    way: list[int] = []
    while number not in came:
        came[number] = len(way)
        way.append(number)
        number = next(_open(run, number)).op
    return way[came[number] :]


def _way(run: Run, start: int) -> Way:
    """A shortest way from an op of a cycle back to itself."""
    came: dict[int, tuple[int, Wait]] = {}
    queue = deque([start])
    while queue:
        number = queue.popleft()
        for wait in _open(run, number):
            if wait.op in came:
                continue
            came[wait.op] = number, wait
            if wait.op == start:
                queue.clear()
                break
            queue.append(wait.op)
    way = [came[start]]
    while way[-1][0] != start:
        way.append(came[way[-1][0]])
    return way[::-1]


def _hops(run: Run, way: Way, rule: Queueing) -> tuple[Hop, ...]:
    return tuple(
        Hop(
            run.ops[number].at(wait.rank),
            run.ops[wait.op].at(wait.rank),
            _reason(run, number, wait, rule),
        )
        for number, wait in way
    )


def _reason(run: Run, number: int, wait: Wait, rule: Queueing) -> str:
    if wait.why is not Why.QUEUE:
        return _REASONS[wait.why]
    message = run.ops[number].of
    assert isinstance(message, Message)
    source, target = message.ranks
    sends = source == wait.rank
    peer = target if sends else source
    to = {Queueing.PAIR: f" with rank {peer}", Queueing.ONE: ""}
    which = to.get(rule, f" {'to' if sends else 'from'} rank {peer}")
    return f"stands, in rank {wait.rank}'s queue{which}, behind"


_REASONS = {
    Why.ROW: "is computed after",
    Why.INPUT: "needs",
    Why.REACHED: "is posted after",
}
