"""The page about programs shows what its code prints."""

from __future__ import annotations

import contextlib
import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from ratrain.program.kind import Kind
from ratrain.program.verify import Rule

DOCS = Path(__file__).parents[2] / "docs"
PAGE, EXAMPLE = DOCS / "explanation" / "program.md", DOCS / "notes" / "programs.md"


def test_the_worked_example_prints_what_the_page_shows() -> None:
    blocks = re.findall(r"```(python)?\n(.*?)```", EXAMPLE.read_text(), flags=re.S)
    names: dict[str, Any] = {}
    checked = 0
    for (language, code), (_, shown) in pairwise(blocks):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, names)
            assert out.getvalue() == shown
            checked += 1
    assert checked == 2


def test_the_page_lists_every_kind_and_every_finding() -> None:
    words = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    opening = set(re.findall(r"`(\w) ?\w*`", PAGE.read_text()))
    assert not {kind.name for kind in Kind} - words - opening
    assert not {str(rule) for rule in Rule} - words
