"""The page as a file: complete, closed to the network, escaped, with its numbers and licences."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest
from simulated_runs import Size, simulated_run

from ratrain.describe.units import format_bytes, format_time
from ratrain.report import data
from ratrain.report.contents import Contents, KindTime, Tile, Times
from ratrain.report.figures.times import times_section
from ratrain.report.html import Styles, tag
from ratrain.report.page import page
from ratrain.report.read import contents_of

ROOT = Path(__file__).parents[2]
VENDOR = ROOT / "src" / "ratrain" / "report" / "vendor" / "uplot"
UPLOT = {  # of uplot 1.6.32 as npm has it
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Contents, Path]:
    run = simulated_run(tmp_path_factory.mktemp("page") / "small", Size(data=2))
    return contents_of(run.path), run.path


def text_of(html: str) -> str:
    """What a reader sees of a page, in one line."""
    body = re.sub(r"<(script|style)[^>]*>.*?</\1>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)).replace("\u00a0", " "))


def test_the_policy_allows_exactly_the_scripts_and_the_style_of_the_page(
    made: tuple[Contents, Path],
) -> None:
    html = page(made[0])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe" not in policy[1]
    assert "http" not in policy[1]
    inline = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    inline += re.findall(r"<style>(.*?)</style>", html, flags=re.S)
    assert len(inline) == 3
    for text in inline:
        assert base64.b64encode(sha256(text.encode()).digest()).decode() in policy[1]
    assert not re.search(
        r"\sstyle=|\son\w+=", re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S)
    )


def test_the_page_asks_for_nothing_from_outside(made: tuple[Contents, Path]) -> None:
    html = page(made[0])
    loads = re.findall(
        r'<(?:script|img|iframe|source|video|object|embed)[^>]*\bsrc="([^"]+)"', html
    )
    loads += re.findall(r'<link[^>]*\bhref="([^"]+)"', html)
    assert loads == ["data:,"]


def test_the_numbers_of_the_report_stand_on_the_page(made: tuple[Contents, Path]) -> None:
    contents, path = made
    report = json.loads((path / "report.json").read_text())
    text = text_of(page(contents))
    step = report["step_time_s"]
    for time_s in (step["predicted"], step["measured"]):
        assert format_time(time_s) in text
    for kind in report["kinds"]:
        assert format_time(kind["predicted_s"]) in text
        assert format_time(kind["measured_s"]) in text
    for row in report["memory"]:
        for key in ("bound_bytes", "budget_bytes", "ledger_peak_bytes", "allocated_peak_bytes"):
            assert format_bytes(row[key]) in text
    assert f"{report['loss']['last']:.4f}" in text
    assert f"{report['tokens_per_s']:,.0f}" in text
    assert all(version in text for version in report["versions"].values())


def test_names_from_outside_cannot_become_html(made: tuple[Contents, Path]) -> None:
    evil = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'
    html = page(replace(made[0], title=evil, source=evil, tiles=(Tile(evil, evil, evil),)))
    assert "<script>alert" not in html
    assert "<img" not in html
    assert html.count("</script>") == 3


def test_where_a_run_was_resumed_is_said_by_the_step_before(made: tuple[Contents, Path]) -> None:
    assert made[0].progress is not None
    resumed = replace(made[0], progress=replace(made[0].progress, starts=(5, 9)))
    assert "Resumed after step 4, 8 (dashed)." in text_of(page(resumed))
    again = replace(made[0], progress=replace(made[0].progress, starts=(1,)))
    assert "Begun again at step 1 (dashed)." in text_of(page(again))


def test_the_library_is_the_published_one_and_its_licence_is_kept(
    made: tuple[Contents, Path],
) -> None:
    for name, digest in UPLOT.items():
        assert sha256((VENDOR / name).read_bytes()).hexdigest() == digest
    html = page(made[0])
    assert "Copyright (c) 2022 Leon Sorokin" in html
    assert "Permission is hereby granted, free of charge" in html


def test_every_figure_is_a_table_too(made: tuple[Contents, Path]) -> None:
    html = page(made[0])
    charts = set(re.findall(r'data-chart="(\w+)', html))
    assert charts == {"timeline", "memory", "progress", "candidates"}
    for key in (*charts, "plan", "times"):
        section = re.search(rf'<section id="{key}".*?</section>', html, flags=re.S)
        assert section is not None
        assert re.search(r"<details>.*<table>", section[0], flags=re.S), key


def test_data_of_a_lane_gives_back_every_box(made: tuple[Contents, Path]) -> None:
    contents, _ = made
    panel = data.data_of(contents)["timeline"][0]
    for row, drawn in zip(contents.panels[0].rows, panel["rows"], strict=True):
        flat, at, seen = drawn["lanes"][0], 0, []
        for i in range(0, len(flat), 5):
            at += flat[i]
            begin, at = at, at + flat[i + 1]
            number = "" if flat[i + 4] < 0 else flat[i + 4]
            seen.append((panel["words"][flat[i + 3]] + str(number), begin * panel["tick_s"]))
        assert [word for word, _ in seen] == [box.word for box in row.compute]
        assert [s for _, s in seen] == pytest.approx(
            [box.start_s for box in row.compute], abs=2 * panel["tick_s"]
        )


def test_html_is_escaped_and_numbers_stay_with_their_units() -> None:
    assert tag("p", "<b> & 5 ms") == "<p>&lt;b&gt; &amp; 5\u00a0ms</p>"
    assert tag("a", "x", href='"><b>', hidden=True, title=None) == (
        '<a href="&quot;&gt;&lt;b&gt;" hidden>x</a>'
    )
    assert tag("br") == "<br>"
    styles = Styles()
    assert styles.width(0.5) == styles.width(0.50001)
    assert styles.text() == ".w1000{width:50%}"


def test_parts_that_add_up_to_more_than_the_step_are_all_drawn() -> None:
    kinds = (KindTime("compute", "compute", 0.5, 0.5), KindTime("other", "other", 0.0, 0.5))
    styles = Styles()
    html = times_section(Times(0.5, 0.6, kinds, (), ()), styles)
    rules = dict(re.findall(r"\.(w\d+){width:([\d.]+)%}", styles.text()))
    widths = [float(rules[name]) for name in re.findall(r'class="t-\w+ (w\d+)"', html)]
    assert widths == [50, 50, 50]
