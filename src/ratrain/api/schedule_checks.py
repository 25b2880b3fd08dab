"""What was found of a PyTorch pipelining schedule that says what is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratrain.api.shown import Shown
from ratrain.program.file import schedule_of_file
from ratrain.program.pipelining.check import Check, check
from ratrain.program.pipelining.figures import figures_of
from ratrain.program.pipelining.findings import Finding
from ratrain.program.pipelining.queues import TIMES, Queueing
from ratrain.program.pipelining.words import lines_of


@dataclass(frozen=True, repr=False)
class ScheduleCheck(Shown):
    """A schedule as written, under each rule of how a rank's messages queue."""

    check: Check
    times: Mapping[str, float]

    def __bool__(self) -> bool:
        return self.sound

    @property
    def sound(self) -> bool:
        """Whether nothing was found, under any rule."""
        return not self.findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong: each has a name (`wrong`), a rank, an action and a message."""
        return self.check.findings_under(Queueing)

    def sound_under(self, rule: str) -> bool:
        """Whether nothing was found where messages queue so: "one" queue per rank, one per "pair"
        of ranks, one per direction ("directed"), "free"."""
        return self.check.sound_under(Queueing(rule))

    def to_dict(self) -> dict[str, Any]:
        """The figures, as `ratrain verify --json` prints them."""
        return figures_of(self.check, tuple(Queueing))

    def _lines(self) -> list[str]:
        return list(lines_of(self.check, tuple(Queueing), self.times))


def check_schedule(path: str | Path, times: Mapping[str, float] | None = None) -> ScheduleCheck:
    """Checks a PyTorch pipelining schedule (.csv) as written: every message, gather and reduction,
    and whether the messages of a rank can block each other in their queues. `times` are those of
    "F", "B", "I", "W" and a "message", where they are not 1, 2, 1, 1 and 0.05."""
    taken = {**TIMES, **(times or {})}
    return ScheduleCheck(check(schedule_of_file(Path(path)), taken), taken)
