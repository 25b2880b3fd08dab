"""What a launcher and one of its ranks tell each other, over a socket that the rank inherits.

    rank -> launcher   "meets"      it looks for the other ranks
                       "trains"     its steps begin
                       "back"       its lanes are called back, after a loss; it waits
    launcher -> rank   "back"       another rank is lost: call lanes back
                       {"rank", "ranks_here", "rendezvous"}
                                    begin the next episode there

A rank that has no such socket ends when another is lost, as under any engine's launcher.
"""

from __future__ import annotations

import json
import queue
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from ratrain.describe.amounts import Count, Name, Natural, Note
from ratrain.describe.strict import Rule, load
from ratrain.readers.json import as_table, parse_json
from ratrain.readers.numbers import is_number
from ratrain.runtime.environment import ORDERS, Launch

MEETS, TRAINS, BACK = "meets", "trains", "back"


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one start meet. `start`: what the launcher calls it, each time otherwise:
    a rank of an earlier start, on a host that was cut off, must not come to another one's."""

    world_size: Count
    address: Name
    port: Annotated[int, Rule(low=1, high=65535)]
    start: Note = ""


def new_start() -> str:
    """What no other start is called."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Order:
    """A rank's place in the next episode."""

    rank: Natural
    ranks_here: Count  # on its host
    rendezvous: Rendezvous

    def launch(self, before: Launch) -> Launch:
        """The same as what a launcher passes to a process that it starts."""
        own = {"rank": self.rank, "ranks_here": self.ranks_here}
        return replace(before, **own, **asdict(self.rendezvous), listener=None)


def words_of(order: Order | str) -> bytes:
    """As it is sent, in one line."""
    return json.dumps(order if isinstance(order, str) else asdict(order)).encode() + b"\n"


class Orders:
    """A rank's end. `called_back` is called, from a thread, when the launcher calls the rank back
    from an episode, with that one's number."""

    def __init__(self, handle: int, called_back: Callable[[int], None]) -> None:
        self._socket = socket.socket(fileno=handle)
        self._called_back = called_back
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def say(self, word: str) -> None:
        with suppress(OSError):  # the launcher has ended, and this process will
            self._socket.sendall(words_of(word))

    def next(self) -> Order | None:
        """The next episode; None where there is none."""
        return self._orders.get()

    def _listen(self) -> None:
        episode = 0
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                body, place = parse_json(line, "the launcher's order")
                if body == BACK:
                    self._called_back(episode)
                else:
                    episode += 1
                    self._orders.put(load(Order, *as_table(body, place)))
        self._orders.put(None)


def orders_of(environ: Mapping[str, str], called_back: Callable[[int], None]) -> Orders | None:
    """This process' orders, where its launcher gives any."""
    handle = environ.get(ORDERS, "")
    return Orders(int(handle), called_back) if is_number(handle) else None
