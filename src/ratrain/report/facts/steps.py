"""Steps as panels of the timeline: ranks chosen, short ops put together where there are many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ratrain.describe.units import format_time
from ratrain.report.contents import Hop, OpTotal, TimelinePanel, TimelineRow
from ratrain.report.facts.ops import totals_of
from ratrain.timeline.boxes import Box, boxes
from ratrain.timeline.palette import class_of
from ratrain.timeline.picture import chosen_ranks
from ratrain.timeline.timeline import Span, Timeline

ROWS = 24
"""Ranks drawn in one panel, at most."""
BOXES = 80_000
"""Boxes in one panel, about: what bounds the page's size."""
BEYOND = 1.005
"""How much longer than a step its drawing is before that is explained."""
_LANES = 3


def panel(
    title: str, note: str, step: Timeline, critical: tuple[Hop, ...], step_s: float | None = None
) -> TimelinePanel:
    """One step from zero, with its critical path. `step_s`: what the step takes, where its last
    work may go on beside the next step."""
    ranks = chosen_ranks((span.rank for span in step.spans), ROWS)
    length_s = max((span.end_s for span in step.spans), default=0.0)
    if step_s is not None and length_s > step_s * BEYOND:
        note += (
            f" (drawn up to {format_time(length_s)}: its last work goes on beside the next step)"
        )
    lanes = _lanes(step.spans, set(ranks))
    count = sum(map(len, lanes.values()))
    resolution_s = 0.0
    if count > BOXES:
        resolution_s = length_s * len(ranks) * _LANES / BOXES
    rows = tuple(_row(rank, lanes, resolution_s) for rank in ranks)
    return TimelinePanel(
        title=title,
        note=note,
        rows=rows,
        critical=critical,
        totals=tuple(
            OpTotal(kind, class_of(lane, kind).name, number, time_s)
            for (lane, kind), (number, time_s) in _totals(step.spans).items()
        ),
        length_s=length_s,
        ops=len(step.spans),
        merged_below_s=resolution_s or None,
    )


def ranks_of(step: Timeline) -> int:
    return len({span.rank for span in step.spans})


def _lanes(spans: Iterable[Span], ranks: set[int]) -> dict[tuple[int, str], list[Span]]:
    """Spans by rank and lane. Of a message its receiving end, which shows the transfer."""
    lanes: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in spans:
        if span.rank in ranks and not span.lane.startswith("send"):
            lanes[span.rank, span.lane].append(span)
    return lanes


def _row(rank: int, lanes: dict[tuple[int, str], list[Span]], resolution_s: float) -> TimelineRow:
    compute: list[Box] = []
    messages: list[Box] = []
    state: list[Box] = []
    for (lane_rank, lane), spans in lanes.items():
        if lane_rank == rank:
            drawn = boxes(spans, resolution_s)
            busy = compute if lane == "compute" else state
            (messages if lane.startswith("recv") else busy).extend(drawn)
    in_order = [
        tuple(sorted(lane_boxes, key=lambda box: box.start_s)) for lane_boxes in (messages, state)
    ]
    return TimelineRow(rank, tuple(compute), *in_order)


def _totals(spans: Iterable[Span]) -> dict[tuple[str, str], tuple[int, float]]:
    """Ops and seconds by lane and kind, in the order in which they first run."""
    by_lane: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_lane[span.lane].append(span)
    return {
        (lane, kind): total
        for lane, lane_spans in by_lane.items()
        for kind, total in totals_of(lane_spans).items()
    }
