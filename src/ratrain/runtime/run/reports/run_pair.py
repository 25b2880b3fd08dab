"""Two runs side by side: losses bit by bit, final weights, step times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ratrain.checkpoint.comparison import Difference, compare
from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.reader import Checkpoint, open_checkpoint
from ratrain.errors import SpecError
from ratrain.runtime.attempts import attempts
from ratrain.runtime.rank.rows import Row
from ratrain.runtime.run.reports.counted import counted_of
from ratrain.runtime.run_folder import RunFolder

LOSS_TOLERANCE = 1e-4
"""Relative. Sums in another order differ in their last bits, 6e-8 in fp32, and steps add to it."""


@dataclass(frozen=True)
class LossDifference:
    """Losses of the steps that both runs have. `first_step` (from 1): the first that differs in
    any bit; None where none does. `largest` is the largest |a - b| / |a|."""

    steps: int
    differing: int
    first_step: int | None
    largest: float

    @property
    def identical(self) -> bool:
        return self.differing == 0


@dataclass(frozen=True)
class RunPair:
    """What two runs have in common. `weights` is None where `problem` says why they cannot be
    compared."""

    losses: LossDifference
    checkpoint_step: int | None
    weights: tuple[Difference, ...] | None
    problem: str
    precision: tuple[str, str]
    sum_orders: tuple[str, str]  # of replicas' gradients, in words; "": that of replicas
    step_time_s: tuple[float, float]  # medians over the steps that count in a report

    @property
    def identical(self) -> bool:
        """Every bit of every common step's loss, and of every buffer of the checkpoint of the
        newest common step, which there must be."""
        same_weights = self.weights is not None and all(
            difference.identical for difference in self.weights
        )
        return self.losses.identical and same_weights

    @property
    def agrees(self) -> bool:
        """What can be asked of the two: every bit, or, where they add replicas' gradients in other
        orders, losses within `LOSS_TOLERANCE`."""
        reordered = len(set(self.sum_orders)) > 1
        return self.identical or (reordered and self.losses.largest <= LOSS_TOLERANCE)

    @property
    def time_ratio(self) -> float:
        """Second / first."""
        return self.step_time_s[1] / self.step_time_s[0]


def compare_runs(
    first: RunFolder,
    second: RunFolder,
    progress: Callable[[int, int], None] | None = None,
) -> RunPair:
    """The `RunPair` of two runs; `progress` takes elements compared and their total."""
    specs = [folder.read_spec() for folder in (first, second)]
    rows = [_rows(folder) for folder in (first, second)]
    opened = _common_checkpoint(first, second)
    problem = _problem(opened)
    return RunPair(
        losses=loss_difference(*rows, place=str(second.metrics)),
        checkpoint_step=opened[0].manifest.meta.step if opened else None,
        weights=compare(*opened, progress) if opened and not problem else None,
        problem=problem,
        precision=(specs[0].precision, specs[1].precision),
        sum_orders=(specs[0].sum_order, specs[1].sum_order),
        step_time_s=(_median_s(first, rows[0]), _median_s(second, rows[1])),
    )


def loss_difference(first: list[Row], second: list[Row], place: str) -> LossDifference:
    """The losses of steps that both have; `place`: where an error says it is wrong."""
    second_by_step = {row["step"]: row for row in second}
    pairs = [(row, second_by_step[row["step"]]) for row in first if row["step"] in second_by_step]
    if not pairs:
        raise SpecError(
            "the two runs have no step in common", place=place, fix="compare runs of one job"
        )
    unlike = [(a, b) for a, b in pairs if a["loss_bits"] != b["loss_bits"]]
    return LossDifference(
        steps=len(pairs),
        differing=len(unlike),
        first_step=unlike[0][0]["step"] + 1 if unlike else None,
        largest=max((abs(a["loss"] - b["loss"]) / abs(a["loss"]) for a, b in unlike), default=0.0),
    )


def as_json(pair: RunPair) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    return {
        "identical": pair.identical,
        "agrees": pair.agrees,
        "losses": {**asdict(pair.losses), "identical": pair.losses.identical},
        "checkpoint_step": pair.checkpoint_step,
        "problem": pair.problem,
        "weights": None
        if pair.weights is None
        else [
            {**asdict(difference), "identical": difference.identical} for difference in pair.weights
        ],
        "precision": list(pair.precision),
        "sum_orders": list(pair.sum_orders),
        "step_time_s": list(pair.step_time_s),
        "time_ratio": pair.time_ratio,
    }


def _rows(folder: RunFolder) -> list[Row]:
    rows = folder.read_metrics()
    if not rows:
        raise SpecError(
            "there are no steps to compare", place=str(folder.metrics), fix="give a run's folder"
        )
    return rows


def _problem(opened: tuple[Checkpoint, Checkpoint] | None) -> str:
    """Why two checkpoints cannot be compared; "" where they can."""
    if opened is None:
        return "no step has a checkpoint in both"
    first, second = (dict(checkpoint.manifest.meta.units) for checkpoint in opened)
    if first != second:
        return "they are divided differently: different models, or different tensor degrees"
    held = [checkpoint.manifest.ranges.keys() for checkpoint in opened]
    return "" if held[0] == held[1] else "they hold different kinds of state"


def _median_s(folder: RunFolder, rows: list[Row]) -> float:
    last = attempts(folder)[-1:]
    period = folder.read_setup().period
    counted = counted_of(rows, last[0] if last else None, period) or counted_of(rows, None, period)
    assert counted is not None, "rows are asked for first"
    return counted.step_s


def _common_checkpoint(first: RunFolder, second: RunFolder) -> tuple[Checkpoint, Checkpoint] | None:
    """The checkpoints of the newest step that both have saved whole."""
    saved = [
        {
            checkpoint.step: checkpoint.path
            for checkpoint in listed(folder.checkpoints)
            if checkpoint.manifest is not None
        }
        for folder in (first, second)
    ]
    common = sorted(set(saved[0]) & set(saved[1]))
    if not common:
        return None
    newest = [open_checkpoint(paths[common[-1]], verify=False) for paths in saved]
    return newest[0], newest[1]
