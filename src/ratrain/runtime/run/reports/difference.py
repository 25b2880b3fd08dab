"""Where a run and its prediction part: one step of both, op by op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ratrain.errors import TimelineError
from ratrain.runtime.run.reports.merge import merge_records
from ratrain.runtime.run.reports.report import predicted_steps_s, typical_of
from ratrain.runtime.run_files import read_prediction
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.seats import Seats
from ratrain.timeline.compare import (
    Comparison,
    OpDifference,
    compare,
    one_step,
    step_times,
)
from ratrain.timeline.timeline import Timeline, read_timeline

WORST = 10

_PREDICT_AGAIN = (
    "train a few more steps, which predicts again: `ratrain train JOB --resume --steps N`"
)


@dataclass(frozen=True)
class RunDifference:
    """One step as predicted and as measured, both by program rank and from zero. Of ranks that
    play the same part the first one is shown."""

    step: int  # counted from 1, as metrics are shown
    predicted_step: int  # of the predicted timeline: the same step of a period
    predicted: Timeline
    measured: Timeline
    ops: Comparison
    predicted_step_s: float
    measured_step_s: float | None  # None where the step before was not recorded

    def worst(self, count: int = WORST) -> list[OpDifference]:
        """The ops whose length is furthest from the predicted one. Saves are given no time, so
        they are not predicted at all; a send ends when the network has taken its bytes, so that
        its receive shows the transfer."""
        timed = [
            op for op in self.ops.ops if op.first.length_s > 0 and not op.lane.startswith("send")
        ]
        by_size = sorted(timed, key=lambda op: -abs(op.length_difference_s))
        return by_size[:count]


def difference_of(
    folder: RunFolder, step: int | None = None, recorded: Timeline | None = None
) -> RunDifference:
    """The `RunDifference` of a run; `step` (from 1) is one of the recorded ones, by default that
    whose length is nearest to the reported median. `recorded` is what `merge_records` gives, where
    it is at hand."""
    spec = folder.read_spec()
    measured = recorded or merge_records(folder, spec)
    if measured is None:
        raise TimelineError(
            "no op of this run was recorded: a run records its last steps when it finishes",
            place=str(folder.path),
            fix="let the run finish: `ratrain train JOB --resume`",
        )
    if not folder.predicted.exists():
        raise TimelineError(
            "there is no prediction: the run was not calibrated",
            place=str(folder.path),
            fix="train a few more steps without --no-calibrate: `ratrain train JOB --resume "
            "--steps N`",
        )
    predicted = read_timeline(folder.predicted)
    if not predicted.spans:
        raise TimelineError(
            "contains no ops",
            place=str(folder.predicted),
            fix=_PREDICT_AGAIN,
        )
    lengths = step_times(measured)
    chosen = typical_of(folder, measured) if step is None else step - 1
    ours = one_step(measured, chosen, ranks=first_members(spec.seats))
    like = _like(predicted, ours)
    theirs = one_step(predicted, like)
    try:
        ops = compare(theirs, ours)
    except TimelineError as error:
        raise TimelineError(
            f"{error.what}: the predicted one, and step {chosen + 1} as measured",
            place=str(folder.predicted),
            fix=_PREDICT_AGAIN,
        ) from None
    steps_s = predicted_steps_s(read_prediction(folder.path / "prediction.json", 0))
    return RunDifference(
        step=chosen + 1,
        predicted_step=like,
        predicted=theirs,
        measured=ours,
        ops=ops,
        predicted_step_s=steps_s[like % len(steps_s)],
        measured_step_s=lengths.get(chosen),
    )


def _like(predicted: Timeline, ours: Timeline) -> int:
    """The last predicted step with ops of ours: of a period's steps each has words of its own."""
    words = {span.word for span in ours.spans}
    steps = [span.step for span in predicted.spans]
    return max((span.step for span in predicted.spans if span.word in words), default=max(steps))


def as_json(difference: RunDifference) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    return {
        "step": difference.step,
        "predicted_step_s": difference.predicted_step_s,
        "measured_step_s": difference.measured_step_s,
        "ratio": _ratio(difference.predicted_step_s, difference.measured_step_s),
        "kinds": [
            {
                "kind": kind.kind,
                "ops": kind.ops,
                "predicted_s": kind.first_s,
                "measured_s": kind.second_s,
                "ratio": _ratio(kind.first_s, kind.second_s),
            }
            for kind in difference.ops.kinds
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
            for op in difference.worst()
        ],
        "missing": [span.word for span in difference.ops.missing],
        "extra": [span.word for span in difference.ops.extra],
    }


def first_members(seats: Seats) -> dict[int, int]:
    """{world rank: program rank} of the first rank that plays each part."""
    first: dict[int, int] = {}
    for seat in seats.all():
        first.setdefault(seat.program_rank, seat.world_rank)
    return {world_rank: program_rank for program_rank, world_rank in first.items()}


def _ratio(predicted: float, measured: float | None) -> float | None:
    return measured / predicted if predicted > 0 and measured is not None else None
