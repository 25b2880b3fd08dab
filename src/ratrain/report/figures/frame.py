"""What all figures share: a heading with a sentence, legends, charts to be drawn by the script."""

from __future__ import annotations

from collections.abc import Iterable

from ratrain.describe.units import format_bytes, format_time
from ratrain.report.html import Child, Markup, join, tag

UNKNOWN = "-"


def section(key: str, heading: str, lead: Child, *children: Child | Iterable[Child]) -> Markup:
    """A part of the page. `lead` says in a sentence what there is to see."""
    return tag(
        "section",
        tag("h2", heading, id=f"{key}-heading"),
        tag("p", lead, class_="lead") if lead else None,
        *children,
        id=key,
        aria_labelledby=f"{key}-heading",
    )


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Colours with their names; a colour is a class of the style sheet."""
    return tag(
        "ul",
        (tag("li", tag("i", class_=f"key {colour}"), name) for colour, name in entries),
        class_="legend",
    )


def chart(kind: str, label: str, *, heading: str = "", zoom: bool = False) -> Markup:
    """An empty place that the script draws in. It can be reached and moved about by keyboard."""
    keys = " Arrow keys move, plus and minus zoom, 0 shows all." if zoom else ""
    return tag(
        "div",
        tag(
            "div",
            tag("h3", heading) if heading else tag("span"),
            _zoom_buttons() if zoom else None,
            class_="chart-head",
        )
        if heading or zoom
        else None,
        tag(
            "div",
            class_="plot",
            data_chart=kind,
            tabindex="0",
            role="img",
            aria_label=f"{label}.{keys} A table below has the figures.",
        ),
        class_="chart",
    )


def _zoom_buttons() -> Markup:
    ways = (
        ("in", "Zoom in", "+"),
        ("out", "Zoom out", "−"),
        ("left", "Earlier", "←"),
        ("right", "Later", "→"),
        ("all", "Show all", "all"),
    )
    return tag(
        "div",
        (
            tag("button", sign, type="button", data_zoom=way, aria_label=label, title=label)
            for way, label, sign in ways
        ),
        class_="zoom",
    )


def size(size_bytes: float | None) -> str:
    return UNKNOWN if size_bytes is None else format_bytes(size_bytes)


def time(time_s: float | None) -> str:
    return UNKNOWN if time_s is None else format_time(time_s)


def number(value: float | None) -> str:
    """A loss."""
    return UNKNOWN if value is None else f"{value:.4f}"


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def notes(lines: Iterable[str]) -> Markup | None:
    """Small print under a figure."""
    paragraphs = [tag("p", line, class_="note") for line in lines]
    return join(paragraphs) if paragraphs else None
