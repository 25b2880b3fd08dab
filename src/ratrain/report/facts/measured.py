"""A run's steps and memory: predicted beside measured, rank by rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from ratrain.describe.units import format_time
from ratrain.errors import TimelineError
from ratrain.program.program import Program
from ratrain.report.contents import (
    Hop,
    KindTime,
    Memory,
    MemoryCurve,
    MemoryRow,
    RankTime,
    TimelinePanel,
    Times,
)
from ratrain.report.facts.memory import CURVES, curves, peaks
from ratrain.report.facts.ops import Ops, OpTimes
from ratrain.report.facts.steps import panel
from ratrain.runtime.run.reports.difference import RunDifference, difference_of, first_members
from ratrain.runtime.run.reports.itemise import measured_kinds
from ratrain.runtime.run.reports.kind_names import KIND_NAMES, kind_names
from ratrain.runtime.run.reports.merge import merge_records
from ratrain.runtime.run.reports.report import prediction_of, simulated_kinds
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.timeline.compare import one_step
from ratrain.timeline.picture import chosen_ranks
from ratrain.timeline.timeline import Timeline, read_timeline


@dataclass(frozen=True)
class Measured:
    """What a run's folder says about its steps. Any part may be missing: a run that was stopped
    has recorded no ops, and one that was not calibrated has no prediction."""

    folder: RunFolder
    spec: RunSpec
    program: Program

    @cached_property
    def ops(self) -> Ops:
        return Ops(self.program.table)

    @cached_property
    def predicted(self) -> Timeline | None:
        return read_timeline(self.folder.predicted) if self.folder.predicted.exists() else None

    @cached_property
    def recorded(self) -> Timeline | None:
        """All recorded steps, by world rank."""
        return merge_records(self.folder, self.spec)

    @cached_property
    def difference(self) -> RunDifference | None:
        """One step as predicted and as measured, where both are known."""
        try:
            return difference_of(self.folder, recorded=self.recorded)
        except TimelineError:
            return None

    @cached_property
    def predicted_times(self) -> OpTimes | None:
        return None if self.predicted is None else self.ops.times(self.predicted)

    @cached_property
    def measured_times(self) -> OpTimes | None:
        """Of ranks that do the same work, the times of the first."""
        if self.recorded is None:
            return None
        return self.ops.times(self.recorded, first_members(self.spec.seats))

    @cached_property
    def measured_place(self) -> int | None:
        """The index, among the recorded steps, of the step that is shown."""
        if self.recorded is None or self.difference is None:
            return None
        steps = sorted({span.step for span in self.recorded.spans})
        return steps.index(self.difference.step - 1)

    @cached_property
    def predicted_place(self) -> int | None:
        """The index, among the predicted steps, of the step that is shown."""
        if self.predicted is None or self.predicted_times is None:
            return None
        if self.difference is None:
            return self.predicted_times.last
        steps = sorted({span.step for span in self.predicted.spans})
        return steps.index(self.difference.predicted_step)

    @cached_property
    def predicted_path(self) -> tuple[Hop, ...]:
        times, place = self.predicted_times, self.predicted_place
        return () if times is None or place is None else self.ops.critical_path(times, place)

    @cached_property
    def measured_path(self) -> tuple[Hop, ...]:
        times, place = self.measured_times, self.measured_place
        return () if times is None or place is None else self.ops.critical_path(times, place)

    @cached_property
    def prediction(self) -> dict[str, Any] | None:
        return prediction_of(self.folder, self.spec)


def panels_of(measured: Measured) -> list[TimelinePanel]:
    """The predicted step over the measured one, as far as they are known."""
    difference = measured.difference
    if difference is not None:
        step_s = difference.measured_step_s
        took = "" if step_s is None else f", {format_time(step_s)} long"
        return [
            panel(
                "predicted",
                _prediction_note(difference.predicted_step_s),
                difference.predicted,
                measured.predicted_path,
                difference.predicted_step_s,
            ),
            panel(
                "measured",
                f"step {difference.step}{took}",
                difference.measured,
                measured.measured_path,
                step_s,
            ),
        ]
    if measured.predicted is None or measured.prediction is None:
        return []
    last = max(span.step for span in measured.predicted.spans)
    step_s = measured.prediction["step_time_s"]
    step = one_step(measured.predicted, last)
    note = _prediction_note(step_s)
    return [panel("predicted", note, step, measured.predicted_path, step_s)]


def _prediction_note(step_s: float) -> str:
    return f"a step takes {format_time(step_s)} as simulated"


def times_of(measured: Measured, report: dict[str, Any]) -> Times | None:
    """Where the step's time went: the report's means, and each program rank's share."""
    step = report["step_time_s"]
    if step["measured"] is None:
        return None
    typical = report["kinds_step"]
    predicted, ran = _predicted_ranks(measured), _measured_ranks(measured, typical)
    ranks = sorted({*predicted, *ran})
    notes = [_means_words(typical)] if typical and ran else [_unrecorded(report["period"]["steps"])]
    names = kind_names(report["facts"])
    return Times(
        step["predicted"],
        step["measured"],
        tuple(
            KindTime(k["kind"], names[k["kind"]], k["predicted_s"], k["measured_s"])
            for k in report["kinds"]
        ),
        tuple(RankTime(rank, predicted.get(rank, {}), ran.get(rank, {})) for rank in ranks),
        tuple(notes),
    )


