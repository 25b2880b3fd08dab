"""What the page's script draws, as compact JSON.

A lane's boxes are a flat list of five integers each: ticks since the box before ended, ticks of
length, number of the colour, number of the word without its micro-batch, micro-batch (-1: none). A
tick is the panel's length divided by `TICKS`. Colours from `mixes` on are columns of several ops:
shares of each class in hundredths; the word's number is then how many ops there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ratrain.report.contents import (
    Candidates,
    Contents,
    Hop,
    Memory,
    MemoryCurve,
    Progress,
    TimelinePanel,
)
from ratrain.report.groups import shown_groups
from ratrain.timeline.boxes import Box, micro_batch_of
from ratrain.timeline.palette import OP_CLASSES

TICKS = 1 << 22
_CLASS = {kind.key: number for number, kind in enumerate(OP_CLASSES)}
_MEMORY_PARTS = 1 << 16
"""The resolution of memory curves: parts of the largest value."""


def data_of(contents: Contents) -> dict[str, Any]:
    """All that the script needs."""
    return {
        "timeline": [_panel(panel) for panel in contents.panels],
        "classes": [{"key": kind.key, "name": kind.name} for kind in OP_CLASSES],
        "memory": [_memory(memory) for memory in contents.memory],
        "progress": None if contents.progress is None else _progress(contents.progress),
        "candidates": None if contents.candidates is None else _candidates(contents.candidates),
        "title": contents.title,
    }


@dataclass
class _Numbers:
    """Values numbered in the order in which they are met."""

    values: dict[Any, int] = field(default_factory=dict[Any, int])

    def of(self, value: Any) -> int:
        return self.values.setdefault(value, len(self.values))


def _panel(panel: TimelinePanel) -> dict[str, Any]:
    names, mixes = _Numbers(), _Numbers()
    tick_s = (panel.length_s or 1.0) / TICKS
    place = {row.rank: number for number, row in enumerate(panel.rows)}
    rows = [
        {
            "rank": row.rank,
            "lanes": [
                _lane(lane, tick_s, names, mixes) for lane in (row.compute, row.messages, row.state)
            ],
        }
        for row in panel.rows
    ]
    return {
        "title": panel.title,
        "length_s": panel.length_s,
        "tick_s": tick_s,
        "rows": rows,
        "words": list(names.values),
        "mixes": [list(mix) for mix in mixes.values],
        "critical": _critical(panel.critical, place, tick_s),
    }


def _lane(boxes: Iterable[Box], tick_s: float, names: _Numbers, mixes: _Numbers) -> list[int]:
    flat: list[int] = []
    before = 0
    for box in boxes:
        start, end = round(box.start_s / tick_s), round(box.end_s / tick_s)
        end = max(end, start + 1)
        if box.word:
            micro_batch = micro_batch_of(box.word)
            name = names.of(box.word.removesuffix(micro_batch))
            colour = _CLASS[box.shares[0][0].key]
            number = int(micro_batch) if micro_batch else -1
        else:
            mix = tuple(
                part
                for kind, share in box.shares
                for part in (_CLASS[kind.key], round(100 * share))
            )
            name, colour, number = box.ops, len(OP_CLASSES) + mixes.of(mix), -1
        flat += (start - before, end - start, colour, name, number)
        before = end
    return flat


def _critical(hops: Sequence[Hop], place: dict[int, int], tick_s: float) -> list[int]:
    """Row, lane (0 compute, 1 messages, 2 state), begin and end of each stretch, flat. Hops that
    follow each other on one lane are one stretch: a line goes through them."""
    flat: list[int] = []
    for hop in hops:
        if hop.rank not in place:
            continue
        lane = 0 if hop.lane == "compute" else 1 if hop.lane.startswith(("recv", "send")) else 2
        if flat and flat[-4:-2] == [place[hop.rank], lane]:
            flat[-1] = round(hop.end_s / tick_s)
        else:
            flat += (place[hop.rank], lane, round(hop.start_s / tick_s), round(hop.end_s / tick_s))
    return flat


def _memory(memory: Memory) -> dict[str, Any]:
    highest_bytes = max((row.bound_bytes for row in memory.rows), default=1)
    unit = max(1, -(-highest_bytes // _MEMORY_PARTS))
    keys = {key for curve in memory.curves for key in curve.groups}
    groups = shown_groups(keys)
    bounds = {row.rank: row for row in memory.rows}
    return {
        "unit_bytes": unit,
        "groups": [{"key": group.key, "name": group.name} for group in groups],
        "curves": [_curve(curve, [group.key for group in groups], unit) for curve in memory.curves],
        "bounds": {
            f"{rank}": [row.bound_bytes, row.budget_bytes]
            for rank, row in bounds.items()
            if any(curve.rank == rank for curve in memory.curves)
        },
    }


def _curve(curve: MemoryCurve, keys: Sequence[str], unit: int) -> dict[str, Any]:
    zeros = (0,) * len(curve.time_s)
    return {
        "rank": curve.rank,
        "source": curve.source,
        "time_s": [float(f"{time_s:.6g}") for time_s in curve.time_s],
        "groups": [[round(size / unit) for size in curve.groups.get(key, zeros)] for key in keys],
    }


def _progress(progress: Progress) -> dict[str, Any]:
    def short(values: Iterable[float | None]) -> list[float | None]:
        return [None if value is None else float(f"{value:.6g}") for value in values]

    return {
        "step": list(progress.step),
        "loss": short(progress.loss),
        "validation": short(progress.validation) if progress.is_validated else None,
        "step_time_s": short(progress.step_time_s),
        "tokens_per_s": short(progress.tokens_per_s),
        "allocated_bytes": short(progress.allocated_bytes),
        "starts": list(progress.starts),
        "predicted_step_s": progress.predicted_step_s,
        "tokens": progress.tokens,
        "words": progress.words,
    }


def _candidates(candidates: Candidates) -> dict[str, Any]:
    return {
        "budget_bytes": candidates.budget_bytes if candidates.budget_is_near else None,
        "points": [asdict(point) for point in candidates.points],
    }
