"""What `ratrain validate` shows: every table scored, calibrated and held-out rows apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from ratrain.describe.strict import FrozenMap, nearest
from ratrain.describe.tables import as_json as plain
from ratrain.errors import SpecError
from ratrain.validate.frameworks import Framework
from ratrain.validate.memory import MeasuredPeak, predicted_peak
from ratrain.validate.peaks import PEAK_TABLES
from ratrain.validate.predict import predicted_s
from ratrain.validate.rows import MeasuredRun
from ratrain.validate.score import Pair, Score, score
from ratrain.validate.tables import TIME_TABLES, runs_of

Progress = Callable[[int, int], None]
TABLES = (*TIME_TABLES, *PEAK_TABLES)
UNITS = {"s": 1.0, "GB": 1e9, "GiB": 2**30}


@dataclass(frozen=True)
class TableReport:
    """A table's rows and their score, and the score of each half where it was split."""

    name: str
    unit: str
    pairs: tuple[Pair, ...]
    framework: Framework | None = None  # that a table of memory is of

    @property
    def all(self) -> Score:
        return score(self.pairs)

    @property
    def parts(self) -> dict[str, Score]:
        """The scores of rows used to calibrate and of rows held out."""
        labels = {True: "held out", False: "calibrated"}
        split = {
            word: [p for p in self.pairs if p.held_out is is_held]
            for is_held, word in labels.items()
        }
        return {word: score(pairs) for word, pairs in split.items() if pairs}

    @property
    def beside(self) -> dict[str, Score]:
        """The scores of what was predicted besides, by its name."""
        return {
            name: score([replace(pair, predicted=pair.beside[name]) for pair in self.pairs])
            for name in self.pairs[0].beside
        }


def reports(names: tuple[str, ...], progress: Progress | None = None) -> Iterator[TableReport]:
    """Each table's report: the named ones (a path ends in .csv), or all of the project's own."""
    chosen = names or TABLES
    for name in chosen:
        if not name.endswith(".csv") and name not in TABLES:
            raise SpecError(
                f"unknown table {name!r}", place="TABLE", fix=nearest(name, list(TABLES))
            )
    rows = {name: _rows_of(name) for name in chosen}
    total, done = sum(len(table_rows) for table_rows in rows.values()), 0
    for name in chosen:
        unit = PEAK_TABLES[name][0] if name in PEAK_TABLES else "s"
        pairs: list[Pair] = []
        for row in rows[name]:
            pairs.append(_peak(row, unit) if isinstance(row, MeasuredPeak) else _step(row))
            done += 1
            if progress:
                progress(done, total)
        first = rows[name][0]
        framework = first.framework if isinstance(first, MeasuredPeak) else None
        yield TableReport(name, unit, tuple(pairs), framework)


def _rows_of(name: str) -> tuple[MeasuredRun, ...] | tuple[MeasuredPeak, ...]:
    return tuple(PEAK_TABLES[name][1]()) if name in PEAK_TABLES else runs_of(name)


def _step(row: MeasuredRun) -> Pair:
    predicted = predicted_s(row.run)
    return Pair(row.run.label, row.measured_s, predicted, row.held_out, row.run.choice)


def _peak(row: MeasuredPeak, unit: str) -> Pair:
    """A peak's pair. Where its source leaves something open, the prediction that is farthest off
    is scored."""
    scale = UNITS[unit]
    predictions = [predicted_peak(row, run) for run in row.runs]
    worst = max(
        predictions, key=lambda prediction: abs(prediction.proof_bytes - row.measured_bytes)
    )
    proofs = [prediction.proof_bytes / scale for prediction in predictions]
    return Pair(
        row.label,
        row.measured_bytes / scale,
        worst.proof_bytes / scale,
        row.held_out,
        between=(min(proofs), max(proofs)) if len(proofs) > 1 else None,
        beside=FrozenMap(
            {"bill": worst.bill_bytes / scale, "own program": worst.own_bytes / scale}
        ),
    )


