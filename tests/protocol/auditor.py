"""Who knows everything: of every version of every state which steps' tokens are in it, who has it,
and what was told to people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

History = tuple[int, ...]
"""The steps whose tokens are counted in a state, in order."""


MOST_S = 120.0
"""From the last thing that happened to a host to the next step."""


SETTLES_S = 5.0
"""What happens to a host is over for others so much later: who was silent may be given up yet."""


class Violation(AssertionError):
    """Something happened that must be impossible."""


class Auditor:
    """`lasting`: the hosts to which something happens just now."""

    def __init__(
        self, say: Callable[[str], None], ends: int, lasting: Callable[[], set[str]]
    ) -> None:
        self._say, self.ends, self._lasting = say, ends, lasting
        self.members: list[Any] = []  # of the last attempt that began
        self.newest = 0  # attempt that trains
        self.told = 0  # steps with a line in the metrics, those that count
        self.saved_step = 0
        self.changed_s = 0.0  # when a step was told last, or something happened to a host
        self.lost_steps = self.sources = self.live_sources = 0
        self._struck: dict[str, float] = {}  # hosts, since all trained and all was quiet
        self._begun: set[int] = set()  # ranks that train
        self._holders = 0  # how many trained then: of any one host others hold the states
        self._whole, self._whole_s = 0, 0.0  # how many all are, and since when they train

    def struck(self, host: str, now_s: float) -> None:
        """Something happens to a host."""
        self.changed_s = max(self.changed_s, now_s)
        self._struck[host] = now_s

    def _settle(self, now_s: float) -> None:
        """Where all have trained for a while, and nothing happens, one loss may come again."""
        quiet_s = now_s - max(self._whole_s, *self._struck.values(), 0.0)
        there = self._whole and all(member.alive for member in self.members)
        if there and quiet_s > SETTLES_S and not self._lasting_here:
            self._holders = self._whole
            self._struck.clear()

    def left(self, attempt: int) -> None:
        """A rank of an attempt does no more steps in it."""
        if attempt == self.newest:
            self._whole = 0

    @property
    def _lasting_here(self) -> set[str]:
        return self._lasting() & {member.host.name for member in self.members}

    def begins(
        self,
        attempt: int,
        rank: int,
        ranks: int,
        step: int,
        held: tuple[History, ...],
        now_s: float,
    ) -> None:
        """A rank of an attempt begins to train."""
        for history in held:
            if history != tuple(range(step)):
                raise Violation(f"rank {rank} begins step {step} with tokens of {history}")
        if attempt >= self.newest:  # one that hung may begin behind it, and end
            self.newest = attempt
            self._begun.add(rank)
            if len(self._begun) == ranks:
                self._whole, self._whole_s = ranks, now_s

    def stuck(self, now_s: float) -> bool:
        """Whether nothing has happened for long, not even a step."""
        return now_s - self.changed_s > MOST_S

    def alike(self, rank: int, *read: set[History]) -> None:
        """What a rank has read of one part."""
        for histories in read:
            if len(histories) > 1:
                raise Violation(f"rank {rank} read parts of {histories}")

    def source(self, step: int, members: list[Any], *, live: bool) -> None:
        """Where an attempt goes on, of these ranks. No step is lost with one rank: from the moment
        when all train to the next one."""
        gone = {each.host.name for each in self.members if each not in members}
        struck = {*self._struck, *self._lasting_here}
        self._say(f"from step {step}, live {live}, without {gone or 'nobody'}")
        promised = self._holders > 1 and step < self.ends and len(struck) <= 1
        if promised and not (live and gone <= struck):
            raise Violation(
                f"of {list(self._struck)} alone: from step {step}, live {live}, lost {gone}"
            )
        self._begun, self._whole, self.members = set(), 0, list(members)
        self._holders *= live
        self.sources += 1
        self.live_sources += live
        if not live and step < self.saved_step:
            raise Violation(f"checkpoint {self.saved_step} is lost: ranks begin at {step}")
        if step < self.told:
            self.lost_steps += self.told - step
            if live:
                raise Violation(f"step {self.told - 1} was told, survivors go on from {step}")
        if live and step > self.told + 1:
            raise Violation(f"steps from {self.told} to {step} were told by nobody")
        self.told = step  # survivors tell of the last one, where nobody had

    def row(self, attempt: int, step: int, history: History, now_s: float) -> None:
        """A step is told of."""
        if attempt != self.newest:
            raise Violation(f"attempt {attempt} tells of step {step}, {self.newest} trains")
        if step != self.told or history != tuple(range(step + 1)):
            raise Violation(f"step {step} told behind {self.told} steps, tokens of {history}")
        self.told, self.changed_s = step + 1, max(self.changed_s, now_s)
        self._settle(now_s)

    def saved(self, step: int, written: Mapping[int, History], ranks: int) -> None:
        """A checkpoint gets its name."""
        wanted = {rank: tuple(range(step)) for rank in range(ranks)}
        if dict(written) != wanted:
            raise Violation(f"checkpoint {step} has {dict(written)}")
        self.saved_step = max(self.saved_step, step)
