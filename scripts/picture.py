"""Draws the README's pictures: the timeline of a page of `ratrain report`, in light and in dark.

One step of plain 1F1B above the same step as RATrain runs it. Needs Chromium (apt-get install
chromium); run it with the repository's Python: .venv/bin/python scripts/picture.py
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

from browser import browser

from ratrain.cli.terminal.jobs import case_of_file
from ratrain.describe.units import format_time
from ratrain.plan import Case
from ratrain.report.contents import TimelinePanel
from ratrain.report.facts.memory import op_times
from ratrain.report.facts.ops import Ops
from ratrain.report.facts.steps import panel
from ratrain.report.page import write_page
from ratrain.report.read import contents_of
from ratrain.simulate.simulate import simulate, timeline_of
from ratrain.timeline.compare import one_step

ROOT = Path(__file__).parent.parent
JOB = ROOT / "examples" / "picture.toml"
PANELS = {"plain 1F1B, recovery at backward": "baseline-1f1b", "RATrain": "ratrain"}
WIDTH, SCALE = 880, 2
ONLY_THE_FIGURE = """
document.querySelectorAll("#timeline :is(.lead, .controls, details, .note, .zoom, h2)")
  .forEach((part) => { part.style.display = "none"; });
Object.assign(document.querySelector("#timeline").style, { border: 0, padding: "12px 16px" });
"""


def main() -> None:
    """Writes docs/picture-light.png and docs/picture-dark.png. Each says what it was drawn of, so
    that a test can tell when it has become another."""
    contents = replace(contents_of(JOB), panels=tuple(map(drawn, PANELS)))
    text = "; ".join(f"{name}: {step_time(case_of(title))}" for title, name in PANELS.items())
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        page = Path(folder) / "page.html"
        write_page(contents, page)
        for theme in ("light", "dark"):
            chromium.open(page, width=WIDTH, dark=theme == "dark", scale=SCALE)
            chromium.wait("document.documentElement.dataset.drawn === 'true'")
            chromium.run(ONLY_THE_FIGURE)
            path = ROOT / "docs" / f"picture-{theme}.png"
            chromium.picture(path, "#timeline")
            path.write_bytes(with_text(path.read_bytes(), text))
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def drawn(title: str) -> TimelinePanel:
    """A strategy's step as a panel."""
    case = case_of(title)
    simulation = simulate(case.program, case.costs)
    timeline = timeline_of(simulation, periods=1)
    step = one_step(timeline, timeline.spans[0].step)
    note = f"a step takes {step_time(case)}"
    ops = Ops(case.program.table)
    times = op_times(ops, simulation.run)
    return panel(title, note, step, ops.critical_path(times, times.last))


@cache
def case_of(title: str) -> Case:
    """The job with a panel's schedule."""
    return case_of_file(JOB, PANELS[title])


def step_time(case: Case) -> str:
    """The predicted step, as `ratrain simulate` writes it."""
    return format_time(simulate(case.program, case.costs).step_time_s)


def with_text(png: bytes, text: str) -> bytes:
    """The picture with a comment behind its header."""
    chunk = b"tEXtComment\0" + text.encode()
    framed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    header = 8 + 25  # the signature, and IHDR
    return png[:header] + framed + png[header:]


if __name__ == "__main__":
    main()
