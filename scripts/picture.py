"""Draws the README's picture: one step of plain 1F1B, and the same step as RATrain runs it."""

from __future__ import annotations

from pathlib import Path

from ratrain.cli.jobs import case_of_file
from ratrain.simulate.simulate import simulate, timeline_of
from ratrain.timeline.picture import svg

ROOT = Path(__file__).parent.parent
PANELS = {"plain 1F1B, recovery at backward": "baseline-1f1b", "RATrain": "ratrain"}


def main() -> None:
    """Writes docs/picture.svg."""
    panels = {}
    for title, name in PANELS.items():
        case = case_of_file(ROOT / "examples" / "picture.toml", name)
        panels[title] = timeline_of(simulate(case.program, case.costs))
    (ROOT / "docs" / "picture.svg").write_text(svg(panels, step=1))


if __name__ == "__main__":
    main()