def _means_words(typical: dict[str, Any]) -> str:
    last, steps = typical["step"], typical["steps"]
    time = format_time(typical["step_time_s"])
    if steps == 1:
        return (
            f"Means over ranks. Measured in step {last}, {time}: for each rank from its last "
            "compute op of the step before to its last compute op of this one."
        )
    return (
        f"Means over ranks and over the steps of a period. Measured in steps {last - steps + 1} to "
        f"{last}, {time} each: for each rank from its last compute op before them to its last one."
    )


def _unrecorded(period: int) -> str:
    what = "two successive steps were" if period == 1 else f"whole period of {period} steps was"
    return (
        f"Means over ranks. No {what} recorded, so the measured waits come from the run's metrics."
    )


def _predicted_ranks(measured: Measured) -> dict[int, dict[str, float]]:
    body = measured.prediction
    if body is None:
        return {}
    return {
        rank: simulated_kinds(times, body["step_time_s"])
        for rank, times in enumerate(body["ranks"])
    }


def _measured_ranks(
    measured: Measured, typical: dict[str, Any] | None
) -> dict[int, dict[str, float]]:
    """Seconds of each kind by program rank; the mean over the ranks that do the same work."""
    recorded = measured.recorded
    if recorded is None or typical is None:
        return {}
    seats, last = measured.spec.seats, typical["step"] - 1
    rows = measured_kinds(measured.program, seats, recorded, last, typical["steps"])
    of_rank: dict[int, list[dict[str, float]]] = {}
    for seat, row in zip(seats.all(), rows, strict=True):
        of_rank.setdefault(seat.program_rank, []).append(row)
    return {
        rank: {kind: fmean(row[kind] for row in rank_rows) for kind in KIND_NAMES}
        for rank, rank_rows in of_rank.items()
    }


def memory_of(measured: Measured, report: dict[str, Any], tier: str) -> Memory:
    """Every rank's bound beside its ledger and its allocator, and memory over one step."""
    memory_curves = _curves(measured)
    predicted = peaks(curve for curve in memory_curves if curve.source == "predicted")
    several = any(row["rank"] != row["program_rank"] for row in report["memory"])
    rows = tuple(
        MemoryRow(
            rank=row["rank"],
            label=_label(row, several),
            budget_bytes=row["budget_bytes"],
            bound_bytes=row["bound_bytes"],
            families=row["bound_items"],
            peak_predicted_bytes=predicted.get(row["program_rank"]),
            ledger_bytes=row["ledger_peak_bytes"],
            allocated_bytes=row["allocated_peak_bytes"],
            resident_bytes=row["resident_bytes"],
        )
        for row in report["memory"]
    )
    return Memory(tier, rows, tuple(memory_curves))


def _label(row: dict[str, Any], several: bool) -> str:
    """A process of the run. Its number is that of its rank in the plan unless `several` processes
    are the same rank, one in each of the identical replicas."""
    if not several:
        return f"rank {row['rank']}"
    return f"process {row['rank']} (rank {row['program_rank']})"


def _curves(measured: Measured) -> list[MemoryCurve]:
    """Program ranks over the predicted and over the measured step. The ledger holds what the
    program's ops write and free, so that the times of the ops say what it held when."""
    program = measured.program
    ranks = chosen_ranks(range(program.setup.ranks), CURVES)
    memory_curves: list[MemoryCurve] = []
    predicted, ran, place = (
        measured.predicted_times,
        measured.measured_times,
        measured.measured_place,
    )
    predicted_place = measured.predicted_place
    if predicted is not None and predicted_place is not None:
        memory_curves += curves(program, predicted, predicted_place, ranks, "predicted")
    if ran is not None and place is not None:
        memory_curves += curves(program, ran, place, ranks, "measured")
    return memory_curves
