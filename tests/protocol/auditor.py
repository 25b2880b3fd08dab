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
    def __init__(self, say: Callable[[str], None], ends: int) -> None:
        self._say, self.ends = say, ends
        self.members: list[Any] = []  # of the last attempt that began
        self.newest = 0  # attempt that trains
        self.told = 0  # steps with a line in the metrics, those that count
        self.saved_step = 0
        self.changed_s = 0.0  # when a step was told last, or something happened to a host
        self.lost_steps = self.sources = self.live_sources = 0
        self._struck: dict[str, float] = {}  # hosts, since shortly before an attempt began
        self._begun: set[int] = set()  # its ranks that train
        self._all_train = False  # and nothing happened before

    def struck(self, host: str, now_s: float) -> None:
        """Something happens to a host."""
        self.changed_s = max(self.changed_s, now_s)
        self._struck[host] = now_s

    def begins(
        self, attempt: int, rank: int, ranks: int, step: int, held: tuple[History, ...]
    ) -> None:
        """A rank of an attempt begins to train."""
        for history in held:
            if history != tuple(range(step)):
                raise Violation(f"rank {rank} begins step {step} with tokens of {history}")
        if attempt >= self.newest:  # one that hung may begin behind it, and end
            self.newest = attempt
            self._begun.add(rank)
            self._all_train |= len(self._begun) == ranks and not self._struck

    def stuck(self, now_s: float) -> bool:
        """Whether nothing has happened for long, not even a step."""
        return now_s - self.changed_s > MOST_S

    def alike(self, rank: int, *read: set[History]) -> None:
        """What a rank has read of one part."""
        for histories in read:
            if len(histories) > 1:
                raise Violation(f"rank {rank} read parts of {histories}")

    def source(self, step: int, *, live: bool, gone: set[str], ranks: int, now_s: float) -> None:
        """Where an attempt goes on; the hosts of ranks of the one before, of so many, that are not
        in it."""
        self._say(f"from step {step}, live {live}, without {gone or 'nobody'}")
        promised = ranks > 1 and step < self.ends and self._all_train and len(self._struck) <= 1
        if promised and not (live and gone <= set(self._struck)):
            raise Violation(
                f"of {list(self._struck)} alone: from step {step}, live {live}, lost {gone}"
            )
        self._begun, self._all_train = set(), False
        self._struck = {h: at_s for h, at_s in self._struck.items() if at_s > now_s - SETTLES_S}
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

    def saved(self, step: int, written: Mapping[int, History], ranks: int) -> None:
        """A checkpoint gets its name."""
        wanted = {rank: tuple(range(step)) for rank in range(ranks)}
        if dict(written) != wanted:
            raise Violation(f"checkpoint {step} has {dict(written)}")
        self.saved_step = max(self.saved_step, step)
