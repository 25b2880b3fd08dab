"""docs/reference/json.md as data, and the keys of a JSON document.

A heading names one verb or several. An item names keys, `a.{b, c}` two of them; a line that begins
with "With" or "Where" says when those below it are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
_SECTION = re.compile(
    r"^## (`[a-z ]+`(?:, `[a-z ]+`)*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL
)
_ITEM = re.compile(r"^(?:(With.+|Where.+):|- (`[^`]+`(?: `[^`]+`)*)(?:: (.+))?)$", re.MULTILINE)
_SEVERAL = re.compile(r"(.*)\{(.+)\}$")


@dataclass(frozen=True)
class Key:
    """A key as the page writes it: `plans[].plan.data`. `*` stands for any one key, `**` for
    whatever stands below."""

    path: str
    words: str

    @property
    def always(self) -> bool:
        """Whether it is in every document of its verb."""
        return not self.words.startswith(("with ", "where "))

    @property
    def said_with(self) -> bool:
        """Whether it depends on what the command line says alone."""
        return self.words.startswith("with ")

    def covers(self, path: str) -> bool:
        """Whether a path that came out is this key; or this key is below one that is empty."""
        if self.path.endswith("**"):
            return re.match(_pattern(self.path[:-2]), path) is not None
        return re.fullmatch(_pattern(self.path), path) is not None

    def is_below(self, path: str) -> bool:
        """Whether the path leads to this key, and stands for it: null, or a list without items."""
        parents = re.split(r"(?=\.|\[\])", self.path)
        return any(
            re.fullmatch(_pattern("".join(parents[:n])), path) for n in range(1, len(parents))
        )


def _pattern(path: str) -> str:
    return re.escape(path).replace(r"\*", r"[^.\[\]]+")


def documented() -> dict[str, list[Key]]:
    """The keys of each verb's section."""
    return {
        verb: list(_keys(section[2]))
        for section in _SECTION.finditer(PAGE.read_text())
        for verb in re.findall(r"`(.+?)`", section[1])
    }


def _keys(section: str) -> Iterator[Key]:
    when = ""
    for item in _ITEM.finditer(section):
        when = (item[1] or "").lower() or when
        words = item[3] or ""
        own = words if words.startswith(("with ", "where ")) else when or words
        for path in re.findall(r"`(.+?)`", item[2] or ""):
            several = _SEVERAL.match(path)
            for last in several[2].split(", ") if several else [""]:
                yield Key(f"{several[1]}{last}" if several else path, own)


def paths_of(value: Any, path: str = "") -> Iterator[str]:
    """The path of every value that is no table and no list; and of empty ones."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from paths_of(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from paths_of(inner, f"{path}[]")
    else:
        yield path
