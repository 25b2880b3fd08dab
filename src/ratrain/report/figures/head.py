"""The page's first screen: the verdict and the figures to see at once."""

from __future__ import annotations

from ratrain.report.contents import Contents
from ratrain.report.html import Markup, tag

_MARKS = {"good": "✓", "bad": "✕", "plain": "•"}
_SAID = {"good": "Good", "bad": "Problem", "plain": "Note"}


def head(contents: Contents) -> Markup:
    verdict = contents.verdict
    return tag(
        "header",
        tag("p", f"RATrain report on a {contents.kind}: {contents.source}", class_="eyebrow"),
        tag("h1", contents.title),
        tag(
            "p",
            tag(
                "span",
                _MARKS[verdict.tone],
                class_="mark",
                role="img",
                aria_label=_SAID[verdict.tone],
            ),
            tag("span", verdict.text),
            class_=f"verdict {verdict.tone}",
            id="verdict",
        ),
        tag(
            "dl",
            (
                tag(
                    "div",
                    tag("dt", tile.label),
                    tag("dd", tile.value, class_="value"),
                    tag("dd", tile.note, class_="note"),
                )
                for tile in contents.tiles
            ),
            class_="tiles",
        ),
    )
