"""HTML as values: text is escaped unless it was made here.

Widths and places that follow from data cannot stand in `style` attributes, which the page's
policy forbids. They are classes, and `Styles` writes their rules into the one style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from html import escape

_UNIT = re.compile(r"(\d) (%|[kMGTP]?B\b|(?:ns|us|ms|s)\b|tokens/s)")
VOID = frozenset({"meta", "br", "hr", "input", "link"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Markup | None


def tag(name: str, *children: Child | Iterable[Child], **attributes: str | bool | None) -> Markup:
    """An element. `class_` is written `class`; an attribute that is False or None is left out, one
    that is True has no value; `aria_label` is written `aria-label`."""
    attribute_text = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{attribute_text}>")
    return Markup(f"<{name}{attribute_text}>{join(*children)}</{name}>")


def join(*children: Child | Iterable[Child]) -> Markup:
    """Children one after the other."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, str):
            parts.append(child if isinstance(child, Markup) else escape(_whole(child)))
        else:
            parts.append(join(*child))
    return Markup("".join(parts))


def _whole(text: str) -> str:
    """The text with spaces that do not break between a number and its unit."""
    return _UNIT.sub("\\1\u00a0\\2", text)


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'


@dataclass
class Styles:
    """Rules for the classes that stand for numbers."""

    rules: dict[str, str] = field(default_factory=dict[str, str])

    def width(self, share: float) -> str:
        """The class of an element that takes this share of its parent's width."""
        return self._class("w", "width", share)

    def left(self, share: float) -> str:
        """The class of an element that begins at this share of its parent's width."""
        return self._class("l", "left", share)

    def _class(self, letter: str, key: str, share: float) -> str:
        permille = round(min(max(share, 0.0), 1.0) * 2000)
        name = f"{letter}{permille}"
        self.rules[name] = f".{name}{{{key}:{permille / 20:g}%}}"
        return name

    def text(self) -> str:
        return "".join(self.rules.values())


def table(
    head: Iterable[Child],
    rows: Iterable[Iterable[Child]],
    *,
    caption: str = "",
    text: Collection[int] = (0,),
) -> Markup:
    """A table. Columns hold numbers, but for those named in `text`."""

    def row(cells: Iterable[Child], name: str) -> Markup:
        return tag(
            "tr",
            (
                tag(
                    "th" if name == "th" or at == 0 else "td",
                    cell,
                    class_=None if at in text else "n",
                    scope="col" if name == "th" else ("row" if at == 0 else None),
                )
                for at, cell in enumerate(cells)
            ),
        )

    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag("thead", row(head, "th")),
            tag("tbody", (row(cells, "td") for cells in rows)),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or "table",
    )


def details(summary: str, *children: Child | Iterable[Child]) -> Markup:
    """What is folded away until it is asked for."""
    return tag("details", tag("summary", summary), *children)