def as_json(report: TableReport) -> dict[str, Any]:
    """The report with every row. Errors and regrets are fractions."""
    return {
        "table": report.name,
        "unit": report.unit,
        "framework": plain(report.framework),
        "score": _score_json(report.all),
        "parts": {word: _score_json(part) for word, part in report.parts.items()},
        "beside": {name: _score_json(part) for name, part in report.beside.items()},
        "rows": [
            {
                "row": pair.label,
                "measured": pair.measured,
                "predicted": pair.predicted,
                "error": pair.error,
                "between": pair.between,
                "beside": dict(pair.beside),
                "held_out": pair.held_out,
            }
            for pair in report.pairs
        ],
    }


def _score_json(score: Score) -> dict[str, Any]:
    return {
        "rows": score.rows,
        "mean_error": score.mean_error,
        "bias": score.bias,
        "worst_row": score.worst.label,
        "worst_error": score.worst.error,
        "rank_correlation": score.rank_correlation,
        "mean_regret": score.mean_regret,
        "worst_regret": score.worst_regret,
    }


HEADER = f"{'':32}{'rows':>5}{'error':>9}{'bias':>9}{'rank':>7}{'regret':>9}{'most':>7}"
LEGEND = (
    "error: mean absolute error; bias: mean signed error; rank: rank correlation of predicted and "
    "measured; regret: how much slower than the best measured layout the one that the model picks "
    "is, a mean over groups of layouts; most: the regret of the worst group."
)
"""`error` is the mean absolute percentage error, `regret` the mean over groups, `most` the regret
of the worst group."""


def lines(report: TableReport, *, rows: bool = False) -> Iterator[str]:
    """The report in lines of at most 80 columns; with `rows`, every row too."""
    yield _line(report, report.name, report.all)
    if len(report.parts) > 1:
        for word, part in report.parts.items():
            yield _line(report, f"  {word}", part)
    else:
        yield f"  every row {'held out' if 'held out' in report.parts else 'used to calibrate'}"
    for name, part in report.beside.items():
        yield _line(report, f"  {BESIDE[name]}", part)
    if report.framework is not None:
        yield from wrap(f"  {report.framework}", 80, subsequent_indent="    ")
    worst = report.all.worst
    yield f"  worst {worst.error:+.1%}: {worst.label}"
    for pair in report.pairs:
        if pair.between is not None:
            low, high = pair.between
            range_text = f"{pair.label}: {low:.2f} to {high:.2f} {report.unit}"
            yield f"  {range_text} (devices not stated; the farther end is scored)"
    if rows:
        yield from _rows(report)


BESIDE = {"bill": "by the planner's formula", "own program": "our program, no framework"}
"""What is shown beside a memory prediction: the planner's closed formulas with the same framework,
and what is proved of the program as we would run it."""
HEADS = {"bill": "bill", "own program": "ours"}


def _rows(report: TableReport) -> Iterator[str]:
    columns = list(report.beside)
    wide = 76 - 28 - 7 * len(columns)
    heads = "".join(f"{HEADS[name]:>7}" for name in columns)
    yield f"    {report.unit:<{wide}}{'measured':>9}{'predicted':>10}{'error':>9}{heads}"
    digits = 3 if report.unit == "s" else 2
    for pair in report.pairs:
        mark = " " if pair.held_out else "*"
        label = pair.label if len(pair.label) < wide else f"{pair.label[: wide - 2]}~"
        numbers = f"{pair.measured:>9.{digits}f}{pair.predicted:>10.{digits}f}{pair.error:>+9.1%}"
        numbers += "".join(f"{pair.beside[name]:>7.2f}" for name in columns)
        yield f"  {mark} {label:<{wide}}{numbers}"


def _line(report: TableReport, name: str, part: Score) -> str:
    """Of memory no rank is shown: these tables hold few rows, most of one size."""
    correlation = part.rank_correlation if report.unit == "s" else None
    rank = "-" if correlation is None else f"{correlation:.3f}"
    regret = "-" if part.mean_regret is None else f"{part.mean_regret:.1%}"
    worst = "-" if part.worst_regret is None else f"{part.worst_regret:.1%}"
    numbers = f"{part.rows:>5}{part.mean_error:>9.2%}{part.bias:>+9.2%}{rank:>7}"
    return f"{name:<32}{numbers}{regret:>9}{worst:>7}"
