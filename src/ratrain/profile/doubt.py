"""Which figures of a profile to doubt: something else ran, or the figure cannot be.

Two signs of a disturbed measurement: the blocks in which a figure was measured disagree, and
other processes took processor time meanwhile (the kernel's own count of the processors that this
process may use, less what it used itself). A third check compares figures with each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ratrain.profile.clock import Timing, timing
from ratrain.profile.quota import processors
from ratrain.readers.numbers import is_number
from ratrain.readers.processes import process_state

SPREAD = 0.6
"""The slowest block may take this much more of the fastest one's time. On a quiet machine most
figures stay below 0.2; a core that is shared with one other process doubles a time."""
OTHERS = 0.2
"""The share of the processors that others may take meanwhile."""
SHORTEST_S = 0.1
"""The kernel counts in hundredths of a second: a shorter watch says nothing about others."""
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Doubt:
    """A figure not to be trusted, and why."""

    figure: str
    why: str


@dataclass
class Watch:
    """Measures figures by name and keeps the doubts about them."""

    doubts: list[Doubt] = field(default_factory=list[Doubt])

    def median_s(self, figure: str, work: Callable[[], object], *, within_s: float = 0.4) -> float:
        """The median seconds of one call of `work`."""
        with self.over(figure) as blocks_s:
            timed = timing(work, within_s=within_s)
            blocks_s += timed.blocks_s
        return timed.median_s

    def timing(self, figure: str, work: Callable[[], object], *, within_s: float = 0.4) -> Timing:
        """As `median_s`, with its blocks."""
        with self.over(figure) as blocks_s:
            timed = timing(work, within_s=within_s)
            blocks_s += timed.blocks_s
        return timed

    @contextmanager
    def over(self, figure: str, helpers: Collection[int] = ()) -> Generator[list[float]]:
        """Watches what is measured inside; its blocks' medians go into the list. `helpers` are
        processes that work for the figure, whose time does not count as others'."""
        blocks_s: list[float] = []
        began, before = time.perf_counter(), _processor_times(helpers)
        yield blocks_s
        passed_s, after = time.perf_counter() - began, _processor_times(helpers)
        others = None
        if before is not None and after is not None:
            others = others_share(before, after, passed_s, processors())
        why = reason(blocks_s, others)
        if why:
            self.doubt(figure, why)

    def doubt(self, figure: str, why: str) -> None:
        self.doubts.append(Doubt(figure, why))


@dataclass(frozen=True)
class ProcessorTimes:
    """Seconds since the machine started: all work on our processors, and our own."""

    all_s: float
    own_s: float


def others_share(
    before: ProcessorTimes, after: ProcessorTimes, passed_s: float, processors: int
) -> float | None:
    """The part of our processors' time that others took; None where it was watched too briefly."""
    if passed_s < SHORTEST_S:
        return None
    others_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(others_s, 0.0) / (passed_s * processors)


def reason(blocks_s: Sequence[float], others: float | None) -> str:
    """Why to doubt a figure; "" where there is no sign of a disturbance."""
    signs: list[str] = []
    if others is not None and others > OTHERS:
        signs.append(f"other processes took {100 * others:.0f} % of the processors")
    if blocks_s and min(blocks_s) > 0 and max(blocks_s) / min(blocks_s) - 1 > SPREAD:
        signs.append(f"repeated measurements varied by {max(blocks_s) / min(blocks_s):.1f} times")
    return "; ".join(signs)


def _processor_times(helpers: Collection[int]) -> ProcessorTimes | None:
    """None where the kernel does not say."""
    try:
        text = _STAT.read_text()
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        allowed = os.sched_getaffinity(0)
        all_s = 0.0
        for line in text.splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and is_number(name[3:]) and int(name[3:]) in allowed:
                user, nice, system, _idle, _wait, interrupt, soft, stolen = map(int, fields[:8])
                all_s += (user + nice + system + interrupt + soft + stolen) * tick_s
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        return ProcessorTimes(all_s, own_s + sum(_process_s(pid, tick_s) for pid in helpers))
    except (OSError, ValueError, AttributeError):
        return None


def _process_s(pid: int, tick_s: float) -> float:
    """Processor time of another process; 0 where it has ended."""
    process = process_state(pid)
    return process.processor_ticks * tick_s if process else 0.0
