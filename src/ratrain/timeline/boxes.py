"""Spans made ready to draw: ops that are too short to be seen become columns with shares.

A column represents all ops that ran in a stretch of time and says what share of it each class of
op took; what is missing from one is idle time. Nothing is left out, and no box is wider than the
time it represents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ratrain.timeline.compare import kind_of
from ratrain.timeline.palette import OpClass, class_of
from ratrain.timeline.timeline import Span

_MICRO_BATCH = re.compile(r"[A-Za-z](\d+)$")


@dataclass(frozen=True, slots=True)
class Box:
    """A stretch of a lane: one op with its word, or a column (`word` is "") of `ops` ops."""

    start_s: float
    end_s: float
    shares: tuple[tuple[OpClass, float], ...]
    word: str
    ops: int

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def boxes(spans: Iterable[Span], resolution_s: float) -> list[Box]:
    """One lane's boxes, in order. Ops shorter than `resolution_s` are put into columns about as
    wide; an op that takes no time at all is dropped."""
    made: list[Box] = []
    short: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        if span.length_s <= 0:
            continue
        ends_run = span.length_s >= resolution_s or (
            bool(short) and span.start_s - short[-1].end_s >= resolution_s
        )
        if ends_run:
            made += _columns(short, resolution_s)
            short = []
        if span.length_s >= resolution_s:
            shares = ((class_of(span.lane, kind_of(span.word)), 1.0),)
            made.append(Box(span.start_s, span.end_s, shares, span.word, 1))
        else:
            short.append(span)
    return [*made, *_columns(short, resolution_s)]


def micro_batch_of(word: str) -> str:
    """The micro-batch in an op's word: `2.1R7` is "7"; "" where it belongs to none."""
    match = _MICRO_BATCH.search(word)
    return match[1] if match else ""


def _columns(short: Sequence[Span], resolution_s: float) -> list[Box]:
    """A run of short ops, divided into columns of equal width."""
    if not short:
        return []
    first_s, last_s = short[0].start_s, max(span.end_s for span in short)
    count = max(1, math.ceil((last_s - first_s) / resolution_s))
    if len(short) <= count:  # few ops, far apart: each is its own column
        return [
            Box(s.start_s, s.end_s, ((class_of(s.lane, kind_of(s.word)), 1.0),), s.word, 1)
            for s in short
        ]
    width_s = (last_s - first_s) / count
    taken: list[dict[OpClass, float]] = [{} for _ in range(count)]
    ops = [0] * count
    for span in short:
        kind = class_of(span.lane, kind_of(span.word))
        column = min(int((span.start_s - first_s) / width_s), count - 1)
        ops[column] += 1
        while column < count:
            begins_s = first_s + column * width_s
            inside_s = min(span.end_s, begins_s + width_s) - max(span.start_s, begins_s)
            if inside_s > 0:
                taken[column][kind] = taken[column].get(kind, 0.0) + inside_s / width_s
            if span.end_s <= begins_s + width_s:
                break
            column += 1
    return [
        Box(
            first_s + number * width_s,
            first_s + (number + 1) * width_s,
            tuple(sorted(shares.items(), key=lambda share: share[0].key)),
            "",
            ops[number],
        )
        for number, shares in enumerate(taken)
        if shares
    ]
