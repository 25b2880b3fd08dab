"""The rows of a run's metrics file, for those who read them: nothing here needs torch."""

from __future__ import annotations

from typing import Any, Protocol

Row = dict[str, Any]
"""A line of the metrics, or one rank's part of it."""
EXPOSED = ("reduce_s", "gather_s", "update_s")
"""State work that compute waits for; the wait for other stages is not communication's alone."""


def is_added(row: Row) -> bool:
    """Whether a line has only what is added to a step: its validation, or samples."""
    return "loss" not in row


def is_validation(row: Row) -> bool:
    """Whether a line has only what validation adds to a step."""
    return is_added(row) and "validation_loss" in row


class Tracker(Protocol):
    """Takes each step's row of the metrics."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


def exposed_fraction(rank: Row) -> float:
    """The part of a rank's step in which compute waits for reductions, gathers and updates."""
    return sum(rank[name] or 0.0 for name in EXPOSED) / (rank["step_time_s"] or 1.0)
