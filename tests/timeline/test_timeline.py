"""Timeline files: whole or absent, damaged ones named; traces; comparison."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from costs_made import random_costs
from hypothesis import given, settings
from hypothesis import strategies as st
from made import small

from ratrain.errors import TimelineError
from ratrain.simulate.simulate import simulate, timeline_of
from ratrain.timeline.compare import compare, kind_of
from ratrain.timeline.perfetto import perfetto_trace
from ratrain.timeline.timeline import (
    MemoryCurve,
    Span,
    Timeline,
    read_timeline,
    write_timeline,
)

times = st.floats(0, 1e6, allow_nan=False)
words = st.sampled_from(["0F0", "1.2R7", "0.3GradSync", "2SEND_F1", "0AllReady"])
spans = st.builds(
    lambda *row: Span(*row[:4], *sorted(row[4:])),
    st.integers(0, 9), st.integers(0, 9), st.sampled_from(["compute", "send_f"]),
    words, times, times,
)  # fmt: skip
curves = st.lists(st.tuples(times, st.integers(0, 2**49)), min_size=1).map(
    lambda rows: MemoryCurve(0, "hbm", tuple(t for t, _ in rows), tuple(s for _, s in rows))
)
timelines = st.builds(
    Timeline,
    st.sampled_from(["simulate", "runtime"]),
    st.lists(spans).map(tuple),
    st.lists(curves, max_size=3).map(tuple),
)


def simulated(name: str = "ratrain", seed: int = 1) -> Timeline:
    """A real timeline: every lane, two steps."""
    program = small(name)
    return timeline_of(simulate(program, random_costs(program.table, seed)))


# ---- files ------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(timelines)
def test_a_timeline_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, made: Timeline
) -> None:
    path = tmp_path_factory.mktemp("timeline") / "run.timeline"
    write_timeline(made, path)
    assert read_timeline(path) == made


def test_a_file_cut_anywhere_is_called_damaged_and_named(tmp_path: Path) -> None:
    path = tmp_path / "run.timeline"
    write_timeline(simulated("1f1b"), path)
    whole = path.read_bytes()
    for length in {0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(TimelineError) as caught:
            read_timeline(path)
        assert caught.value.place.startswith(str(path))


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe\x00",
        b"[]",
        b"3",
        b'{"format": "ratrain-timeline", "version": 1}',
        b'{"format": "ratrain-timeline", "version": 1, "source": "x", "spans": {}, "memory": []}',
        b'{"format": "ratrain-timeline", "version": 2, "source": "x", "spans": {}, "memory": []}',
        b'{"traceEvents": []}',
    ],
)
def test_a_foreign_file_is_refused_with_its_name(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "foreign.json"
    path.write_bytes(body)
    with pytest.raises(TimelineError) as caught:
        read_timeline(path)
    assert caught.value.place.startswith(str(path))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("start_s", "soon"),
        ("end_s", None),
        ("step", 1.5),
        ("rank", "one"),
        ("lane", 3),
        ("word", None),
    ],
)
def test_a_span_of_the_wrong_type_is_called_damaged(
    tmp_path: Path, key: str, value: object
) -> None:
    path = tmp_path / "run.timeline"
    write_timeline(simulated("1f1b"), path)
    body = json.loads(path.read_text())
    body["spans"][key][3] = value
    path.write_text(json.dumps(body))
    with pytest.raises(TimelineError):
        read_timeline(path)


def test_columns_of_unequal_length_are_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "run.timeline"
    write_timeline(simulated("1f1b"), path)
    body = json.loads(path.read_text())
    body["spans"]["rank"].pop()
    path.write_text(json.dumps(body))
    with pytest.raises(TimelineError):
        read_timeline(path)


@pytest.mark.parametrize("where", ["missing.timeline", "."])
def test_what_cannot_be_read_is_named(tmp_path: Path, where: str) -> None:
    with pytest.raises(TimelineError, match="cannot be read") as caught:
        read_timeline(tmp_path / where)
    assert caught.value.place == str(tmp_path / where)


# ---- traces -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ratrain", "zero3-heavy", "interleaved", "zb-h1"])
def test_every_event_of_a_trace_has_the_fields_its_phase_demands(name: str) -> None:
    timeline = simulated(name)
    trace = json.loads(perfetto_trace(timeline))
    demanded = {"X": {"ts", "dur", "tid"}, "M": {"tid", "args"}, "C": {"ts", "args"}}
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid"} <= event.keys()
        assert demanded[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == len(timeline.spans)
    counted = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert len(counted) == sum(len(curve.time_s) for curve in timeline.memory)


@pytest.mark.parametrize("name", ["ratrain", "zero3-heavy", "interleaved", "zb-h1"])
def test_spans_of_one_lane_follow_each_other_and_every_lane_is_named(name: str) -> None:
    trace = json.loads(perfetto_trace(simulated(name)))
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    names: dict[tuple[int, int], str] = {}
    for event in trace["traceEvents"]:
        key = event["pid"], event.get("tid", 0)
        if event["ph"] == "X":
            lanes[key].append((event["ts"], event["ts"] + event["dur"]))
        elif event["name"] == "thread_name":
            names[key] = event["args"]["name"]
    assert lanes.keys() <= names.keys()
    for rows in lanes.values():
        rows.sort()
        for (_, end), (start, _) in pairwise(rows):
            assert start >= end - 1e-6 * max(1.0, end)


# ---- comparison -------------------------------------------------------------------------


def test_a_timeline_equals_itself() -> None:
    timeline = simulated()
    difference = compare(timeline, timeline)
    assert not difference.missing
    assert not difference.extra
    assert difference.first_length_s == difference.second_length_s
    assert len(difference.ops) == len(timeline.spans)
    assert all(op.length_difference_s == op.start_difference_s == 0 for op in difference.ops)


def test_a_changed_op_is_found_and_no_other() -> None:
    timeline = simulated()
    number = next(n for n, span in enumerate(timeline.spans) if span.word.startswith("0.1F"))
    longer = replace(timeline.spans[number], end_s=timeline.spans[number].end_s + 5)
    other = replace(
        timeline, spans=(*timeline.spans[:number], longer, *timeline.spans[number + 1 :])
    )
    difference = compare(timeline, other)
    changed = [op for op in difference.ops if op.length_difference_s or op.start_difference_s]
    assert [op.word for op in changed] == [longer.word]
    assert changed[0].length_difference_s == pytest.approx(5)
    kinds = {row.kind: row.second_s - row.first_s for row in difference.kinds}
    assert kinds.pop("F") == pytest.approx(5)
    assert set(kinds.values()) == {0}


def test_missing_and_extra_ops_are_told_apart() -> None:
    timeline = simulated()
    less = replace(timeline, spans=timeline.spans[1:])
    assert compare(timeline, less).missing == timeline.spans[:1]
    assert compare(timeline, less).extra == ()
    assert compare(less, timeline).extra == timeline.spans[:1]
    assert compare(less, timeline).missing == ()


def test_two_strategies_compare_by_kind() -> None:
    difference = compare(simulated("ratrain"), simulated("full-save"))
    assert {span.word for span in difference.missing} >= {"0.1R0"}
    assert {"F", "B", "SEND_F"} <= {row.kind for row in difference.kinds}
    assert "R" not in {row.kind for row in difference.kinds}


def test_timelines_without_a_common_op_are_refused() -> None:
    timeline = simulated()
    none = Timeline("runtime", ())
    with pytest.raises(TimelineError, match="no op in common"):
        compare(timeline, none)
    with pytest.raises(TimelineError, match="no op in common"):
        compare(none, none)


@pytest.mark.parametrize(
    ("word", "kind"),
    [("2F0", "F"), ("2.1R7", "R"), ("0SEND_F1", "SEND_F"), ("0.3GradSync", "GradSync")],
)
def test_the_kind_of_a_word(word: str, kind: str) -> None:
    assert kind_of(word) == kind
