"""Messages between stages: which send belongs to which receive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from ratrain.program.pipelining.cells import MESSAGES, SENDS, Act, Action, Schedule


class Name(NamedTuple):
    """What a message carries: a stage's output (`forward`), or the gradient of a stage's input, on
    its way from the stage `source`."""

    forward: bool
    source: int
    micro_batch: int

    @property
    def target(self) -> int:
        return self.source + (1 if self.forward else -1)

    @property
    def send(self) -> str:
        return f"{self.source}{Act.SEND_F if self.forward else Act.SEND_B}{self.micro_batch}"

    @property
    def receive(self) -> str:
        return f"{self.target}{Act.RECV_F if self.forward else Act.RECV_B}{self.micro_batch}"


def name_of(action: Action) -> Name:
    """The message that a send or a receive is about."""
    forward = action.act in (Act.SEND_F, Act.RECV_F)
    source = action.stage
    if action.act not in SENDS:
        source += -1 if forward else 1
    return Name(forward, source, action.micro_batch)


@dataclass(frozen=True)
class Message:
    """A message as written: its send and its receive, None where there is none."""

    name: Name
    ranks: tuple[int, int]
    """From which rank to which."""
    send: Action | None
    receive: Action | None

    @property
    def ends(self) -> tuple[Action, ...]:
        """Its actions that are there."""
        return tuple(end for end in (self.send, self.receive) if end is not None)


@dataclass(frozen=True)
class Mail:
    """The messages of a schedule."""

    messages: tuple[Message, ...]
    strays: tuple[Action, ...]
    """Sends and receives that no message can have, or that stand on another rank's row."""

    @cached_property
    def by_name(self) -> dict[Name, list[Message]]:
        """The messages of each name: one, where nothing is wrong."""
        named: dict[Name, list[Message]] = {}
        for message in self.messages:
            named.setdefault(message.name, []).append(message)
        return named


def passes(schedule: Schedule, name: Name) -> bool:
    """Whether there can be such a message: between neighbouring stages of two ranks."""
    stages, rank_of = schedule.stages, schedule.rank_of
    if not (0 <= name.source < stages and 0 <= name.target < stages):
        return False
    return (
        rank_of[name.source] != rank_of[name.target] and name.micro_batch < schedule.micro_batches
    )


def mail_of(schedule: Schedule) -> Mail:
    """The messages of a schedule: the k-th send of a name belongs to its k-th receive."""
    ends: dict[Name, tuple[list[Action], list[Action]]] = {}
    strays: list[Action] = []
    for action in schedule.actions:
        if action.act not in MESSAGES:
            continue
        name = name_of(action)
        if passes(schedule, name) and action.rank == schedule.rank_of[action.stage]:
            ends.setdefault(name, ([], []))[action.act not in SENDS].append(action)
        else:
            strays.append(action)
    messages = (
        Message(
            name,
            (schedule.rank_of[name.source], schedule.rank_of[name.target]),
            send,
            receive,
        )
        for name, (sends, receives) in ends.items()
        for send, receive in zip_longest(sends, receives)
    )
    return Mail(tuple(messages), tuple(strays))


def crossings(mail: Mail) -> Iterator[tuple[Message, Message]]:
    """For each direction of each pair of ranks whose receives are not in the order of the sends:
    the first receive out of order, and the message that is sent at its turn."""
    directions: dict[tuple[int, int], list[Message]] = {}
    for message in mail.messages:
        if message.send is not None and message.receive is not None:
            directions.setdefault(message.ranks, []).append(message)
    for _, messages in sorted(directions.items()):
        for sent, received in zip(
            _by_turn(messages, receives=False), _by_turn(messages, receives=True), strict=True
        ):
            if sent is not received:
                yield received, sent
                break


def _by_turn(messages: Sequence[Message], *, receives: bool) -> list[Message]:
    def turn(message: Message) -> tuple[int, int]:
        end = message.receive if receives else message.send
        return end.turn if end is not None else (-1, -1)

    return sorted(messages, key=turn)
