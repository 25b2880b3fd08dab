"""Where two timelines of one program part: op by op, and in sum."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from ratrain.errors import TimelineError
from ratrain.timeline.timeline import Span, Timeline


@dataclass(frozen=True)
class OpDifference:
    """One op in both timelines; times in seconds from each timeline's own beginning."""

    step: int
    rank: int
    lane: str
    word: str
    first: Span
    second: Span

    @property
    def length_difference_s(self) -> float:
        return self.second.length_s - self.first.length_s

    @property
    def start_difference_s(self) -> float:
        return self.second.start_s - self.first.start_s


@dataclass(frozen=True)
class KindDifference:
    """All ops of one kind: how many, and their time in both timelines."""

    kind: str
    ops: int
    first_s: float
    second_s: float


@dataclass(frozen=True)
class Comparison:
    """`missing` are ops of the first timeline that the second lacks, `extra` the other way."""

    ops: tuple[OpDifference, ...]
    kinds: tuple[KindDifference, ...]
    missing: tuple[Span, ...]
    extra: tuple[Span, ...]
    first_length_s: float
    second_length_s: float


def compare(first: Timeline, second: Timeline) -> Comparison:
    """The `Comparison` of two timelines; they must have ops in common."""
    spans, other_spans = _by_key(first), _by_key(second)
    common = [key for key in spans if key in other_spans]
    if not common:
        raise TimelineError(
            "the two timelines have no op in common",
            place="timelines",
            fix="compare timelines of the same program",
        )
    ops = tuple(OpDifference(*key, spans[key], other_spans[key]) for key in common)
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for op in ops:
        row = sums[kind_of(op.word)]
        row[0] += 1
        row[1] += op.first.length_s
        row[2] += op.second.length_s
    return Comparison(
        ops=ops,
        kinds=tuple(KindDifference(kind, int(n), a, b) for kind, (n, a, b) in sums.items()),
        missing=tuple(span for key, span in spans.items() if key not in other_spans),
        extra=tuple(span for key, span in other_spans.items() if key not in spans),
        first_length_s=_length(first),
        second_length_s=_length(second),
    )


def one_step(
    timeline: Timeline,
    step: int,
    *,
    ranks: Mapping[int, int] | None = None,
    as_step: int = 0,
) -> Timeline:
    """The spans of a step, as step `as_step`, from the moment when its first compute op begins.
    `ranks` picks ranks and renames them: {old: new}."""
    step_spans = [
        s for s in timeline.spans if s.step == step and (ranks is None or s.rank in ranks)
    ]
    if not step_spans:
        held = sorted({span.step for span in timeline.spans})
        raise TimelineError(
            f"has no op of step {step + 1}",
            place=f"timeline of {timeline.source}",
            fix=f"choose one of steps {held[0] + 1} to {held[-1] + 1}"
            if held
            else "record some steps",
        )
    origin_s = min(
        (s.start_s for s in step_spans if s.lane == "compute"), default=step_spans[0].start_s
    )
    spans = (
        Span(
            as_step,
            s.rank if ranks is None else ranks[s.rank],
            s.lane,
            s.word,
            s.start_s - origin_s,
            s.end_s - origin_s,
        )
        for s in step_spans
    )
    return Timeline(timeline.source, tuple(spans))


def step_times(timeline: Timeline) -> dict[int, float]:
    """Seconds of each step but the first, from the end of the last backward of any rank to the
    next step's: what crosses a boundary is counted once, as in a simulation."""
    ends: dict[int, float] = {}
    for span in timeline.spans:
        if span.lane == "compute" and kind_of(span.word) in ("B", "W"):
            ends[span.step] = max(ends.get(span.step, span.end_s), span.end_s)
    return {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends}


def typical_step(timeline: Timeline, near_s: float | None = None) -> int:
    """The step of median length, or of the length nearest to `near_s`. The first one, whose length
    is not known, and the last one, which saves, only where there is no other."""
    lengths = step_times(timeline)
    last = max(span.step for span in timeline.spans)
    known = {step: length for step, length in lengths.items() if step != last} or lengths
    if not known:
        return last
    wanted_s = median_low(known.values()) if near_s is None else near_s
    return min(known, key=lambda step: (abs(known[step] - wanted_s), step))


def kind_of(word: str) -> str:
    """The kind in an op's word: `2.1R7` is `R`."""
    match = re.search(r"[A-Za-z_]+", word)
    return match.group().rstrip("_") if match else word


def _by_key(timeline: Timeline) -> dict[tuple[int, int, str, str], Span]:
    return {(s.step, s.rank, s.lane, s.word): s for s in timeline.spans}


def _length(timeline: Timeline) -> float:
    return max(s.end_s for s in timeline.spans) - min(s.start_s for s in timeline.spans)
