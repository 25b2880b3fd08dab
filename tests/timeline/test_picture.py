"""Pictures of timelines: nothing left out unsaid, small whatever the size, titles that are true."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from costs_made import random_costs
from hypothesis import given, settings
from hypothesis import strategies as st
from made import small

from ratrain.cli.terminal.jobs import case_of_file
from ratrain.simulate.simulate import simulate, timeline_of
from ratrain.timeline.boxes import boxes, micro_batch_of
from ratrain.timeline.compare import one_step
from ratrain.timeline.palette import IDLE
from ratrain.timeline.picture import ROWS, Panel, svg
from ratrain.timeline.timeline import Span, Timeline

EXAMPLES = Path(__file__).parents[2] / "examples"

lengths = st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2)), min_size=1, max_size=60)


def lane(rows: list[tuple[float, float]]) -> list[Span]:
    """Ops one after the other: (wait before it, length)."""
    spans, now = list[Span](), 0.0
    for number, (wait_s, length_s) in enumerate(rows):
        kind = "FBR"[number % 3]
        spans.append(
            Span(0, 0, "compute", f"0{kind}{number}", now + wait_s, now + wait_s + length_s)
        )
        now += wait_s + length_s
    return spans


@settings(max_examples=100, deadline=None)
@given(lengths, st.floats(0.01, 5))
def test_boxes_hold_all_the_time_of_all_ops_and_none_overlap(
    rows: list[tuple[float, float]], resolution_s: float
) -> None:
    spans = lane(rows)
    made = boxes(spans, resolution_s)
    busy_s: dict[str, float] = {}
    for box in made:
        assert sum(share for _, share in box.shares) <= 1 + 1e-9
        for kind, share in box.shares:
            busy_s[kind.key] = busy_s.get(kind.key, 0.0) + share * box.length_s
    for kind, key in (("F", "forward"), ("B", "backward"), ("R", "recovery")):
        total_s = sum(span.length_s for span in spans if kind in span.word)
        assert busy_s.get(key, 0.0) == pytest.approx(total_s, abs=1e-9)
    assert sum(box.ops for box in made) == sum(span.length_s > 0 for span in spans)
    for before, after in pairwise(made):
        assert before.end_s <= after.start_s + 1e-9


@settings(max_examples=50, deadline=None)
@given(lengths, st.floats(0.01, 5))
def test_there_are_never_many_more_boxes_than_stretches_of_the_resolution(
    rows: list[tuple[float, float]], resolution_s: float
) -> None:
    spans = lane(rows)
    stretches = spans[-1].end_s / resolution_s
    assert len(boxes(spans, resolution_s)) <= 3 * stretches + 3


def test_long_ops_keep_their_word() -> None:
    spans = lane([(0, 1), (0, 1), (0, 0.1), (0, 0.1), (0, 0.1), (0, 1)])
    assert [box.word for box in boxes(spans, 0.5)] == ["0F0", "0B1", "", "0R5"]


@pytest.mark.parametrize(("word", "number"), [("2.1R7", "7"), ("0SEND_F12", "12"), ("0.3Save", "")])
def test_the_micro_batch_of_a_word(word: str, number: str) -> None:
    assert micro_batch_of(word) == number


@pytest.mark.slow
def test_the_picture_of_the_largest_example_is_small_and_shows_its_ops() -> None:
    """7.6 MB and blank before: white strokes covered boxes thinner than themselves."""
    case = case_of_file(EXAMPLES / "qwen32b-mt3000.toml")
    simulation = simulate(case.program, case.costs, steps=3)
    step = one_step(timeline_of(simulation), 1)
    text = svg([Panel("qwen", step, simulation.step_time_s)])
    assert len(text) < 600_000
    assert 'stroke="#fff"' not in text
    assert "drawn together, each colour by its share" in text
    coloured = re.findall(r'stroke="(#\w{6})"', text)
    assert len(set(coloured)) >= 4
    assert IDLE.light not in coloured


def test_a_title_states_the_step_time_and_not_how_far_its_ops_reach() -> None:
    program = small("ratrain")
    simulation = simulate(program, random_costs(program.table, 1))
    step = one_step(timeline_of(simulation), 1)
    text = svg([Panel("predicted", step, 12.34), Panel("unknown", step)])
    assert "predicted: a step takes 12.3 s" in text
    assert re.search(r"unknown: \S+ \S+ from first op to last", text)
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_of_many_ranks_some_are_drawn_and_the_picture_says_so() -> None:
    spans = tuple(Span(0, rank, "compute", "0F0", 0.0, 1.0) for rank in range(100))
    text = svg([Panel("wide", Timeline("simulate", spans))])
    assert f"({ROWS} of 100 ranks drawn)" in text
    assert ">rank 0<" in text
    assert ">rank 99<" in text
    assert text.count(">rank ") == ROWS


def test_names_of_the_legend_touch_neither_each_other_nor_the_edge() -> None:
    ops = [("compute", word) for word in ("0F0", "0B0", "0R0", "0W0")]
    lanes = ("recv_f", "reduce", "gather", "tensor", "update", "disk", "offload")
    ops += [(lane, "0.0Op0") for lane in lanes]
    spans = [Span(0, 0, lane, word, 1.0 * at, at + 1.0) for at, (lane, word) in enumerate(ops)]
    text = svg([Panel("all", Timeline("simulate", tuple(spans)), step_s=1704.2)])
    assert "a step takes 1704 s" in text
    swatch = r'<rect x="([\d.]+)" y="([\d.]+)" width="12.0" height="12" [^>]*><title>([^<]+)<'
    entries = [(float(x), float(y), name) for x, y, name in re.findall(swatch, text)]
    assert {"forward", "message between stages", "sum in a tensor group"} <= {e[2] for e in entries}
    assert len(entries) >= 9
    for (left, top, name), after in pairwise([*entries, (0.0, 0.0, "")]):
        end = left + 17 + 7 * len(name)  # 7 pixels a letter: what a wide face takes at 12
        assert end <= 960
        assert after[1] != top or end + 6 <= after[0]
