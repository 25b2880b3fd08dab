"""The figures of a run's steps for people, and a step in one line."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from statistics import median

from ratrain.controls import without_controls
from ratrain.describe.units import clock_of, format_bytes, format_count
from ratrain.runtime.rank.rows import Row, exposed_fraction, is_added, is_validation

_RECENT = 20


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
    validation: tuple[int, float] | None = None  # the last one: after which step, and its loss
    sampled: tuple[int, str, str] | None = None  # the last: after which step, prompt and text
    best: tuple[int, float] | None = None  # the one with the lowest loss

    @property
    def fullest(self) -> RankMemory:
        """The rank that is nearest to its budget."""
        return max(self.memory, key=lambda rank: (rank.fraction, rank.peak_bytes))


class ProgressMeter:
    """Makes a `Progress` of each row; time left is by the median of the last steps. `best`: the
    validation of before that had the lowest loss."""

    def __init__(self, end_step: int, best: tuple[int, float] | None = None) -> None:
        self._end_step = end_step
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._last: Progress | None = None
        self._validation: tuple[int, float] | None = None
        self._best = best

    def take(self, row: Row) -> Progress | None:
        """A step's figures, or those of the last step with its validation; None where a validation
        comes ahead of all steps."""
        if is_validation(row):
            self._validation = row["step"] + 1, row["validation_loss"]
            if self._best is None or self._validation[1] < self._best[1]:
                self._best = self._validation
            last = self._last
            self._last = last and replace(last, validation=self._validation, best=self._best)
        elif is_added(row):
            sample, last = row["samples"][0], self._last
            sampled = row["step"] + 1, sample["prompt"], sample["text"]
            self._last = last and replace(last, sampled=sampled)
        else:
            self._last = self._progress(row)
        return self._last

    def _progress(self, row: Row) -> Progress:
        self._recent.append(row["step_time_s"])
        steps_done = row["step"] + 1
        return Progress(
            step=steps_done,
            end_step=self._end_step,
            loss=row["loss"],
            tokens_per_s=row["tokens_per_s"],
            step_time_s=row["step_time_s"],
            exposed_fraction=max(map(exposed_fraction, row["ranks"])),
            memory=tuple(
                RankMemory(int(peak_bytes(rank)), row["budget_bytes"]) for rank in row["ranks"]
            ),
            left_s=max(self._end_step - steps_done, 0) * median(self._recent),
            validation=self._validation,
            best=self._best,
        )


def peak_bytes(rank: Row) -> float:
    """What the allocator counted where it does, else the ledger's peak."""
    return rank["allocated_peak_bytes"] or rank["ledger_peak_bytes"] or 0.0


def plain_line(progress: Progress) -> str:
    """One step in at most 80 columns; memory is that of the fullest rank."""
    fullest = progress.fullest
    full = f"{fullest.fraction:.0%}" if fullest.budget_bytes else format_bytes(fullest.peak_bytes)
    return (
        f"step {progress.step}/{progress.end_step}  loss {progress.loss:.3f}  "
        f"{format_count(progress.tokens_per_s)} tok/s  mem {full}  "
        f"wait {progress.exposed_fraction:.0%}  left {clock_of(progress.left_s)}"
    )


def sample_line(progress: Progress) -> str:
    """The first of the last samples in at most 80 columns; "" where there was none."""
    if progress.sampled is None:
        return ""
    step, prompt, text = progress.sampled
    return shown_text(f'after step {step}: "{prompt}" goes on "{text}"', 80)


def shown_text(text: str, columns: int) -> str:
    """A text in one line, without what a terminal would obey."""
    line = without_controls(text.replace("\n", " "))
    return line if len(line) <= columns else f"{line[: columns - 3]}..."


def validation_line(progress: Progress) -> str:
    """The last validation in at most 80 columns; "" where there was none."""
    if progress.validation is None or progress.best is None:
        return ""
    (step, loss), (best_step, best_loss) = progress.validation, progress.best
    beside = f"best {best_loss:.4f} after step {best_step}"
    if best_step == step:
        beside = "the best so far"
    return f"validation loss {loss:.4f} after step {step}, {beside}"
