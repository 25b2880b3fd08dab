"""Goodput: how much of a run's time went into steps that count, and where the rest went.

All times are of rank 0's clock, as its rows in the metrics have them. The first row of each start
says when its process began. A step that was done again after a restart counts as it went last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ratrain.runtime.rank.rows import Row, is_added


@dataclass
class Goodput:
    """Seconds since the first start, by what they went into; `starts`: how many there were."""

    steps_s: float = 0.0  # that count
    lost_steps_s: float = 0.0  # done again after a restart
    starting_s: float = (
        0.0  # from a process' begin to its first step: joining, calibrating, reading
    )
    between_steps_s: float = 0.0  # validation, and saves that steps waited for
    not_running_s: float = 0.0  # from the last step of a start to the next start
    starts: int = 0

    @property
    def total_s(self) -> float:
        return (
            self.steps_s
            + self.lost_steps_s
            + self.starting_s
            + self.between_steps_s
            + self.not_running_s
        )

    @property
    def fraction(self) -> float:
        return self.steps_s / self.total_s if self.total_s else 0.0


def goodput_of(lines: Iterable[Row]) -> Goodput | None:
    """Of all lines of a run's metrics, in the order in which they were written; None where no step
    was done, or where lines are of a version that did not note starts."""
    rows = [row for row in lines if not is_added(row)]
    if not rows or "started_s" not in rows[0]:
        return None
    last_of = {row["step"]: number for number, row in enumerate(rows)}
    found, before_s = Goodput(), rows[0]["started_s"]
    for number, row in enumerate(rows):
        if "started_s" in row:
            found.starts += 1
            began_s = max(before_s, row["started_s"])
            found.not_running_s += began_s - before_s
            before_s = began_s
        passed_s = max(0.0, row["time_s"] - before_s)
        step_s = min(row["step_time_s"], passed_s)
        if last_of[row["step"]] == number:
            found.steps_s += step_s
        else:
            found.lost_steps_s += step_s
        if "started_s" in row:
            found.starting_s += passed_s - step_s
        else:
            found.between_steps_s += passed_s - step_s
        before_s = max(before_s, row["time_s"])
    return found


def goodput_json(found: Goodput | None) -> dict[str, Any] | None:
    """As the report has it."""
    return found and {**asdict(found), "total_s": found.total_s, "fraction": found.fraction}


PARTS = {
    "lost_steps_s": "steps done again",
    "starting_s": "starting",
    "between_steps_s": "between steps",
    "not_running_s": "not running",
}
"""What the time that is not in steps went into, by its key in the report; for people."""
