"""A program in a terminal of its own, and what a person would have seen there."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

ROWS = 30
BAR = frozenset("━╸╺")


class _Screen(pyte.HistoryScreen):
    """A screen that remembers what has scrolled off, and which lines were too long for it."""

    def __init__(self, columns: int) -> None:
        super().__init__(columns, ROWS, history=100_000, ratio=0.5)
        self.wrapped: list[str] = []
        self._drawing = False

    def draw(self, data: str) -> None:
        self._drawing = True
        super().draw(data)
        self._drawing = False

    def linefeed(self) -> None:
        if self._drawing:
            self.wrapped.append(self.display[self.cursor.y])
        super().linefeed()

    def all_lines(self) -> list[str]:
        """All lines from the first on, without the blanks at their ends."""
        gone = ("".join(row[x].data for x in range(self.columns)) for row in self.history.top)
        text = "\n".join(line.rstrip() for line in (*gone, *self.display)).rstrip()
        return text.split("\n")


class Terminal:
    """Runs a program under a pseudo-terminal of so many columns and follows its screen.

    With `stdout`, only the program's stderr and stdin are the terminal's.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        columns: int,
        folder: Path,
        stdout: Path | None = None,
        **variables: str,
    ) -> None:
        self._screen = _Screen(columns)
        self._stream = pyte.ByteStream(self._screen)
        self._fd, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (ROWS, columns))
        environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        environment |= {"TERM": "xterm-256color", "XDG_CACHE_HOME": str(folder / "cache")}
        output = stdout.open("wb") if stdout else None
        self._process = subprocess.Popen(
            arguments,
            cwd=folder,
            env=environment | variables,
            stdin=theirs,
            stdout=output or theirs,
            stderr=theirs,
            preexec_fn=_take_terminal,
        )
        if output:
            output.close()
        os.close(theirs)
        self.raw = b""
        self.status: int | None = None
        self.most_bars = 0
        """The largest number of progress bars that stood on the screen at once."""
        self.bars_seen: list[str] = []
        """Every line with a bar that was ever there."""

    @property
    def lines(self) -> list[str]:
        return self._screen.all_lines()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def wrapped(self) -> list[str]:
        """Lines that were longer than the terminal is wide."""
        return self._screen.wrapped

    def bars(self) -> list[str]:
        """Lines of the screen that hold a progress bar."""
        return [line for line in self._screen.display if BAR & set(line)]

    def follow(self, until: Callable[[Terminal], bool] = lambda _: False, limit_s: float = 250):
        """Follows the screen until it shows something, or until the program has ended."""
        deadline_s = time.monotonic() + limit_s
        while not until(self):
            if not select.select([self._fd], [], [], max(deadline_s - time.monotonic(), 0))[0]:
                self.kill()
                raise AssertionError(f"not there after {limit_s} s:\n{self.text}")
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            self.raw += data
            self._stream.feed(data)
            bars = self.bars()
            self.most_bars = max(self.most_bars, len(bars))
            self.bars_seen += bars

    def end(self, limit_s: float = 250) -> int:
        """Follows the program to its end; its exit status."""
        if self.status is not None:
            return self.status
        self.follow(limit_s=limit_s)
        self.status = self._process.wait(timeout=limit_s)
        os.close(self._fd)
        return self.status

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def resize(self, columns: int) -> None:
        self._screen.resize(ROWS, columns)
        termios.tcsetwinsize(self._fd, (ROWS, columns))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _take_terminal() -> None:
    """In the new process: a session of its own, so that its terminal can send it signals."""
    os.setsid()
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def ratrain(*arguments: str | Path) -> list[str]:
    """The command line, as its entry point starts it."""
    code = "from ratrain.cli.main import main; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]
