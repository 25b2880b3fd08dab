"""The page in a real browser: nothing logged, nothing fetched, nothing wider than the window."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser, executable
from simulated_runs import Size, simulated_run

from ratrain.describe.units import format_bytes, format_time
from ratrain.report.page import write_page
from ratrain.report.read import contents_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="no Chromium is installed"),
]

ROOT = Path(__file__).parents[2]
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(22, 26, 32)"
BIG_JOB = """
[model]
name = "qwen2.5-32b"
sequence_length = 2048

[cluster]
name = "mt3000"
devices = 256

[batch]
sequences = 12288
micro_batch = 1

[layout]
pipeline = 32
data = 8
layers = "equal"

[schedule]
name = "ratrain"
memory_budget = "20GB"
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each sort: a run, a job of many ranks, a job on mixed devices, unequal replicas."""
    folder = tmp_path_factory.mktemp("pages")
    run = simulated_run(folder / "small", Size(data=2)).path
    subjects = {
        "run": run,
        "job": ROOT / "examples" / "qwen32b-mt3000.toml",
        "mixed": ROOT / "examples" / "two-sites.toml",
        "unequal": ROOT / "examples" / "unequal-replicas.json",
    }
    for name, subject in subjects.items():
        write_page(contents_of(subject), folder / f"{name}.html")
    shutil.copy(run / "report.json", folder / "report.json")
    return {name: folder / f"{name}.html" for name in subjects}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def opened(chromium: Browser, path: Path, **how: Any) -> Browser:
    chromium.messages.clear()
    chromium.requests.clear()
    chromium.open(path, **how)
    chromium.wait("document.documentElement.dataset.drawn === 'true'")
    return chromium


def ink(chromium: Browser, chart: str) -> int:
    """How many different colours a chart's canvas holds."""
    return chromium.run(
        f"""(() => {{
          const canvas = document.querySelector('[data-chart="{chart}"] canvas');
          const {{ width, height }} = canvas;
          const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
          const seen = new Set();
          for (let i = 0; i < pixels.length; i += 4) {{
            const [red, green, blue, alpha] = pixels.slice(i, i + 4);
            if (alpha === 255) seen.add(red << 16 | green << 8 | blue);
          }}
          return seen.size;
        }})()"""
    )


