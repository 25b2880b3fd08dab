"""The page: one HTML file with all it needs in it, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import json
from functools import cache
from hashlib import sha256
from pathlib import Path

from ratrain import __version__
from ratrain.readers.writing import write_whole
from ratrain.report.contents import Contents
from ratrain.report.data import data_of
from ratrain.report.figures.choices import advice_section, candidates_section
from ratrain.report.figures.head import head
from ratrain.report.figures.memory import memory_section
from ratrain.report.figures.plan import plan_section
from ratrain.report.figures.progress import progress_section
from ratrain.report.figures.records import (
    checkpoints_section,
    experts_section,
    left_out_section,
    samples_section,
    versions_section,
)
from ratrain.report.figures.timeline import timeline_section
from ratrain.report.figures.times import times_section
from ratrain.report.groups import MEMORY_GROUPS
from ratrain.report.html import Markup, Styles, join, tag
from ratrain.timeline import palette
from ratrain.timeline.palette import OP_CLASSES, WAITS, Colour, colour_of, ink_on

_HERE = Path(__file__).parent
_SCRIPTS = (
    "theme.js",
    "plots.js",
    "timeline.js",
    "memory.js",
    "progress.js",
    "candidates.js",
    "main.js",
)


def write_page(contents: Contents, path: Path) -> int:
    """Writes the page, whole or not at all; returns its size in bytes."""
    text = page(contents)
    write_whole(path, text)
    return len(text.encode())


def page(contents: Contents) -> str:
    """The page's text."""
    styles = Styles()
    sections = _sections(contents, styles)
    titles = {
        "plan": "Plan",
        "timeline": "Timeline",
        "times": "Time",
        "experts": "Experts",
        "memory": "Memory",
        "progress": "Progress",
        "advice": "What binds",
        "candidates": "Layouts",
        "checkpoints": "Checkpoints",
        "samples": "Samples",
        "versions": "Versions",
    }
    body = join(
        tag("a", "Skip to the figures", href="#main", class_="skip"),
        head(contents),
        tag(
            "nav",
            (tag("a", titles[key], href=f"#{key}") for key in sections if key in titles),
            aria_label="Parts of this page",
        ),
        tag("main", sections.values(), id="main"),
        tag(
            "footer",
            f"Made by RATrain {__version__}. Charts: uPlot 1.6.32, MIT licence; its text is at the "
            "end of this file.",
        ),
    )
    return _document(contents.title, body, styles, data_of(contents))


def _sections(contents: Contents, styles: Styles) -> dict[str, Markup]:
    sections: dict[str, Markup | None] = {
        "plan": plan_section(contents.plan, styles) if contents.plan else None,
        "timeline": timeline_section(contents.panels, contents.trace_command)
        if contents.panels
        else None,
        "times": times_section(contents.times, styles) if contents.times else None,
        "experts": experts_section(contents.experts) if contents.experts else None,
        **{
            f"memory{number or ''}": memory_section(memory, number, styles)
            for number, memory in enumerate(contents.memory)
        },
        "progress": progress_section(contents.progress) if contents.progress else None,
        "advice": advice_section(contents.advice) if contents.advice else None,
        "candidates": candidates_section(contents.candidates) if contents.candidates else None,
        "checkpoints": checkpoints_section(contents.checkpoints)
        if contents.checkpoints is not None
        else None,
        "samples": samples_section(contents.samples) if contents.samples else None,
        "versions": versions_section(contents.versions) if contents.versions else None,
        "left-out": left_out_section(contents.left_out),
    }
    return {key: section for key, section in sections.items() if section is not None}


def _document(title: str, body: Markup, styles: Styles, data: object) -> str:
    style = "".join((_vendor("uPlot.min.css"), colours(), _asset("page.css"), styles.text()))
    library, script = _vendor("uPlot.iife.min.js"), _script()
    policy = (
        "default-src 'none'; "
        f"script-src {_hash(library)} {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    # "<" could end the element that holds the data.
    data_text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    parts = (
        "<!doctype html>\n",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        tag("title", f"{title} - RATrain"),
        f"<style>{style}</style></head>\n",
        tag("body", body)[: -len("</body>")],
        f'\n<script type="application/json" id="data">{data_text}</script>\n',
        f"<script>{library}</script>\n<script>{script}</script>\n",
        f"</body></html>\n<!--\nuPlot\n{_vendor('LICENSE')}\n-->\n",
    )
    return "".join(parts)


def _hash(text: str) -> str:
    """The policy's name of an inline script or style."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def _script() -> str:
    """Our script: its files one after the other, in one function."""
    parts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


@cache
def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")


@cache
def _vendor(name: str) -> str:
    return (_HERE / "vendor" / "uplot" / name).read_text(encoding="utf-8").rstrip("\n")


def colours() -> str:
    """The palette as variables of the style sheet, and a class for each colour."""
    colour_of = _named_colours()
    light = "".join(f"--{name}:{colour.light};" for name, colour in colour_of.items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in colour_of.items())
    classes = "".join(
        f".{name}{{background:var(--{name})}}"
        for name in colour_of
        if name[:2] in ("o-", "t-", "m-", "p-")
    )
    inks = [
        (kind.key, Colour(ink_on(kind.colour.light), ink_on(kind.colour.dark)))
        for kind in OP_CLASSES
    ]
    light += "".join(f"--ink-{key}:{ink.light};" for key, ink in inks)
    dark += "".join(f"--ink-{key}:{ink.dark};" for key, ink in inks)
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{classes}"
    )


def _named_colours() -> dict[str, Colour]:
    return {
        "background": palette.BACKGROUND,
        "ink": palette.INK,
        "muted": palette.MUTED,
        "line": palette.LINE,
        "good": palette.GOOD,
        "bad": palette.BAD,
        "surface": palette.SURFACE,
        **{f"o-{kind.key}": kind.colour for kind in OP_CLASSES},
        "o-idle": palette.IDLE,
        "o-critical": palette.CRITICAL,
        **{f"t-{kind}": colour_of(entry) for kind, entry in WAITS.items()},
        **{f"m-{group.key}": group.colour for group in MEMORY_GROUPS},
        "p-chosen": palette.CRITICAL,
        "p-simulated": palette.FORWARD.colour,
        "p-fits": palette.WAITING,
        "p-misfit": palette.RECOVERY.colour,
    }
