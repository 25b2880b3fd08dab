"""What a method did in a case: from its ranks' traces to a few numbers."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """One run. Times are of whole steps over all ranks, behind the warm-up."""

    method: str
    steps_s: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()  # a token's, every step
    sent_bytes: float = 0.0  # a step, by the rank that sends most
    cpu_s: float = 0.0  # a step, of the rank that computes most
    peak_bytes: int = 0  # over what its imports took, of the rank that takes most
    others_part: float = 0.0  # of the machine's processors, used by everybody else meanwhile
    memory: tuple[int, int] = (0, 0)  # ours: bound by the verifier, and allocated
    predicted_s: float = 0.0  # ours: a step, by the simulator
    least_s: float = 0.0  # ours: what no order of the same work takes less than, by the same times
    failure: str = ""  # why it did not end: memory, or its last words

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s) if self.steps_s else float("nan")

    @property
    def ended(self) -> bool:
        return not self.failure


def outcome_of(method: str, folder: Path, ranks: int, warm_up: int, tokens: int) -> Outcome:
    """From trace-N.json of every rank."""
    traces: list[dict[str, Any]] = [
        json.loads((folder / f"trace-{rank}.json").read_text()) for rank in range(ranks)
    ]
    ends = [max(step) for step in zip(*(t["ends_s"] for t in traces), strict=True)]
    sums = zip(*(t["losses"] for t in traces), strict=True)
    return Outcome(
        method,
        tuple(after - before for before, after in pairwise(ends[warm_up - 1 :])),
        tuple(sum(loss for loss in step if loss is not None) / tokens for step in sums),
        max(_each(t["sent_bytes"], warm_up) for t in traces),
        max(_each(t["cpu_s"], warm_up) for t in traces),
        max(t["peak_bytes"] - t["before_bytes"] for t in traces),
        _others(traces, warm_up),
    )


def together(runs: Sequence[Outcome]) -> Outcome:
    """Repetitions as one: their medians as steps; a failure of any is the whole's."""
    for run in runs:
        if run.failure:
            return run
    return replace(
        runs[0],
        steps_s=tuple(run.step_s for run in runs),
        sent_bytes=statistics.median(run.sent_bytes for run in runs),
        cpu_s=statistics.median(run.cpu_s for run in runs),
        peak_bytes=max(run.peak_bytes for run in runs),
        predicted_s=statistics.median(run.predicted_s for run in runs),
        least_s=statistics.median(run.least_s for run in runs),
        others_part=max(run.others_part for run in runs),
    )


def _others(traces: Sequence[dict[str, Any]], warm_up: int) -> float:
    """The part of the machine's processors that was not ours behind the warm-up.

    A benchmark on a shared machine must say it. What the kernel does for our packets counts here.
    """
    spent_s = max(_each(t["busy_s"], warm_up) for t in traces)
    own_s = sum(_each(t["cpu_s"], warm_up) for t in traces)
    step_s = max(_each(t["ends_s"], warm_up) for t in traces)
    return max(0.0, spent_s - own_s) / (step_s * (os.cpu_count() or 1))


def _each(counts: Sequence[float], warm_up: int) -> float:
    """What a running count grew by in a step behind the warm-up."""
    return (counts[-1] - counts[warm_up - 1]) / (len(counts) - warm_up)
