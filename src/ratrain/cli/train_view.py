"""A run while it goes: a live table in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ratrain.runtime.run.watch import Progress

PLAIN_EVERY_S = 3.0
_STOPPING = "stopping behind the current step; Ctrl-C again ends at once"


class Show(Protocol):
    """Takes a step's figures, or None where there is nothing new, and whether the run stops."""

    def __call__(self, progress: Progress | None, stopping: bool) -> None: ...


@contextmanager
def view(*, to_stderr: bool) -> Generator[Show]:
    """What shows a run: live where the stream is a terminal."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        yield _Plain(to_stderr)
        return
    with Live("starting the ranks", console=console, refresh_per_second=4) as live:
        shown = Shown()

        def show(progress: Progress | None, stopping: bool) -> None:
            shown.take(progress, stopping)
            live.update(shown.table())

        yield show


class _Plain:
    """The first step, the last one, and one every few seconds, a line each."""

    def __init__(self, to_stderr: bool) -> None:
        self._to_stderr = to_stderr
        self._last_s = -PLAIN_EVERY_S
        self._told_stopping = False

    def __call__(self, progress: Progress | None, stopping: bool) -> None:
        if stopping and not self._told_stopping:
            self._told_stopping = True
            click.echo(_STOPPING, err=self._to_stderr)
        if progress is None:
            return
        now_s = time.monotonic()
        if now_s - self._last_s >= PLAIN_EVERY_S or progress.step == progress.end_step:
            self._last_s = now_s
            click.echo(plain_line(progress), err=self._to_stderr)


def plain_line(progress: Progress) -> str:
    """One step in at most 80 columns; memory is that of the fullest rank."""
    from ratrain.describe.units import format_bytes, format_count

    fullest = progress.fullest
    full = f"{fullest.fraction:.0%}" if fullest.budget_bytes else format_bytes(fullest.peak_bytes)
    return (
        f"step {progress.step}/{progress.end_step}  loss {progress.loss:.3f}  "
        f"{format_count(progress.tokens_per_s)} tok/s  mem {full}  "
        f"exposed {progress.exposed_fraction:.0%}  left {left(progress.left_s)}"
    )


def left(time_s: float) -> str:
    """Time to the end: "0:07", "1:02:03"."""
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Shown:
    """The last step's figures as a table: a row for the run, a row a rank."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._stopping = False

    def take(self, progress: Progress | None, stopping: bool) -> None:
        self._progress = progress or self._progress
        self._stopping = stopping

    def table(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        note = [Text(_STOPPING, style="yellow")] if self._stopping else []
        if self._progress is None:
            return Group(Text("starting the ranks, timing their ops"), *note)
        return Group(self._steps(self._progress), self._ranks(self._progress), *note)

    def _steps(self, progress: Progress) -> RenderableType:
        from rich.table import Table

        from ratrain.describe.units import format_time

        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("step", "loss", "tokens/s", "step time", "exposed", "left"):
            table.add_column(name, justify="right")
        table.add_row(
            f"{progress.step}/{progress.end_step}",
            f"{progress.loss:.4f}",
            f"{progress.tokens_per_s:,.0f}",
            format_time(progress.step_time_s),
            f"{progress.exposed_fraction:.1%}",
            left(progress.left_s),
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
