"""What a page of the manual asks its reader to write and to type.

A fence ```toml title="job.toml" is a file that the reader writes. A fence ```console holds commands
behind `$ `, each with what it prints: figures may differ, and `...`
stands for any lines, or the rest of one. A comment
before a fence says how it is to be tried:

    <!-- exit 2 -->        the status of its last command, where that is not 0
    <!-- root -->          in a machine that can make labs
    <!-- soak -->          takes long: by `make soak` alone
    <!-- elsewhere: reason -->   needs what no test machine has; never tried
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ratrain.lab.needs import missing

LIMIT_S = 240
_FENCE = re.compile(
    r"((?:^<!-- [^\n]+ -->\n)*)^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_QUANTITY = re.compile(
    r"[-+]?\d[\d,.:]*(?:e[-+]?\d+)?(?: ?(?:[numk]?s|min|[kMG]i?B|%|x|k|tokens/s)\b)?"
)
_BAR = re.compile(r"[#+!.]{6,}")


@dataclass(frozen=True)
class File:
    """What the reader writes."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """What the reader types, and what must come of it."""

    line: str
    status: int
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fence: its steps, and the comments before it."""

    line: int
    steps: tuple[File | Command, ...]
    marks: tuple[str, ...]

    def why_not(self) -> str:
        """Why it is not tried here; nothing where it is."""
        if any(mark.startswith("elsewhere") for mark in self.marks):
            return "elsewhere"
        if "root" in self.marks and missing():
            return "root"
        if "soak" in self.marks and not os.environ.get("RATRAIN_SOAK"):
            return "soak"
        return ""


def blocks(page: Path) -> list[Block]:
    """The files and commands of a page, in order."""
    found: list[Block] = []
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        comments, language, title, body = fence.groups()
        marks = tuple(re.findall(r"<!-- (.+?) -->", comments))
        line = text[: fence.start(4)].count("\n") + 1
        if title:
            found.append(Block(line, (File(title, body),), marks))
        elif language == "console":
            found.append(Block(line, tuple(_commands(body, marks)), marks))
    return found


def _commands(body: str, marks: tuple[str, ...]) -> list[Command]:
    """The commands of a console fence; one whose line ends with a backslash goes on in the next."""
    typed: list[tuple[str, list[str]]] = []
    goes_on = False
    for line in body.splitlines():
        if goes_on:
            typed[-1] = (f"{typed[-1][0]}\n{line}", [])
        elif line.startswith("$ "):
            typed.append((line.removeprefix("$ "), []))
        else:
            assert typed, f"a console block begins with {line!r}"
            typed[-1][1].append(line)
            continue
        goes_on = line.endswith("\\")
    last = next((int(mark.split()[1]) for mark in marks if mark.startswith("exit ")), 0)
    statuses = [0] * (len(typed) - 1) + [last]
    return [
        Command(line, status, tuple(shown))
        for (line, shown), status in zip(typed, statuses, strict=True)
    ]


class Desk:
    """A folder in which a page is worked through, with the examples of the repository."""

    def __init__(self, folder: Path, examples: Path, programs: Path) -> None:
        self._folder = folder
        shutil.copytree(examples, folder / "examples")
        path = f"{programs}:{os.environ['PATH']}"
        cache = str(folder / ".cache")
        self._environment = os.environ | {
            "PATH": path,
            "COLUMNS": "80",
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": cache,
        }

    def do(self, step: File | Command) -> None:
        """Writes the file, or types the command; fails where it is not as the page says."""
        if isinstance(step, File):
            path = self._folder / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
            return
        done = subprocess.run(
            ["bash", "-c", step.line],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        told = f"$ {step.line}\n{done.stdout}"
        assert done.returncode == step.status, f"status {done.returncode}\n{told}"
        assert "Traceback" not in done.stdout, told
        lost = _not_shown(step.shown, done.stdout.splitlines())
        assert lost is None, f"not printed, or not in this place: {lost!r}\n{told}"


def _not_shown(shown: tuple[str, ...], printed: list[str]) -> str | None:
    """The first line of the page that is not printed where it stands; figures may differ."""
    forms = [_form(line) for line in printed]
    at, free = 0, True
    for line in shown:
        if line.strip() == "...":
            free = True
            continue
        begins = line.endswith("...")
        form = _form(line.removesuffix("..."))
        ahead = forms[at:] if free else forms[at : at + 1]
        same = (n for n, f in enumerate(ahead) if f == form or (begins and f.startswith(form)))
        found = next(same, None)
        if found is None:
            return line
        at += found + 1
        free = False
    return None


def _form(line: str) -> str:
    """The line with a sign in place of each figure, whatever its unit, and of each bar."""
    return " ".join(_QUANTITY.sub("#", _BAR.sub("=", line)).split())
