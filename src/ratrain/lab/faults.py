"""Faults of a lab's hosts, drawn by a seed: what breaks, where, when, for how long.

A kind of fault is one entry of `FAULTS`. All of them are what happens to real machines: a process
killed for memory, a host without power, one whose kernel hangs, a cable, a neighbour's load.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ratrain.lab.groups import limit_cpus
from ratrain.lab.place import Place

SLOWED_TO = 0.2
"""The part of its processors that a slow host keeps."""


@dataclass(frozen=True)
class Victim:
    """A host of a lab. `down`: the file that is there while it answers nobody; `marker`: a word on
    the command line of the processes that do the work."""

    name: str
    place: Place
    down: Path
    marker: str

    def processes(self) -> list[int]:
        """The ids of all processes of the host."""
        listed = Path(self.place.cgroups[0]) / "cgroup.procs"
        return [int(pid) for pid in listed.read_text().split()]

    def workers(self) -> list[int]:
        """Those that do the work."""
        found: list[int] = []
        for pid in self.processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if self.marker.encode() in words:
                    found.append(pid)
        return found


Act = Callable[[Victim], None]


def _nothing(victim: Victim) -> None:
    """What has happened at once is over at once."""


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill(victim: Victim) -> None:
    _signal(victim.workers(), signal.SIGKILL)


def _power_off(victim: Victim) -> None:
    victim.down.touch()
    _signal(victim.processes(), signal.SIGKILL)


def _hang(victim: Victim) -> None:
    victim.down.touch()
    _signal(victim.processes(), signal.SIGSTOP)


def _reboot(victim: Victim) -> None:
    """What hung is gone; the host answers again."""
    _signal(victim.processes(), signal.SIGKILL)
    victim.down.unlink(missing_ok=True)


def _link(victim: Victim, state: str) -> None:
    lab, _, port = victim.place.namespace.rpartition("-")
    subprocess.run(["ip", "-n", f"{lab}-net", "link", "set", port, state], check=True)


@dataclass(frozen=True)
class FaultKind:
    """How a fault begins and ends, and what it is called; `lasts`: whether it takes time."""

    meaning: str
    begin: Act
    end: Act = _nothing
    lasts: bool = True


FAULTS: dict[str, FaultKind] = {
    "kill": FaultKind("its ranks are killed, as for want of memory", _kill, lasts=False),
    "host": FaultKind("it has no power, and returns", _power_off, _reboot),
    "hang": FaultKind("its kernel hangs, then it is started again", _hang, _reboot),
    "cut": FaultKind(
        "its cable is out", lambda each: _link(each, "down"), lambda each: _link(each, "up")
    ),
    "slow": FaultKind(
        f"something else takes {1 - SLOWED_TO:.0%} of its processors",
        lambda each: limit_cpus(each.place.cgroups, SLOWED_TO * each.place.cpus),
        lambda each: limit_cpus(each.place.cgroups, each.place.cpus),
    ),
}


@dataclass(frozen=True)
class Fault:
    """One that was drawn. `after_s`: since the one before it."""

    kind: str
    host: str
    after_s: float
    lasts_s: float


def drawn_faults(
    seed: int, kinds: Sequence[str], hosts: Sequence[str], every_s: float, lasts_s: float
) -> Iterator[Fault]:
    """Without end: times between half and one and a half of the means, each kind as often as the
    others, any host."""
    draw = random.Random(seed)
    while True:
        kind = draw.choice(sorted(kinds))
        host = draw.choice(sorted(hosts))
        after_s, length_s = every_s * draw.uniform(0.5, 1.5), lasts_s * draw.uniform(0.5, 1.5)
        yield Fault(kind, host, after_s, length_s if FAULTS[kind].lasts else 0.0)
