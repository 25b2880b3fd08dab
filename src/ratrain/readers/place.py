"""The place of a value in what a user wrote: the file, the line, and the keys down to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class Twice:
    """A key that appears twice in one table."""

    keys: Keys
    lines: tuple[int, int]

    def in_words(self, first_line: int = 1) -> str:
        """Where, of a text that begins in `first_line` of its file."""
        first, second = (line + first_line - 1 for line in self.lines)
        return f"in lines {first} and {second}" if first != second else f"in line {first}"


class Lines:
    """The line of each key. They are looked for when they are first asked for: only an error asks.

    `first` is the file's line on which the text begins.
    """

    def __init__(
        self, look: Callable[[], Mapping[Keys, int]] | None = None, first: int = 1
    ) -> None:
        self._look = look
        self._before = first - 1

    @cached_property
    def _known(self) -> Mapping[Keys, int]:
        return self._look() if self._look else {}

    def of(self, keys: Keys) -> int | None:
        """The line of the innermost of these keys whose line is known."""
        for depth in range(len(keys), -1, -1):
            if (line := self._known.get(keys[:depth])) is not None:
                return line + self._before
        return None


@dataclass(frozen=True)
class Place:
    """`job.toml:12 [cluster] devices`: the file, the line where it is known, and the keys."""

    file: str = ""
    lines: Lines = field(default_factory=Lines, compare=False)
    keys: Keys = ()
    form: Literal["toml", "json"] = "toml"
    overrides: frozenset[Keys] = frozenset()  # keys whose values the command line gave

    def at(self, *keys: str | int) -> Place:
        """The place further in by these keys (or indices of lists)."""
        return replace(self, keys=(*self.keys, *keys))

    def overridden(self, keys: Keys) -> Place:
        """The same place, where a value comes from `--set`."""
        return replace(self, overrides=self.overrides | {keys})

    def written(self, key: str | int, value: str) -> str:
        """A key and its value as this form of file has them."""
        return f'"{key}": {value}' if self.form == "json" else f"{key} = {value}"

    @property
    def table_word(self) -> str:
        """What this form of file calls a table."""
        return "an object" if self.form == "json" else "a table"

    def __str__(self) -> str:
        if any(self.keys[:depth] in self.overrides for depth in range(1, len(self.keys) + 1)):
            return f"--set {'.'.join(map(str, self.keys))}"
        line = self.lines.of(self.keys)
        tables, last = self.keys[:-1], self.keys[-1:]
        table = ".".join(_shown(key) for key in tables)
        return " ".join(
            part
            for part in (
                self.file + (f":{line}" if line else ""),
                f"[{table}]" if table else "",
                *map(_shown, last),
            )
            if part
        )


def _shown(key: str | int) -> str:
    """A key as one word; one that is empty or has blanks in quotes."""
    text = str(key)
    return text if text and not any(c.isspace() for c in text) else repr(text)
