"""A run watched from outside: what its places sent and computed between two of its steps."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ratrain.lab import Lab

INTERVAL_S = 0.05


@dataclass(frozen=True)
class Counters:
    """Running counts at one moment, by rank."""

    step: int
    sent_bytes: tuple[int, ...]
    cpu_s: tuple[float, ...]
    busy_s: float  # all processors of the machine
    time_s: float


class Watch:
    """Looks at a run until its step `last`; counts from the end of step `first` - 1 on."""

    def __init__(self, lab: Lab, metrics: Path, first: int, last: int) -> None:
        self._lab, self._metrics, self._first, self._last = lab, metrics, first, last
        self._begin: Counters | None = None
        self._end: Counters | None = None
        self.peak_bytes = 0  # resident, of the fullest process, its imports included

    def look(self) -> None:
        """Called now and then while the run goes on."""
        if self._end is not None and self._end.step >= self._last:
            return
        step = _lines(self._metrics)
        if step < self._first:
            return
        if self._begin is None:
            self._begin = self._counters(step)
        elif step > self._begin.step and (self._end is None or step > self._end.step):
            latest = self._counters(step)
            if all(now >= then for now, then in zip(latest.cpu_s, self._begin.cpu_s, strict=True)):
                self._end = latest  # else a rank has left by now, and its count with it
        self.peak_bytes = max(self.peak_bytes, *map(self._peak, range(len(self._lab.places))))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Looks from a thread of its own, for as long as the `with` block runs."""
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(INTERVAL_S):
                self.look()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def sent_bytes(self) -> float:
        """A step, by the rank that sends most."""
        begin, end, steps = self._between()
        return max(b - a for a, b in zip(begin.sent_bytes, end.sent_bytes, strict=True)) / steps

    @property
    def cpu_s(self) -> float:
        """A step, of the rank that computes most."""
        begin, end, steps = self._between()
        return max(b - a for a, b in zip(begin.cpu_s, end.cpu_s, strict=True)) / steps

    @property
    def others_part(self) -> float:
        """The part of the machine's processors that was not the run's."""
        begin, end, _ = self._between()
        if begin is end:
            return 0.0  # steps too short to be seen twice
        own_s = sum(end.cpu_s) - sum(begin.cpu_s)
        spent_s = end.busy_s - begin.busy_s - own_s
        return max(0.0, spent_s) / ((end.time_s - begin.time_s) * (os.cpu_count() or 1))

    def _between(self) -> tuple[Counters, Counters, int]:
        if self._begin is None or self._end is None:
            nothing = Counters(0, (0,), (0.0,), 0.0, time.monotonic() - 1)
            return nothing, nothing, 1
        return self._begin, self._end, self._end.step - self._begin.step

    def _counters(self, step: int) -> Counters:
        ranks = range(len(self._lab.places))
        return Counters(
            step,
            tuple(self._sent(rank) for rank in ranks),
            tuple(self._cpu(rank) for rank in ranks),
            busy_s(),
            time.monotonic(),
        )

    def _sent(self, rank: int) -> int:
        place = self._lab.places[rank]
        text = subprocess.run(
            ["ip", "netns", "exec", place.namespace, "cat", "/proc/net/dev"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        return interface_bytes(text, place.interface)

    def _pids(self, rank: int) -> list[str]:
        listed = Path(self._lab.places[rank].cgroups[0]) / "cgroup.procs"
        return listed.read_text().split() if listed.exists() else []

    def _cpu(self, rank: int) -> float:
        ticks = 0
        for pid in self._pids(rank):
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _peak(self, rank: int) -> int:
        peak = 0
        for pid in self._pids(rank):
            with suppress(OSError, StopIteration):
                peak = max(peak, status_bytes("VmHWM", pid))
        return peak


def interface_bytes(dev: str, name: str) -> int:
    """Bytes sent by an interface, from the text of /proc/net/dev; 0 where it is not there."""
    for line in dev.splitlines():
        if name and line.strip().startswith(f"{name}:"):
            return int(line.split(":")[1].split()[8])
    return 0


def busy_s() -> float:
    """Seconds that all processors together have worked, or were withheld, since boot."""
    fields = Path("/proc/stat").read_text().split()[1:9]
    user, nice, system, _, _, irq, soft, steal = map(int, fields)
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def status_bytes(key: str, pid: str = "self") -> int:
    """A size that /proc/PID/status names, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
