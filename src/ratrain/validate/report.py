"""What `ratrain validate` shows: every table scored, calibrated and held-out rows apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.validate.memory import MEMORY_TABLES
from ratrain.validate.predict import predicted_s
from ratrain.validate.score import Pair, Score, score
from ratrain.validate.tables import TIME_TABLES, runs_of

Progress = Callable[[int, int], None]
TABLES = (*TIME_TABLES, *MEMORY_TABLES)


@dataclass(frozen=True)
class TableReport:
    """A table's rows and their score, and the score of each half where it was split."""

    name: str
    unit: str
    pairs: tuple[Pair, ...]

    @property
    def all(self) -> Score:
        return score(self.pairs)

    @property
    def parts(self) -> dict[str, Score]:
        """The scores of rows used to calibrate and of rows held out; empty for memory tables."""
        if self.unit != "s":
            return {}
        held = {True: "held out", False: "calibrated"}
        split = {
            word: [p for p in self.pairs if p.held_out is is_held] for is_held, word in held.items()
        }
        return {word: score(pairs) for word, pairs in split.items() if pairs}


def reports(names: tuple[str, ...], progress: Progress | None = None) -> Iterator[TableReport]:
    """Each table's report: the named ones (a path ends in .csv), or all of the project's own."""
    wanted = names or TABLES
    for name in wanted:
        if not name.endswith(".csv") and name not in TABLES:
            raise SpecError(f"no table {name!r}", place="TABLE", fix=nearest(name, list(TABLES)))
    times = {name: runs_of(name) for name in wanted if name not in MEMORY_TABLES}
    total, done = sum(len(runs) for runs in times.values()), 0
    for name in wanted:
        if name in MEMORY_TABLES:
            unit = "GiB" if name.endswith("gib") else "GB"
            yield TableReport(name, unit, tuple(MEMORY_TABLES[name]()))
            continue
        pairs: list[Pair] = []
        for run in times[name]:
            pairs.append(
                Pair(run.label, run.measured_s, predicted_s(run), run.held_out, run.choice)
            )
            done += 1
            if progress:
                progress(done, total)
        yield TableReport(name, "s", tuple(pairs))


def as_json(report: TableReport) -> dict[str, Any]:
    """The report with every row. Errors and regrets are fractions."""
    return {
        "table": report.name,
        "unit": report.unit,
        "score": _score_json(report.all),
        "parts": {word: _score_json(part) for word, part in report.parts.items()},
        "rows": [
            {
                "row": pair.label,
                "measured": pair.measured,
                "predicted": pair.predicted,
                "error": pair.error,
                "held_out": pair.held_out,
            }
            for pair in report.pairs
        ],
    }


def _score_json(found: Score) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "mean_error": found.mean_error,
        "bias": found.bias,
        "worst_row": found.worst.label,
        "worst_error": found.worst.error,
        "rank_correlation": found.rank_correlation,
        "mean_regret": found.mean_regret,
        "worst_regret": found.worst_regret,
    }


HEADER = f"{'':32}{'rows':>5}{'error':>9}{'bias':>9}{'rank':>7}{'regret':>9}{'most':>7}"
"""`error` is the mean absolute percentage error, `regret` the mean over groups, `most` the regret
of the worst group."""


def lines(report: TableReport, *, rows: bool = False) -> Iterator[str]:
    """The report in lines of at most 80 columns; with `rows`, every row too."""
    yield _line(report.name, report.all)
    if len(report.parts) > 1:
        for word, part in report.parts.items():
            yield _line(f"  {word}", part)
    elif report.parts:
        yield f"  every row {'held out' if 'held out' in report.parts else 'used to calibrate'}"
    worst = report.all.worst
    yield f"  worst {worst.error:+.1%}: {worst.label}"
    if not rows:
        return
    for pair in report.pairs:
        mark = " " if pair.held_out else "*"
        label = pair.label if len(pair.label) <= 44 else f"{pair.label[:43]}~"
        yield f"  {mark} {label:<45}{pair.measured:>9.3f}{pair.predicted:>9.3f}{pair.error:>+9.1%}"


def _line(name: str, found: Score) -> str:
    rank = "-" if found.rank_correlation is None else f"{found.rank_correlation:.3f}"
    regret = "-" if found.mean_regret is None else f"{found.mean_regret:.1%}"
    most = "-" if found.worst_regret is None else f"{found.worst_regret:.1%}"
    numbers = f"{found.rows:>5}{found.mean_error:>9.2%}{found.bias:>+9.2%}{rank:>7}"
    return f"{name:<32}{numbers}{regret:>9}{most:>7}"
