"""What a lab has made, written down before it is made, so that it can always be removed.

One file for each lab in /run/ratrain-lab. A lab is stale when the process that made it is gone.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.lab import groups
from ratrain.readers.json import read_json_table
from ratrain.readers.processes import process_state

FOLDER = Path("/run/ratrain-lab")


@dataclass(frozen=True)
class Record:
    """A lab's name, its maker, and what is to be removed."""

    name: str
    pid: int
    started: int  # when the maker started, in the kernel's ticks: a process id comes again
    namespaces: tuple[str, ...]
    outside: str  # the interface in the launcher's namespace
    cgroups: tuple[str, ...]

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.json"

    def is_stale(self) -> bool:
        return start_ticks(self.pid) != self.started


def start_ticks(pid: int) -> int | None:
    """When the process started, in ticks since boot; None: it has ended."""
    process = process_state(pid)
    return None if process is None or process.has_ended else process.started_ticks


@contextmanager
def alone() -> Generator[None]:
    """No other lab is made or removed meanwhile: names and networks are chosen here."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(record: Record) -> None:
    """Write it down, whole or not at all."""
    draft = record.file.with_suffix(".new")
    draft.write_text(json.dumps(asdict(record)))
    draft.rename(record.file)


def records() -> list[Record]:
    """All labs of this machine; a file that is not a record is left alone."""
    loaded: list[Record] = []
    for file in sorted(FOLDER.glob("ratlab-*.json")) if FOLDER.is_dir() else []:
        try:
            loaded.append(load(Record, *read_json_table(file)))
        except SpecError:
            continue
    return loaded


def remove(record: Record) -> None:
    """Remove all that the lab made: processes first, then groups and networks, then the record.

    A group that cannot be removed is an error at the end; the record then stays.
    """
    try:
        for folder in record.cgroups:
            groups.remove(Path(folder))
    finally:
        _quietly("ip", "link", "del", record.outside)
        for space in record.namespaces:
            _quietly("ip", "netns", "del", space)
    record.file.unlink(missing_ok=True)


def clean() -> list[str]:
    """Remove the labs whose makers are gone; their names."""
    with alone():
        stale = [record for record in records() if record.is_stale()]
        for record in stale:
            remove(record)
    return [record.name for record in stale]


def _quietly(*command: str) -> None:
    """What was never made, or is gone already, need not be removed."""
    subprocess.run(command, capture_output=True, check=False)
