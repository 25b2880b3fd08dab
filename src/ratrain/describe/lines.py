"""Text in lines of at most 80 columns, in which a number and its unit stay together."""

from __future__ import annotations

import re
from textwrap import wrap

WIDTH = 80
_NO_BREAK = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[num]?s|min|h|[kMGTPE]?FLOP/s|(?:[kKMGTP]i?)?B(?:/s)?|tokens/s)(?![\w/]))"
)


def wrapped(line: str, indent: str = "  ", width: int = WIDTH) -> list[str]:
    """A line cut at spaces into lines of at most `width` columns; those after the first begin with
    `indent`."""
    joined = _BEFORE_UNIT.sub(_NO_BREAK, line)
    parts = wrap(joined, width, subsequent_indent=indent, break_on_hyphens=False)
    return [part.replace(_NO_BREAK, " ") for part in parts] or [""]
