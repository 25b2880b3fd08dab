"""Where a run and its prediction part: one step of both, op by op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ratrain.errors import TimelineError
from ratrain.runtime.run.merge import merge_records
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.seats import Seats
from ratrain.timeline.compare import (
    Comparison,
    OpDifference,
    compare,
    one_step,
    step_times,
    typical_step,
)
from ratrain.timeline.timeline import Timeline, read_timeline

WORST = 10


@dataclass(frozen=True)
class RunDifference:
    """One step as predicted and as measured, both by program rank and from zero. Of ranks that
    play the same part the first one is shown."""

    step: int  # counted from 1, as metrics are shown
    predicted: Timeline
    measured: Timeline
    ops: Comparison
    predicted_step_s: float
    measured_step_s: float | None  # None where the step before was not recorded

    def worst(self, count: int = WORST) -> list[OpDifference]:
        """The ops whose length is furthest from the predicted one. Saves are given no time, so
        they are not predicted at all; a send ends when the network has taken its bytes, so that
        its receive tells of the transfer."""
        timed = [
            op for op in self.ops.ops if op.first.length_s > 0 and not op.lane.startswith("send")
        ]
        by_size = sorted(timed, key=lambda op: -abs(op.length_difference_s))
        return by_size[:count]


def difference_of(folder: RunFolder, step: int | None = None) -> RunDifference:
    """The `RunDifference` of a run; `step` (from 1) is one of the recorded ones, by default that
    of median length."""
    spec = folder.read_spec()
    measured = merge_records(folder, spec)
    if measured is None:
        raise TimelineError(
            "no op of this run was recorded: the last steps of a run are, when it ends",
            place=str(folder.path),
            fix="let the run come to its end: `ratrain train JOB --resume`",
        )
    if not folder.predicted.exists():
        raise TimelineError(
            "there is no prediction: the run was not calibrated",
            place=str(folder.path),
            fix="run it without --no-calibrate",
        )
    predicted = read_timeline(folder.predicted)
    lengths = step_times(measured)
    chosen = typical_step(measured) if step is None else step - 1
    last = max(span.step for span in predicted.spans)
    ours = one_step(measured, chosen, ranks=_first_members(spec.seats))
    theirs = one_step(predicted, last)
    return RunDifference(
        step=chosen + 1,
        predicted=theirs,
        measured=ours,
        ops=compare(theirs, ours),
        predicted_step_s=folder.read_json(folder.path / "prediction.json")["step_time_s"],
        measured_step_s=lengths.get(chosen),
    )


def as_json(found: RunDifference) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    return {
        "step": found.step,
        "predicted_step_s": found.predicted_step_s,
        "measured_step_s": found.measured_step_s,
        "ratio": _ratio(found.predicted_step_s, found.measured_step_s),
        "kinds": [
            {
                "kind": kind.kind,
                "ops": kind.ops,
                "predicted_s": kind.first_s,
                "measured_s": kind.second_s,
                "ratio": _ratio(kind.first_s, kind.second_s),
            }
            for kind in found.ops.kinds
        ],
        "worst": [
            {
                "program_rank": op.rank,
                "lane": op.lane,
                "op": op.word,
                "predicted_s": op.first.length_s,
                "measured_s": op.second.length_s,
                "predicted_start_s": op.first.start_s,
                "measured_start_s": op.second.start_s,
            }
            for op in found.worst()
        ],
        "missing": [span.word for span in found.ops.missing],
        "extra": [span.word for span in found.ops.extra],
    }


def _first_members(seats: Seats) -> dict[int, int]:
    """{world rank: program rank} of the first rank that plays each part."""
    found: dict[int, int] = {}
    for seat in seats.all():
        if seat.program_rank not in found.values():
            found[seat.world_rank] = seat.program_rank
    return found


def _ratio(predicted: float, measured: float | None) -> float | None:
    return measured / predicted if predicted > 0 and measured is not None else None
