"""What a run says while it goes: new lines of its metrics, and the figures shown of each."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from statistics import median

from ratrain.runtime.rank.metrics import Row, exposed_fraction
from ratrain.runtime.run_folder import RunFolder

_RECENT = 20


class Follower:
    """Reads the lines of the metrics that were written since it was last asked."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.metrics
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def new_rows(self) -> list[Row]:
        """Whole lines only; a line that is being written comes the next time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found: list[Row] = []
        for line in whole.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # cut by a kill; a restarted run writes the step again
                continue
        return found


@dataclass(frozen=True)
class RankMemory:
    """One rank's bytes: what its tensors took at most, or where that is not counted its ledger."""

    peak_bytes: int
    budget_bytes: int | None

    @property
    def fraction(self) -> float:
        """Of the budget; 0 where there is none."""
        return self.peak_bytes / self.budget_bytes if self.budget_bytes else 0.0


@dataclass(frozen=True)
class Progress:
    """One step's figures for people."""

    step: int  # done, so the first is 1
    end_step: int
    loss: float
    tokens_per_s: float
    step_time_s: float
    exposed_fraction: float  # of the step: the worst rank's wait for reduce, gather and update
    memory: tuple[RankMemory, ...]  # by world rank
    left_s: float

    @property
    def fullest(self) -> RankMemory:
        """The rank that is nearest to its budget."""
        return max(self.memory, key=lambda one: (one.fraction, one.peak_bytes))


class ProgressMeter:
    """Makes a `Progress` of each row; time left is by the median of the last steps."""

    def __init__(self, end_step: int) -> None:
        self._end_step = end_step
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def take(self, row: Row) -> Progress:
        self._recent.append(row["step_time_s"])
        done = row["step"] + 1
        return Progress(
            step=done,
            end_step=self._end_step,
            loss=row["loss"],
            tokens_per_s=row["tokens_per_s"],
            step_time_s=row["step_time_s"],
            exposed_fraction=max(map(exposed_fraction, row["ranks"])),
            memory=tuple(
                RankMemory(int(peak_bytes(rank)), row["budget_bytes"]) for rank in row["ranks"]
            ),
            left_s=max(self._end_step - done, 0) * median(self._recent),
        )


def peak_bytes(rank: Row) -> float:
    """What the allocator counted where it does, else the ledger's peak."""
    return rank["allocated_peak_bytes"] or rank["ledger_peak_bytes"] or 0.0
