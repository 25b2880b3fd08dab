"""A run while it trains: a live table in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from ratrain.cli.terminal.live import can_move_cursor, live
from ratrain.describe.units import clock_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ratrain.runtime.rank.progress import Progress

PLAIN_EVERY_S = 3.0
TABLE_COLUMNS = 64
STOPPING = "stopping after the current step; press Ctrl-C again to stop at once"

ENDING = "saving the last step, and what the ranks recorded"
"""What goes on once the last step was done."""


class Show(Protocol):
    """Takes a step's figures, or None if there are none new, and whether the run is stopping."""

    def __call__(self, progress: Progress | None, stopping: bool) -> None: ...


@contextmanager
def view(*, to_stderr: bool) -> Generator[Show]:
    """What shows a run: a table in a terminal that can draw one, of which the last step remains as
    a line; lines elsewhere."""
    stream = sys.stderr if to_stderr else sys.stdout
    if not can_move_cursor(stream):
        yield _Plain(to_stderr)
        return
    table = StepTable()
    try:
        with live(stream, table.picture):
            yield table.take
    finally:
        if table.progress is not None:
            from ratrain.runtime.rank.progress import plain_line

            click.echo(plain_line(table.progress), err=to_stderr)


class _Plain:
    """A line for the first step, the last one, and one every few seconds."""

    def __init__(self, to_stderr: bool) -> None:
        self._to_stderr = to_stderr
        self._last_s = -PLAIN_EVERY_S
        self._told_stopping = False
        self._validation: tuple[int, float] | None = None
        self._sampled: tuple[int, str, str] | None = None

    def __call__(self, progress: Progress | None, stopping: bool) -> None:
        if stopping and not self._told_stopping:
            self._told_stopping = True
            click.echo(STOPPING, err=self._to_stderr)
        if progress is None:
            return
        from ratrain.runtime.rank.progress import plain_line, sample_line, validation_line

        if progress.sampled != self._sampled:
            self._sampled = progress.sampled
            click.echo(sample_line(progress), err=self._to_stderr)
            return
        if progress.validation != self._validation:
            self._validation = progress.validation
            click.echo(validation_line(progress), err=self._to_stderr)
            return
        now_s = time.monotonic()
        if now_s - self._last_s >= PLAIN_EVERY_S or progress.step == progress.end_step:
            self._last_s = now_s
            click.echo(plain_line(progress), err=self._to_stderr)


class StepTable:
    """The last step's figures as a table: a row for the run, a row per rank."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self._stopping = False
        self._began_s = time.monotonic()
        self._last_step_s: float | None = None

    def take(self, progress: Progress | None, stopping: bool) -> None:
        self.progress = progress or self.progress
        if progress is not None:
            last = progress.step == progress.end_step
            self._last_step_s = time.monotonic() if last else None
        self._stopping = stopping

    def picture(self, columns: int) -> RenderableType:
        """The table in that many columns; where they are few, the step's line."""
        from rich.console import Group
        from rich.text import Text

        from ratrain.runtime.rank.progress import plain_line, validation_line

        note = [Text(STOPPING, style="yellow")] if self._stopping else []
        if self._last_step_s is not None:
            so_far = clock_of(time.monotonic() - self._last_step_s)
            note = [Text(f"{ENDING}  {so_far} so far")]
        progress = self.progress
        if progress is None:
            so_far = clock_of(time.monotonic() - self._began_s)
            return Group(Text(f"starting the ranks and timing their ops  {so_far} so far"), *note)
        validation = validation_line(progress)
        lines = [Text(validation)] if validation else []
        if columns < TABLE_COLUMNS:
            return Group(Text(plain_line(progress)), *lines, *note)
        return Group(self._steps(progress), *lines, self._ranks(progress), *note)

    def _steps(self, progress: Progress) -> RenderableType:
        from rich.table import Table

        from ratrain.describe.units import format_time

        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("step", "loss", "tokens/s", "step time", "comm. wait", "left"):
            table.add_column(name, justify="right")
        table.add_row(
            f"{progress.step}/{progress.end_step}",
            f"{progress.loss:.4f}",
            f"{progress.tokens_per_s:,.0f}",
            format_time(progress.step_time_s),
            f"{progress.exposed_fraction:.1%}",
            clock_of(progress.left_s),
        )
        return table

    def _ranks(self, progress: Progress) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        from ratrain.describe.units import format_bytes

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for rank, memory in enumerate(progress.memory[:16]):
            budget = memory.budget_bytes
            table.add_row(
                f"rank {rank}",
                ProgressBar(total=1.0, completed=min(memory.fraction, 1.0), width=24),
                format_bytes(memory.peak_bytes) + (f" of {format_bytes(budget)}" if budget else ""),
            )
        return table
