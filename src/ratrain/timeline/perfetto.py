"""A timeline as a trace that Chrome's tracing page and Perfetto open (trace event format)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ratrain.timeline.compare import kind_of
from ratrain.timeline.palette import class_of
from ratrain.timeline.timeline import Timeline

_MICROSECONDS = 1e6


def perfetto_trace(timeline: Timeline) -> str:
    """JSON text: a process for each rank, a thread for each lane, a counter for its memory."""
    return perfetto_traces({"": timeline})


def perfetto_traces(timelines: Mapping[str, Timeline]) -> str:
    """Several timelines in one trace; each title precedes its ranks' names."""
    events: list[dict[str, Any]] = []
    first = 0
    for title, timeline in timelines.items():
        events += [*_names(timeline, title, first), *_spans(timeline, first)]
        events += _counters(timeline, first)
        first += 1 + max((span.rank for span in timeline.spans), default=0)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _lanes(timeline: Timeline) -> list[str]:
    return list(dict.fromkeys(span.lane for span in timeline.spans))


def _names(timeline: Timeline, title: str, first: int) -> Iterator[dict[str, Any]]:
    lanes = _lanes(timeline)
    for rank in sorted({span.rank for span in timeline.spans}):
        yield _meta("process_name", first + rank, 0, f"{title} rank {rank}".strip())
        for number, lane in enumerate(lanes):
            yield _meta("thread_name", first + rank, number, lane)


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _spans(timeline: Timeline, first: int) -> Iterator[dict[str, Any]]:
    lanes = {lane: number for number, lane in enumerate(_lanes(timeline))}
    for span in timeline.spans:
        event: dict[str, Any] = {
            "ph": "X",
            "name": span.word,
            "cat": span.lane,
            "pid": first + span.rank,
            "tid": lanes[span.lane],
            "ts": span.start_s * _MICROSECONDS,
            "dur": span.length_s * _MICROSECONDS,
            "args": {"step": span.step},
        }
        colour = class_of(span.lane, kind_of(span.word)).trace
        if colour:
            event["cname"] = colour
        yield event


def _counters(timeline: Timeline, first: int) -> Iterator[dict[str, Any]]:
    for curve in timeline.memory:
        for time_s, size in zip(curve.time_s, curve.size_bytes, strict=True):
            yield {
                "ph": "C",
                "name": f"{curve.tier} bytes",
                "pid": first + curve.rank,
                "ts": time_s * _MICROSECONDS,
                "args": {"bytes": size},
            }
