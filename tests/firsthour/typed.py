"""Sessions: what somebody types into a terminal, what she writes in her editor, what she sees.

Who it is.

--- job.toml            a file, up to the next `---`
---
$ ratrain plan job.toml     typed; its exit status is 0
> fits .* MB                a regular expression that what it prints must match, in this order
$ ratrain plan no.toml
! 2                         the exit status
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from screens import Terminal

PROMPT = re.compile(r"^\[(\d+)\] \$ ?(.*)$")


@dataclass(frozen=True)
class File:
    """What the editor saves."""

    name: str
    lines: list[str] = field(default_factory=list)


@dataclass
class Command:
    """A line typed, and what must come of it."""

    line: str
    status: int = 0
    seen: list[str] = field(default_factory=list)


Session = list[File | Command]


def read_session(path: Path) -> Session:
    """The files and commands of a session, in order."""
    session: Session = []
    writing: File | None = None
    for line in path.read_text().splitlines():
        mark, _, rest = line.partition(" ")
        last = session[-1] if session else None
        if writing:
            if line == "---":
                writing = None
            else:
                writing.lines.append(line)
        elif mark == "---":
            writing = File(rest)
            session.append(writing)
        elif mark == "$":
            session.append(Command(rest))
        elif mark == ">" and isinstance(last, Command):
            last.seen.append(rest)
        elif mark == "!" and isinstance(last, Command):
            last.status = int(rest)
        else:
            assert not session or not line, f"{path.name}: what is {line!r}?"
    return session


class Shell:
    """bash in a terminal of 80 columns, in a folder."""

    def __init__(self, folder: Path, path: str) -> None:
        self._folder = folder
        bash = ["bash", "--norc", "--noprofile", "-i"]
        self._terminal = Terminal(
            bash, columns=80, folder=folder, PS1="[$?] $ ", PATH=path, OMP_NUM_THREADS="1"
        )
        self._terminal.follow(lambda _: bool(self._prompts()), limit_s=20)

    def save(self, file: File) -> None:
        """Writes the file as an editor would."""
        (self._folder / file.name).write_text("\n".join(file.lines) + "\n")

    def type(self, line: str) -> tuple[int, list[str]]:
        """The exit status of what is typed, and the lines that it left on the screen."""
        at = self._prompts()[-1]
        self._terminal.type(line + "\n")
        self._terminal.follow(lambda _: self._prompts()[-1] > at, limit_s=180)
        lines = self._terminal.lines
        prompt = PROMPT.match(lines[-1])
        assert prompt
        typed = len(line) // 80 + 1
        return int(prompt[1]), lines[at + typed : -1]

    def end(self) -> None:
        """Leaves the shell."""
        self._terminal.type("exit\n")
        self._terminal.end(limit_s=20)

    def _prompts(self) -> list[int]:
        """The lines of the screen at which something was typed, or can be typed now."""
        lines = self._terminal.lines
        return [at for at, line in enumerate(lines) if PROMPT.match(line)]
