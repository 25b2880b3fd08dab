"""What the kernel tells of a process in /proc/PID/stat (proc(5))."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessState:
    """A process as the kernel saw it."""

    state: str
    """R, S, D, Z (ended, not yet waited for), T or t (stopped), X, I."""
    started_ticks: int
    """Since the machine's boot."""
    processor_ticks: int
    """User and system time of its threads."""

    @property
    def is_stopped(self) -> bool:
        return self.state in "Tt"

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"


def process_state(pid: int) -> ProcessState | None:
    """None: there is no such process, or this system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The second field, the command in parentheses, may hold spaces and parentheses.
        state, *fields = text.rpartition(")")[2].split()
        return ProcessState(state, int(fields[18]), int(fields[10]) + int(fields[11]))
    except (OSError, ValueError, IndexError):
        return None
