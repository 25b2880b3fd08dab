"""Installs a lock file's packages with pip, and says which one it is at, how far, and how long.

    .venv/bin/python scripts/install.py requirements.lock

Modules are not compiled: for torch alone that would take a minute, and few of its modules are ever
imported. `import_once.py` does it for those. All that pip says is in .venv/pip.log.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import TextIO

PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
LOG = Path(sys.prefix) / "pip.log"
PACKAGES = Path(sysconfig.get_path("purelib"))
LINE_EVERY_S = 5.0
SIZE = re.compile(r"(?:Downloading|Using cached) .*\((.+)\)")
PACKAGE = re.compile(r"(?:Collecting|Requirement already satisfied:|Processing) (?:.*/)?([\w.]+)")


class Installation:
    """How far pip is, by what it prints, and then by the packages that have appeared."""

    def __init__(self, lock: Path) -> None:
        self.lock = lock
        self._names = [line.partition("==")[0] for line in lock.read_text().split()]
        self._began_s = time.monotonic()
        self._fetched, self._there = 0, 0
        self._unpacking: list[str] = []
        """Once pip has fetched all: what it unpacks, in this order."""
        self._doing = "starting pip"

    def take(self, line: str) -> None:
        """A line of pip's."""
        if package := PACKAGE.match(line):
            self._fetched += 1
            self._doing = f"fetching {package[1]}"
        elif size := SIZE.search(line):
            self._doing += f" ({size[1]})"
        elif line.startswith("Installing collected packages:"):
            self._there = installed()
            self._unpacking = line.partition(":")[2].strip().split(", ")

    def words(self) -> str:
        """ "12/38  fetching torch (200 MB)  0:34"."""
        done, total = self._fetched, max(self._fetched, len(self._names))
        if self._unpacking:
            total = len(self._unpacking)
            done = min(max(installed() - self._there, 0), total - 1)
            self._doing = f"unpacking {self._unpacking[done]}"
        return f"  {done:>3}/{total}  {self._doing}  {self._clock()}"

    def verdict(self) -> str:
        """What is said when pip has ended well."""
        count, new = len(self._names), len(self._unpacking)
        return f"  {count}/{count}  all packages are there ({new} new)  {self._clock()}"

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._began_s)
        return f"{seconds // 60}:{seconds % 60:02}"


def installed() -> int:
    """How many packages are there."""
    return sum(1 for _ in PACKAGES.glob("*.dist-info"))


def show(installation: Installation, ended: threading.Event, stream: TextIO) -> None:
    """Keeps one line of a terminal up to date; elsewhere prints one every few seconds."""
    in_place = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    while not ended.wait(0.2 if in_place else LINE_EVERY_S):
        columns = shutil.get_terminal_size().columns - 1
        words = installation.words()[:columns]
        stream.write(f"\r{words}\x1b[K" if in_place else f"{words}\n")
        stream.flush()
    if in_place:
        stream.write("\r\x1b[K")


def install(lock: Path) -> int:
    """Pip's exit status."""
    installation, ended = Installation(lock), threading.Event()
    shower = threading.Thread(target=show, args=(installation, ended, sys.stdout))
    with LOG.open("w") as log:
        pip = subprocess.Popen(
            [*PIP, "--progress-bar", "off", "-r", str(lock)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        shower.start()
        try:
            for line in pip.stdout or ():
                log.write(line)
                installation.take(line.strip())
            status = pip.wait()
        finally:
            ended.set()
            shower.join()
    if status == 0:
        print(installation.verdict())
    return status


def main() -> None:
    try:
        status = install(Path(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; run it again to go on")
    if status:
        sys.stderr.write("".join(LOG.read_text().splitlines(keepends=True)[-15:]))
        sys.exit(f"error: pip ended with status {status}; all that it said is in\n  {LOG}")


if __name__ == "__main__":
    main()
