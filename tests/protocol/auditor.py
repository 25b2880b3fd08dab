"""Who knows everything: of every version of every state which steps' tokens are in it, who has it,
and what was told to people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

History = tuple[int, ...]
"""The steps whose tokens are counted in a state, in order."""


class Violation(AssertionError):
    """Something happened that must be impossible."""


class Auditor:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.members: list[Any] = []  # of the last attempt that began
        self.newest = 0  # attempt that trains
        self.told = 0  # steps with a line in the metrics, those that count
        self.saved_step = 0
        self.lost_steps = self.sources = self.live_sources = 0

    def begins(self, attempt: int, rank: int, step: int, *held: History) -> None:
        """A rank of an attempt begins to train."""
        for history in held:
            if history != tuple(range(step)):
                raise Violation(f"rank {rank} begins step {step} with tokens of {history}")
        self.newest = max(attempt, self.newest)  # one that hung may begin behind it, and end

    def alike(self, rank: int, *read: set[History]) -> None:
        """What a rank has read of one part."""
        for histories in read:
            if len(histories) > 1:
                raise Violation(f"rank {rank} read parts of {histories}")

    def source(self, attempt: int, step: int, live: bool, lost: int) -> None:
        """Where an attempt goes on, and how many ranks of the one before are not in it."""
        self._say(f"attempt {attempt} from step {step}, live {live}, {lost} lost")
        self.sources += 1
        self.live_sources += live
        if not live and step < self.saved_step:
            raise Violation(f"checkpoint {self.saved_step} is lost: attempt begins at {step}")
        if step < self.told:
            self.lost_steps += self.told - step
            if live:
                raise Violation(f"step {self.told - 1} was told, survivors go on from {step}")
        if live and step > self.told + 1:
            raise Violation(f"steps from {self.told} to {step} were told by nobody")
        self.told = step  # survivors tell of the last one, where nobody had

    def row(self, attempt: int, step: int, history: History) -> None:
        """A step is told of."""
        if attempt != self.newest:
            raise Violation(f"attempt {attempt} tells of step {step}, {self.newest} trains")
        if step != self.told or history != tuple(range(step + 1)):
            raise Violation(f"step {step} told behind {self.told} steps, tokens of {history}")
        self.told = step + 1

    def saved(self, step: int, written: Mapping[int, History], ranks: int) -> None:
        """A checkpoint gets its name."""
        wanted = {rank: tuple(range(step)) for rank in range(ranks)}
        if dict(written) != wanted:
            raise Violation(f"checkpoint {step} has {dict(written)}")
        self.saved_step = max(self.saved_step, step)