def range_of(chromium: Browser) -> str:
    """The labels of the timeline's axis are drawn: a picture of them tells whether it moved."""
    return chromium.run(
        "document.querySelector('[data-chart=\"timeline-0\"] canvas').toDataURL().slice(-400)"
    )


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["run", "job", "mixed", "unequal"])
@pytest.mark.parametrize("width", [400, 800, 1600])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_draws_itself_without_a_word_at_any_width_and_in_both_themes(
    chromium: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    opened(chromium, pages[name], width=width, dark=dark)
    assert chromium.messages == []
    assert chromium.requests == [pages[name].as_uri()]
    assert chromium.run("document.documentElement.scrollWidth") <= width
    background = chromium.run("getComputedStyle(document.documentElement).backgroundColor")
    assert background == (DARK if dark else LIGHT)
    charts = chromium.run(
        "[...document.querySelectorAll('[data-chart]')].map(c => c.dataset.chart)"
    )
    assert len(charts) >= 3
    for chart in charts:
        assert ink(chromium, chart) >= 3, chart


def test_the_numbers_of_the_report_are_seen_on_the_page(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    opened(chromium, pages["run"])
    chromium.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    text = chromium.run("document.body.innerText").replace("\u00a0", " ")
    report = json.loads((pages["run"].parent / "report.json").read_text())
    assert format_time(report["step_time_s"]["measured"]) in text
    for kind in report["kinds"]:
        assert format_time(kind["measured_s"]) in text
    for row in report["memory"]:
        assert format_bytes(row["bound_bytes"]) in text
    assert chromium.run("document.documentElement.scrollWidth") <= 1280


def test_labels_of_an_axis_are_whole_however_long_they_are(
    chromium: Browser, tmp_path: Path
) -> None:
    contents = contents_of(simulated_run(tmp_path / "run", Size(steps=8)).path)
    assert contents.progress is not None
    long = tuple(1.01275e8 + 1000 * step for step in range(8))
    progress = replace(contents.progress, allocated_bytes=long)
    path = tmp_path / "long.html"
    write_page(replace(contents, progress=progress), path)
    for width in (400, 1600):
        opened(chromium, path, width=width)
        inked = chromium.run(
            """(() => {
              const canvas = document.querySelector('[data-chart="progress-memory"] canvas');
              const pixels = canvas.getContext("2d").getImageData(0, 0, 2, canvas.height).data;
              return pixels.filter((value, i) => i % 4 === 3 && value > 0).length;
            })()"""
        )
        assert inked == 0
        assert chromium.messages == []


def test_validation_is_drawn_as_a_second_curve(chromium: Browser, tmp_path: Path) -> None:
    contents = contents_of(simulated_run(tmp_path / "run", Size(steps=8)).path)
    assert contents.progress is not None
    losses = (None, 5.5, None, 4.5, None, 4.0, None, 3.5)
    path = tmp_path / "validated.html"
    write_page(contents, path)
    opened(chromium, path)
    before = ink(chromium, "progress-loss")
    write_page(replace(contents, progress=replace(contents.progress, validation=losses)), path)
    opened(chromium, path)
    assert ink(chromium, "progress-loss") > before
    assert chromium.messages == []


def test_the_timeline_moves_by_key_button_and_mouse_and_both_panels_together(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    opened(chromium, pages["run"], height=1400)
    chromium.run("document.querySelector('#timeline').scrollIntoView()")
    chromium.settle()
    whole = range_of(chromium)
    chromium.run("document.querySelector('[data-chart=\"timeline-0\"]').focus()")
    chromium.key("+")
    chromium.settle()
    zoomed = range_of(chromium)
    assert zoomed != whole
    chromium.key("0")
    chromium.settle()
    assert range_of(chromium) == whole
    chromium.run("document.querySelector('[data-zoom=in]').click()")
    chromium.settle()
    assert range_of(chromium) == zoomed
    chromium.run("document.querySelector('[data-zoom=all]').click()")
    left, top, width = chromium.run(
        "(() => { const b = document.querySelector('[data-chart=\"timeline-1\"] .u-over')"
        ".getBoundingClientRect(); return [b.left, b.top, b.width]; })()"
    )
    before = range_of(chromium)
    for kind, share in (("mouseMoved", 0.2), ("mousePressed", 0.2), ("mouseMoved", 0.6)):
        chromium.mouse(kind, left + share * width, top + 10)
    chromium.mouse("mouseReleased", left + 0.6 * width, top + 10)
    chromium.settle()
    assert range_of(chromium) != before  # the upper panel followed the lower one
    assert chromium.messages == []


def test_hovering_an_op_says_what_it_is_and_how_long_it_took_in_both(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    opened(chromium, pages["run"], height=1400)
    chromium.run("document.querySelector('#timeline').scrollIntoView()")
    chromium.settle()
    left, top = chromium.run(
        "(() => { const b = document.querySelector('[data-chart=\"timeline-0\"] .u-over')"
        ".getBoundingClientRect(); return [b.left, b.top]; })()"
    )
    chromium.mouse("mouseMoved", left + 3, top + 10)
    chromium.wait("!document.querySelector('.tip').hidden")
    tip = chromium.run("document.querySelector('.tip').innerText")
    assert "on rank 0" in tip
    assert "forward" in tip
    assert "takes" in tip
    assert "measured: " in tip


def test_configurations_are_reached_by_the_arrow_keys(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    opened(chromium, pages["job"])
    chromium.run("document.querySelector('[data-chart=candidates]').focus()")
    chromium.settle()
    chromium.key("ArrowRight")
    chromium.wait("!document.querySelector('.tip').hidden")
    first = chromium.run("document.querySelector('.tip').innerText")
    assert "this layout" in first
    chromium.key("ArrowRight")
    chromium.wait(f"document.querySelector('.tip').innerText !== {json.dumps(first)}")
    chromium.key("Escape")
    chromium.wait("document.querySelector('.tip').hidden")


def test_what_is_drawn_can_be_saved_as_a_trace(chromium: Browser, pages: dict[str, Path]) -> None:
    opened(chromium, pages["run"])
    chromium.run(
        "URL.createObjectURL = (blob) => { window.saved = blob; return 'data:,'; };"
        "document.querySelector('#save-trace').click()"
    )
    events = json.loads(chromium.run("window.saved.text()"))["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"predicted rank 0", "measured rank 0"} <= names
    assert sum(e["ph"] == "X" for e in events) > 50


def test_a_step_of_half_a_million_ops_stays_small_and_quick(
    chromium: Browser, tmp_path: Path
) -> None:
    (tmp_path / "big.toml").write_text(BIG_JOB)
    contents = contents_of(tmp_path / "big.toml")
    assert contents.panels[0].ops > 450_000
    path = tmp_path / "big.html"
    assert write_page(contents, path) < 5_000_000
    began = time.monotonic()
    opened(chromium, path, width=1280)
    assert time.monotonic() - began < 20
    took_ms = chromium.run(
        "(() => { const began = performance.now();"
        "for (let i = 0; i < 8; i++) document.querySelector('[data-zoom=in]').click();"
        "document.querySelector('[data-chart=\"timeline-0\"] canvas').getContext('2d')"
        ".getImageData(0, 0, 1, 1); return performance.now() - began; })()"
    )
    assert took_ms < 3000
    assert chromium.messages == []
    assert any("ops predicted" in line for line in contents.left_out)


def test_a_run_of_256_ranks_and_thousands_of_steps_stays_small(
    chromium: Browser, tmp_path: Path
) -> None:
    wide = simulated_run(tmp_path / "wide", Size(pipeline=4, data=64, micro_batches=8, steps=60))
    long = simulated_run(tmp_path / "long", Size(steps=8000))
    for run in (wide, long):
        path = run.path / "report.html"
        assert write_page(contents_of(run.path), path) < 5_000_000
        opened(chromium, path, width=1000)
        assert chromium.messages == []
