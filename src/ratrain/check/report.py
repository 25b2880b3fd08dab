"""What all ranks of a comparison found, as figures and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratrain.check.rows import MOST, Row, Where, Wrong

LOSS_ALLOWED = 4.0
"""How many times the largest scatter of losses a device's may be off."""
_WIDE = 34
_SHOWN_RIGHT = 12


@dataclass(frozen=True)
class LossRow:
    """One step's loss: on the device, in exact arithmetic, and how far off it may be."""

    step: int
    loss: float
    exact: float
    allowed: float

    @property
    def times(self) -> float:
        off = abs(self.loss - self.exact)
        if not off <= MOST:
            return MOST
        return min(off / self.allowed, MOST) if self.allowed else (MOST if off else 0.0)


@dataclass(frozen=True)
class Report:
    """All of it. `losses`: none where they were not compared. `folder`: where kept calls are."""

    device: str
    rows: tuple[Row, ...]
    losses: tuple[LossRow, ...]
    uncompared: dict[str, int]
    folder: Path

    @property
    def operators(self) -> list[Row]:
        """The wrong ones first, by when they were; then by how near they came."""
        return _ordered(row for row in self.rows if row.rule != "scatter")

    @property
    def units(self) -> list[Row]:
        """The same of units."""
        return _ordered(row for row in self.rows if row.rule == "scatter")

    @property
    def wrong(self) -> bool:
        """Whether anything is."""
        return any(row.wrong or row.wrote for row in self.rows) or any(
            row.times > 1 for row in self.losses
        )

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "device": self.device,
            "against": "cpu",
            "right": not self.wrong,
            "folder": str(self.folder),
            "operators": [_operator(row) for row in self.operators],
            "units": [_unit(row) for row in self.units],
            "losses": [{**asdict(row), "times": row.times} for row in self.losses],
            "uncompared": list(self.uncompared),
        }

    def lines(self) -> list[str]:
        """For people, at most 80 columns wide."""
        return [*self._operators(), "", *self._units(), *self._losses(), *self._end()]

    def _operators(self) -> list[str]:
        rows = self.operators
        lines = [
            f"operators on {self.device} against the CPU in fp64",
            f"{'':6}{'operator':{_WIDE}}{'in':3} {'dtype':9}{'calls':>7}{'wrong':>6}{'times':>9}",
        ]
        bad = [row for row in rows if row.wrong or row.wrote]
        right = [row for row in rows if not row.wrong and not row.wrote]
        for row in bad:
            lines += [_line(row, "WRONG"), *_details(row, self.folder)]
        lines += [_line(row, "ok") for row in right[:_SHOWN_RIGHT]]
        if len(right) > _SHOWN_RIGHT:
            lines.append(f"      and {len(right) - _SHOWN_RIGHT} more that are right (--json)")
        return lines

    def _units(self) -> list[str]:
        if not self.units:
            return ["units were not compared"]
        lines = [f"units, from the same inputs{'':21}in          calls wrong    times"]
        bad = [row for row in self.units if row.wrong]
        for row in bad:
            lines += [_line(row, "WRONG"), *_details(row, self.folder)]
        right = [row for row in self.units if not row.wrong]
        if right:
            worst = max(right, key=lambda row: row.times)
            lines.append(
                f"ok    {len(right)} results of units; nearest to wrong: {worst.name} {worst.op}, "
                f"{worst.times:.2f}"
            )
        return lines

    def _losses(self) -> list[str]:
        if not self.losses:
            return ["", "losses were not compared"]
        head = f"{'':6}{'step':>6}{'loss':>14}{'exact':>14}{'off':>12}{'may be off':>12}"
        lines = ["", "losses", head]
        for row in self.losses:
            verdict = "WRONG" if row.times > 1 else "ok"
            off = abs(row.loss - row.exact)
            lines.append(
                f"{verdict:6}{row.step:>6}{row.loss:>14.6f}{row.exact:>14.6f}"
                f"{off:>12.2e}{row.allowed:>12.2e}"
            )
        return lines

    def _end(self) -> list[str]:
        lines = [""]
        if self.uncompared:
            calls = ", ".join(f"{name} ({n:,})" for name, n in self.uncompared.items())
            lines += _folded(f"not compared: {calls}")
        first = self.first_wrong
        if first is not None:
            row, wrong = first
            what = f"{row.op} of {row.name}" if row.rule == "scatter" else row.name
            lines += _folded(f"first wrong: {what}, in {wrong.where.words}")
        lines.append(
            "wrong"
            if self.wrong
            else "right: nothing that was compared is farther off than rounding allows"
        )
        return lines

    @property
    def first_wrong(self) -> tuple[Row, Wrong] | None:
        """What was wrong first on any rank, and where."""
        found = [(row, wrong) for row in self.rows for wrong in row.first[:1]]
        return min(found, key=lambda each: (each[1].where.step, each[1].order), default=None)


