"""Every error a user can meet, in one tree.

    RatrainError
    ├── SpecError        a file, flag or value that describes something is wrong
    ├── Infeasible       the description is fine, but nothing fits (memory, devices)
    ├── ProgramError     a program breaks a rule that `verify` checks
    ├── TimelineError    a timeline file cannot be read, or two cannot be compared
    ├── TransportError   a peer, a link or a message failed
    └── ChipError        a simulated chip cannot finish: deadlock, a lost operand

Each message says what was wrong, where, and the smallest change that would make it right.
The command line prints the message alone and exits with the error's `exit_code`.
"""

from __future__ import annotations


class RatrainError(Exception):
    """Root of the tree: anything the user can mend. `place` names the file, key, rank or op."""

    exit_code = 2

    def __init__(self, what: str, *, place: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.place = place
        self.fix = fix

    def __str__(self) -> str:
        head = f"{self.place}: {self.what}" if self.place else self.what
        return f"{head}\n  fix: {self.fix}" if self.fix else head


class SpecError(RatrainError):
    """A description (job, model, cluster, plan, flag) is wrong."""


class Infeasible(RatrainError):
    """The description is sound but does not fit; says which device, item and how many bytes."""

    exit_code = 3


class ProgramError(RatrainError):
    """A program breaks a rule; carries the verifier's findings in its message."""

    exit_code = 4


class TimelineError(RatrainError):
    """A timeline file is damaged, or two timelines do not describe the same program."""


class TransportError(RatrainError):
    """A peer, a link or a message failed."""

    exit_code = 5


class ChipError(RatrainError):
    """A simulated chip cannot finish its work; names router, cycle and opcode."""

    exit_code = 6
