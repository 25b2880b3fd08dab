"""Ranks, queues and messages run step by step, in a random order, for `pipelining` to agree with.

Written apart from it: cells are read by other code, nothing is derived beforehand, and what passes
between two ranks is whatever stands first on both sides, as a communicator sees it. It does what
PyTorch's runtime does where a rank comes to an action, its errors too.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Hashable
from random import Random
from typing import NamedTuple

_WORD = re.compile(r"(\d+)([A-Z_]+?)(\d*)")
_MESSAGE = re.compile("(SEND|RECV)_([FB])")
Carried = tuple[str, int, int]
"""("F", stage, micro-batch): the output of that stage; "B": the gradient of its input."""


class Broken(Exception):
    """What a rank would raise an error for, and a message that is not the one asked for."""


class Post(NamedTuple):
    """A message as one side posts it."""

    sends: bool
    peer: int
    carried: Carried


class Machine:
    """All ranks of a schedule, under one rule of how messages queue."""

    def __init__(self, rows: list[list[str]], rule: str) -> None:
        self.rule = rule
        self.rows = [
            [[_parsed(word) for word in cell.strip("()").split(")")[0].split(";")] for cell in row]
            for row in rows
        ]
        self.home = {
            stage: rank
            for rank, row in enumerate(self.rows)
            for cell in row
            for act, stage, _ in cell
            if act in "FBIW"
        }
        self.at = [(0, 0)] * len(rows)  # cell, and action of the cell
        self.made: set[Carried] = set()
        self.asked: set[tuple[int, Carried]] = set()
        self.here: set[tuple[int, Carried]] = set()
        self.queues: dict[Hashable, deque[list[Post]]] = defaultdict(deque)

    def runs(self, random: Random) -> bool:
        """Whether every rank comes to its end and no message is left over."""
        ranks = range(len(self.rows))
        pairs = [(a, b) for a in ranks for b in ranks if a != b]
        try:
            moved = True
            while moved:
                moved = False
                for rank in random.sample(ranks, len(ranks)):
                    steps = random.randrange(1, 9)
                    while steps and self._step(rank):
                        steps, moved = steps - 1, True
                for pair in random.sample(pairs, random.randrange(1, len(pairs) + 1)):
                    moved |= self._pass(*pair)
                moved |= not all(map(self._over, ranks)) and any(self._pass(*p) for p in pairs)
            while any(self._pass(*pair) for pair in pairs):
                pass
        except Broken:
            return False
        return all(map(self._over, ranks)) and not any(self.queues.values())

    def _over(self, rank: int) -> bool:
        return self.at[rank][0] == len(self.rows[rank])

    # ---- a rank on its way --------------------------------------------------------------

    def _step(self, rank: int) -> bool:
        """Lets a rank do its next action, if it can."""
        if self._over(rank):
            return False
        cell, part = self.at[rank]
        actions = self.rows[rank][cell]
        act, stage, micro_batch = actions[part]
        if act in "FBIW":
            if not self._compute(rank, act, stage, micro_batch):
                return False
        elif part == 0 and _MESSAGE.fullmatch(act):
            self._post(rank, actions)
            part = len(actions) - 1
        self.at[rank] = (cell, part + 1) if part + 1 < len(actions) else (cell + 1, 0)
        return True

    def _compute(self, rank: int, act: str, stage: int, micro_batch: int) -> bool:
        if act != "F" and ("F", stage, micro_batch) not in self.made:
            raise Broken
        if act != "W":
            way = "F" if act == "F" else "B"
            source = stage - 1 if act == "F" else stage + 1
            needed = way, source, micro_batch
            if self.home.get(source) == rank:
                if needed not in self.made:
                    raise Broken
            elif source in self.home:
                if (rank, needed) not in self.asked:
                    raise Broken
                if (rank, needed) not in self.here:
                    return False
                self.asked.remove((rank, needed))
                self.here.remove((rank, needed))
            self.made.add((way, stage, micro_batch))
        return True

    def _post(self, rank: int, actions: list[tuple[str, int, int]]) -> None:
        entries: dict[Hashable, list[Post]] = {}
        for act, stage, micro_batch in actions:
            sends, way = act[:4] == "SEND", act[-1]
            other = stage + (1 if sends == (way == "F") else -1)
            carried = way, stage if sends else other, micro_batch
            if self.home.get(stage) != rank or self.home.get(other, rank) == rank:
                raise Broken
            if sends and carried not in self.made:
                raise Broken
            if not sends:
                if (rank, carried) in self.asked:
                    raise Broken
                self.asked.add((rank, carried))
            post = Post(sends, self.home[other], carried)
            entries.setdefault(self._queue(rank, post), []).append(post)
        for queue, entry in entries.items():
            self.queues[queue].append(entry)

    def _queue(self, rank: int, post: Post) -> Hashable:
        """The queue of a rank that a message goes through."""
        return {
            "one": (rank,),
            "pair": (rank, post.peer),
            "directed": (rank, post.peer, post.sends),
            "free": (rank, post),
        }[self.rule]

    # ---- messages on their way ----------------------------------------------------------

    def _pass(self, source: int, target: int) -> bool:
        """Lets a message from one rank to another pass, if one stands first on both sides."""
        for first, post in self._firsts(source, sends=True, peer=target):
            for second, asked in self._firsts(target, sends=False, peer=source):
                if self.rule == "free" and post.carried != asked.carried:
                    continue
                if post.carried != asked.carried:
                    raise Broken
                self.here.add((target, asked.carried))
                self._take(first, post)
                self._take(second, asked)
                return True
        return False

    def _firsts(self, rank: int, *, sends: bool, peer: int) -> list[tuple[Hashable, Post]]:
        """What stands first, of each queue of a rank, to or from a peer."""
        found: list[tuple[Hashable, Post]] = []
        for queue, entries in self.queues.items():
            if isinstance(queue, tuple) and queue[0] == rank and entries:
                posts = [p for p in entries[0] if p.sends == sends and p.peer == peer]
                found += [(queue, post) for post in posts[:1]]
        return found

    def _take(self, queue: Hashable, post: Post) -> None:
        entry = self.queues[queue][0]
        entry.remove(post)
        if not entry:
            self.queues[queue].popleft()


def _parsed(word: str) -> tuple[str, int, int]:
    match = _WORD.fullmatch(word)
    assert match, word
    return match[2], int(match[1]), int(match[3] or -1)
