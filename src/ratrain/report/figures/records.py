"""Checkpoints, versions, and what the page leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.report.contents import SavedCheckpoint
from ratrain.report.figures.frame import section, size
from ratrain.report.html import Markup, table, tag


def checkpoints_section(checkpoints: Sequence[SavedCheckpoint]) -> Markup:
    if not checkpoints:
        return section("checkpoints", "Checkpoints", "None was saved.")
    return section(
        "checkpoints",
        "Checkpoints",
        None,
        table(
            ("Step", "State", "Size", "Path"),
            (
                (
                    f"{saved.step:,}",
                    "whole" if saved.whole else "damaged or incomplete",
                    size(saved.size_bytes),
                    saved.path,
                )
                for saved in checkpoints
            ),
            caption="Saved checkpoints",
            text=(0, 1, 3),
        ),
    )


def versions_section(versions: Sequence[tuple[str, str]]) -> Markup:
    return section(
        "versions",
        "Versions",
        None,
        tag(
            "dl",
            (tag("div", tag("dt", name), tag("dd", version)) for name, version in versions),
            class_="facts",
        ),
    )


def left_out_section(lines: Sequence[str]) -> Markup | None:
    if not lines:
        return None
    return section(
        "left-out", "Left out of this page", None, tag("ul", (tag("li", line) for line in lines))
    )