def _ordered(rows: Iterable[Row]) -> list[Row]:
    def key(row: Row) -> tuple[bool, float, float]:
        bad = bool(row.wrong or row.wrote)
        return not bad, row.first[0].order if row.first else 0, -row.times

    return sorted(rows, key=key)


def _line(row: Row, verdict: str) -> str:
    name = row.name if row.rule != "scatter" else f"{row.name} {row.op}"
    op = row.op if row.rule != "scatter" else ""
    wide = _WIDE if row.rule != "scatter" else _WIDE + 8
    dtype = row.dtype + ("*" if row.rule == "measured" else "")
    return (
        f"{verdict:6}{_cut(name.removesuffix('.default'), wide - 1):{wide}}{op[:3]:3} "
        f"{dtype:9}{row.calls:>7,}{row.wrong:>6,}{_times(row.times):>9}"
    )


def _details(row: Row, folder: Path) -> list[str]:
    lines = _folded(f"      worst in {row.at.words}; off by {row.largest:.3g}")
    places = {(w.where.unit, w.where.micro_batch, w.where.step) for w in row.first}
    if row.first:
        lines += _folded(f"      first in {row.first[0].where.words}")
    units = sorted({unit for unit, _, _ in places if unit})
    if units and row.rule != "scatter":
        lines += _folded(f"      in units {', '.join(units)}")
    if row.wrote:
        lines.append(f"      {row.wrote} calls changed an argument that they must not write")
    if row.kept:
        lines += [f"      again: ratrain check --replay {folder / row.kept}"]
    return lines


def _operator(row: Row) -> dict[str, Any]:
    return {
        "operator": row.name,
        "op": row.op,
        "dtype": row.dtype,
        "rule": row.rule,
        **_figures(row),
        "wrote": row.wrote,
        "kept": row.kept or None,
    }


def _unit(row: Row) -> dict[str, Any]:
    return {"unit": row.name.removeprefix("unit "), "what": row.op, **_figures(row)}


def _figures(row: Row) -> dict[str, Any]:
    return {
        "calls": row.calls,
        "wrong": row.wrong,
        "times": row.times,
        "largest": row.largest,
        "cosine": row.cosine,
        "worst": asdict(row.at),
        "first": [{**asdict(w.where), "times": w.times} for w in row.first],
    }


def _times(value: float) -> str:
    if value >= MOST:
        return "far"
    return f"{value:.2f}" if value < 1000 else f"{value:.1e}"


def _cut(text: str, wide: int) -> str:
    if len(text) <= wide:
        return text
    return f"{text[: wide // 3]}..{text[-(wide - wide // 3 - 2) :]}"


def _folded(text: str, wide: int = 80) -> list[str]:
    import textwrap

    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text, wide, initial_indent="", subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def merged(bodies: Sequence[dict[str, Any]]) -> tuple[tuple[Row, ...], dict[str, int]]:
    """The rows of all ranks together, and what was not compared. Folders of kept calls are below
    those of their ranks."""
    rows: dict[tuple[str, ...], Row] = {}
    uncompared: dict[str, int] = {}
    for rank, body in enumerate(bodies):
        for name, calls in body["uncompared"].items():
            uncompared[name] = uncompared.get(name, 0) + calls
        for each in body["rows"]:
            row = _row_of(each, rank)
            key = row.name, row.op, row.dtype, row.rule
            rows[key] = _together(rows[key], row) if key in rows else row
    return tuple(rows.values()), uncompared


def _row_of(body: dict[str, Any], rank: int) -> Row:
    first = [Wrong(Where(**w["where"]), w["times"], w["order"]) for w in body["first"]]
    kept = f"rank-{rank}/{body['kept']}" if body["kept"] else ""
    return Row(**{**body, "at": Where(**body["at"]), "first": first, "kept": kept})


def _together(a: Row, b: Row) -> Row:
    worse = a if a.times >= b.times else b
    return Row(
        a.name,
        a.op,
        a.dtype,
        a.rule,
        a.calls + b.calls,
        a.wrong + b.wrong,
        worse.times,
        max(a.largest, b.largest),
        min(a.cosine, b.cosine),
        worse.at,
        a.wrote + b.wrote,
        sorted((*a.first, *b.first), key=lambda w: (w.where.step, w.order)),
        worse.kept,
    )
