"""Lines of a terminal that are drawn again and again in place, and erased at the end.

The cursor rests at the first cell of the first line. However a terminal rearranges its text when
it gets narrower, everything from the cursor on is ours: erasing it leaves nothing behind. (rich's
`Live` rests below its lines and counts upwards, which leaves remains once a line has wrapped.)
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOBase
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

Picture = Callable[[int], "RenderableType | None"]
"""What to draw in a given number of columns; None: nothing yet."""
EVERY_S = 0.2
_ERASE = "\r \x1b[J\r\x1b[K"
"""From the second cell on, then the first: tmux keeps a whole screen that is erased from its first
cell in its history."""


def can_move_cursor(stream: TextIO) -> bool:
    """Whether the stream is a terminal that lines can be drawn in."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


@contextmanager
def live(stream: TextIO, picture: Picture) -> Generator[None]:
    """Draws what `picture` returns until the block ends. What the block prints meanwhile appears
    above it."""
    lines = _LiveLines(stream, picture)
    out, err = _Above(lines, sys.stdout), _Above(lines, sys.stderr)
    lines.start()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        lines.stop()
        out.end()
        err.end()


class _LiveLines:
    """Draws from a thread of its own, so that clocks run on while no report comes."""

    def __init__(self, stream: TextIO, picture: Picture) -> None:
        from rich.console import Console

        self._stream, self._picture = stream, picture
        self._console = Console(file=stream)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._drawn = False
        self._thread = threading.Thread(target=self._run, name="live lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()  # nothing is drawn from here on, so a Ctrl-C in the wait leaves nothing
        try:
            self._thread.join()
        finally:
            with self._lock:
                self._write("")

    def print_above(self, text: str, stream: TextIO) -> None:
        with self._lock:
            self._write("")
            stream.write(text)
            stream.flush()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            columns, rows = _size(self._stream)
            picture = self._picture(columns)
            if picture is not None:
                with self._lock:
                    if not self._ended.is_set():
                        self._write(self._rendered(picture, columns, rows))

    def _rendered(self, picture: RenderableType, columns: int, rows: int) -> str:
        with self._console.capture() as captured:
            self._console.print(picture, width=columns)
        lines = captured.get().rstrip("\n").split("\n")[:rows]
        cursor_up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        return "\r\n".join(lines) + cursor_up + "\r"

    def _write(self, text: str) -> None:
        """Erases what stands there, then draws; in one write, so that nothing flickers."""
        if text or self._drawn:
            with suppress(OSError):  # the terminal was closed; the work goes on
                self._stream.write(_ERASE + text)
                self._stream.flush()
        self._drawn = bool(text)


class _Above(TextIOBase):
    """A stream whose whole lines appear above the live ones."""

    def __init__(self, lines: _LiveLines, stream: TextIO) -> None:
        self._lines, self._stream = lines, stream
        self._begun = ""

    def write(self, text: str, /) -> int:
        lines, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            self._lines.print_above(lines + newline, self._stream)
        return len(text)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def end(self) -> None:
        """Prints a line that was begun and not ended."""
        self._stream.write(self._begun)
        self._begun = ""


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows to draw in. The last column stays free: some terminals wrap there."""
    columns, rows = 0, 0
    with suppress(OSError):  # the terminal was closed
        columns, rows = os.get_terminal_size(stream.fileno())
    return max((columns or 80) - 1, 1), max((rows or 24) - 1, 1)
