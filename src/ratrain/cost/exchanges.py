"""What each rank of a group does in a collective, and in which order each part is summed.

An algorithm's messages (`cost.algorithms`) are played through with symbols in place of numbers: a
rank's own part is its place's number, a sum is the tuple of what was added. What the owners end
with says whether the algorithm is a reduce-scatter at all, and the order of every sum. Two
collectives whose orders are one give the same bits, whatever they are called; addition of two is
the same both ways round, so (0+1) is (1+0).

A rank that receives parts in a round adds them and its own up at once, in the order of places.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TypeAlias

from ratrain.cost.algorithms import ALGORITHMS, Algorithm, Hosts, Message
from ratrain.errors import SpecError

Order: TypeAlias = "int | tuple[Order, ...]"
"""How a part is summed: a place's number, or a tuple of orders, added from left to right."""

_MOST_COMPARED = 64
"""Ranks of a group whose orders are written out; of a larger one the algorithm's name says it."""


@dataclass(frozen=True)
class Parcel:
    """What goes to another place in a round, or comes from it: parts, and of each whether it is a
    sum already."""

    peer: int
    parts: tuple[int, ...]
    summed: tuple[bool, ...]


@dataclass(frozen=True)
class Turn:
    """One place's share of a round."""

    leaving: tuple[Parcel, ...]
    arriving: tuple[Parcel, ...]


@dataclass(frozen=True)
class Exchange:
    """A collective over a group. `turns`: of each place, round by round; `orders`: of each part."""

    turns: tuple[tuple[Turn, ...], ...]
    orders: tuple[Order, ...]

    @property
    def rounds(self) -> int:
        return len(self.turns[0])

    def tensors_held(self) -> int:
        """The most tensors of a piece that a place holds at once in a reduction whose rounds follow
        each other piece by piece: what arrives, sums until they leave, one being made."""
        return max(map(_held, self.turns))


def exchange_of(name: str, hosts: Hosts) -> Exchange:
    """The collective of a name over a group; one that does not sum every part is refused."""
    return _exchange(name, ALGORITHMS[name], hosts)


@lru_cache(maxsize=256)
def _exchange(name: str, algorithm: Algorithm, hosts: Hosts) -> Exchange:
    n = len(hosts)
    held: list[dict[int, Order]] = [dict.fromkeys(range(n), place) for place in range(n)]
    turns: list[list[Turn]] = [[] for _ in range(n)]
    for round_ in algorithm(hosts):
        messages = list(round_.messages)
        if not messages:
            continue
        leaving: list[list[Parcel]] = [[] for _ in range(n)]
        arriving: list[list[Parcel]] = [[] for _ in range(n)]
        came: dict[tuple[int, int], dict[int, Order]] = defaultdict(dict)
        for message in messages:
            _require_held(name, message, held)
            source, target, parts = message
            summed = tuple(isinstance(held[source][part], tuple) for part in parts)
            leaving[source].append(Parcel(target, parts, summed))
            arriving[target].append(Parcel(source, parts, summed))
            for part in parts:
                came[target, part][source] = held[source].pop(part)
        for (target, part), orders in came.items():
            if part in held[target]:
                orders[target] = held[target][part]
            in_order = [orders[place] for place in sorted(orders)]
            held[target][part] = tuple(in_order) if len(in_order) > 1 else in_order[0]
        for place in range(n):
            turns[place].append(Turn(tuple(leaving[place]), tuple(arriving[place])))
    orders = [held[part].get(part) for part in range(n)]
    return Exchange(tuple(map(tuple, turns)), _whole(name, orders))


def order_words(names: Iterable[tuple[str, Hosts]]) -> str:
    """In which order replicas' gradients are added, for collectives of these names over these
    groups: "" where it is that of replicas, everywhere. Equal words mean equal bits."""
    return "; ".join(dict.fromkeys(filter(None, (_words(*each) for each in names))))


def _words(name: str, hosts: Hosts) -> str:
    n = len(hosts)
    if n > _MOST_COMPARED:
        counts = "+".join(map(str, Counter(hosts).values()))
        return "" if name == "direct" else f"{name} over hosts of {counts}"
    orders = exchange_of(name, hosts).orders
    plain = _canonical(tuple(range(n)))
    if all(_canonical(order) == plain for order in orders):
        return ""
    if len({_canonical(order) for order in orders}) == 1:
        return _formula(orders[0])
    return f"{name} of {n}" if name == "ring" else f"{name} over hosts {','.join(map(str, hosts))}"


def _canonical(order: Order) -> Order:
    """The same for all orders that give the same bits."""
    return order if isinstance(order, int) else reduce(_added, map(_canonical, order))


def _added(left: Order, right: Order) -> Order:
    return (left, right) if repr(left) <= repr(right) else (right, left)


def _formula(order: Order) -> str:
    if isinstance(order, int):
        return str(order)
    return "+".join(str(t) if isinstance(t, int) else f"({_formula(t)})" for t in order)


def _require_held(name: str, message: Message, held: Sequence[dict[int, Order]]) -> None:
    source, target, parts = message
    known = range(len(held))
    if source == target or source not in known or target not in known:
        raise _refused(name, f"sends from place {source} to place {target} of {len(held)}")
    missing = [part for part in parts if part not in held[source]]
    if missing or not parts:
        what = f"part {missing[0]}, which it has sent before" if missing else "nothing"
        raise _refused(name, f"has place {source} send {what}")


def _whole(name: str, orders: Sequence[Order | None]) -> tuple[Order, ...]:
    """The orders, where each part is summed over every place once."""
    every, whole = list(range(len(orders))), list[Order]()
    for part, order in enumerate(orders):
        if order is not None and sorted(_places(order)) == every:
            whole.append(order)
        else:
            there = ", ".join(map(str, sorted(_places(order)))) or "none"
            raise _refused(name, f"ends with part {part} summed over places {there}")
    return tuple(whole)


def _refused(name: str, what: str) -> SpecError:
    return SpecError(
        f"the collective {name} is no reduce-scatter: it {what}",
        place="[schedule] collective",
        fix='use "direct", "ring" or "hierarchical", or correct its messages',
    )


def _places(order: Order | None) -> list[int]:
    if order is None:
        return []
    return [order] if isinstance(order, int) else [p for term in order for p in _places(term)]


def _held(turns: Sequence[Turn]) -> int:
    arriving = sum(len(parcel.parts) for turn in turns for parcel in turn.arriving)
    made: dict[int, int] = {}  # part -> the round in which its sum was made
    waiting = 0
    for number, turn in enumerate(turns):
        for parcel in turn.leaving:
            waiting += sum(number - made.pop(part, number) for part in parcel.parts)
        for part in {part for parcel in turn.arriving for part in parcel.parts}:
            waiting += number - made.pop(part, number)
            made[part] = number
    return arriving + waiting + 1
