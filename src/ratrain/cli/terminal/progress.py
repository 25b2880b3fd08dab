"""Progress on stderr: how much is done, how fast, and how long it will take.

A terminal shows a bar once the work has taken half a second. One that cannot move its cursor
(TERM=dumb) gets a line every few seconds; a pipe or a file gets nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.interruption import raise_if_interrupted
from ratrain.cli.terminal.live import can_move_cursor, live
from ratrain.compiled import SLOWER, slow_twins
from ratrain.describe.units import clock_of

if TYPE_CHECKING:
    from rich.console import RenderableType

Report = Callable[[int, int], None]
SHOWN_AFTER_S = 0.5
NOTED_AFTER_S = 2.0
LINE_EVERY_S = 5.0
BAR_COLUMNS = 16
_noted = threading.Event()


@contextmanager
def progress(title: str, unit: str = "") -> Generator[Report]:
    """A callback of (done, total) that says how far the work is, in `unit`s; "B" is bytes.

    Work whose total is not known never calls it, and is shown with the time that it has taken.
    """
    meter = Meter(title, unit)
    if can_move_cursor(sys.stderr):
        display = _bar(meter)
    elif sys.stderr.isatty():
        display = _lines(meter)
    else:
        display = nullcontext()
    with display, _slowness_noted(meter):
        yield meter.report


@contextmanager
def _slowness_noted(meter: Meter) -> Generator[None]:
    """Says once, of work that lasts, that it would be quicker if the C parts were compiled."""
    timer = threading.Timer(NOTED_AFTER_S, _note_slowness)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if meter.elapsed_s >= NOTED_AFTER_S:
            _note_slowness()


def _note_slowness() -> None:
    parts = slow_twins()
    if parts and not _noted.is_set():
        _noted.set()
        click.echo(f"note: {', '.join(parts)} not compiled: {SLOWER}", err=True)


@contextmanager
def _bar(meter: Meter) -> Generator[None]:
    def picture(columns: int) -> RenderableType | None:
        return bar_line(meter, columns) if meter.elapsed_s >= SHOWN_AFTER_S else None

    with live(sys.stderr, picture):
        yield


@contextmanager
def _lines(meter: Meter) -> Generator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(LINE_EVERY_S):
            click.echo("  ".join(meter.words()), err=True)

    thread = threading.Thread(target=run, name="progress lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@dataclass
class Meter:
    """How far a piece of work is. The rate is the mean since the first report."""

    title: str
    unit: str
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    total: int = 0
    """0: not known yet."""
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self._counted_from_s = self.clock()

    def report(self, done: int, total: int) -> None:
        """So much is done now. A first report of nothing done starts the rate's clock."""
        raise_if_interrupted()
        if not done:
            self._counted_from_s = self.clock()
        self.done, self.total = done, total

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self._began_s

    @property
    def fraction(self) -> float | None:
        """Of the work; None where its total is not known. Never more than 1."""
        return min(self.done / self.total, 1.0) if self.total > 0 else None

    @property
    def rate(self) -> float:
        """Units per second; 0 where nothing is done yet."""
        counted_s = self.clock() - self._counted_from_s
        return self.done / counted_s if counted_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Until the end; None where nobody can know."""
        if self.fraction is None or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate

    def words(self) -> list[str]:
        """What a line says, the most important first."""
        left_s = self.left_s
        if left_s is None:
            words = [self.title, f"{clock_of(int(self.elapsed_s))} so far"]
        else:
            words = [self.title, f"{clock_of(left_s)} left"]
        if self.total > 0:
            words.append(_amount(self.done, self.total, self.unit))
        if self.rate:
            words.append(_rate(self.rate, self.unit))
        return words


def bar_line(meter: Meter, width: int) -> RenderableType:
    """One line of at most `width` columns: what does not fit is left out, the rate first."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    words = meter.words()
    while len(words) > 1 and len("  ".join(words)) > width:
        del words[-1]
    title, *figures = (Text(word, no_wrap=True, overflow="ellipsis") for word in words)
    bar_columns = min(width - len("  ".join(words)) - 2, BAR_COLUMNS)
    bar = ProgressBar(meter.total or None, meter.done, bar_columns, pulse=not meter.total)
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_row(title, *([bar] if bar_columns >= 4 else []), *figures)
    return line


def _amount(done: int, total: int, unit: str) -> str:
    from ratrain.describe.units import format_bytes

    if unit == "B":
        return f"{format_bytes(done)} of {format_bytes(total)}"
    return f"{done:,}/{total:,} {unit}"


def _rate(rate: float, unit: str) -> str:
    from ratrain.describe.units import format_bytes_rate

    if unit == "B":
        return format_bytes_rate(rate)
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s"
