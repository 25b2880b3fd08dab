"""Every error a user can meet, in one tree.

    RatrainError
    ├── SpecError        a file, flag or value that describes something is wrong
    ├── Infeasible       the description is fine, but nothing fits (memory, devices)
    ├── PluginError      a package that extends RATrain cannot be loaded
    ├── ProgramError     a program breaks a rule that `verify` checks
    ├── TimelineError    a timeline file cannot be read, or two cannot be compared
    ├── TransportError   a peer, a link or a message failed
    │   ├── PeerDown             the peer died, closed, or could not be reached
    │   ├── DeadlineExceeded     the time given to a transfer or a wait ran out
    │   ├── StaleDescriptor      the descriptor names an earlier life of the peer
    │   ├── BadTarget            unknown or revoked region, or out of its bounds
    │   ├── TransferCancelled    cancelled by its owner
    │   ├── HandshakeFailed      wrong secret, version or protocol
    │   ├── ProviderUnavailable  the provider asked for cannot serve here
    │   └── EngineClosed         the engine was closed under the call
    ├── ChipError        a simulated chip cannot finish: deadlock, a lost operand
    ├── CheckpointError  a checkpoint cannot be written, or is damaged, incomplete or another's
    │   └── CannotResume         what was saved is damaged, another model's, or not here
    │       └── SavedElsewhere   a part of it is on another host's disk only
    ├── StorageError     a file of a memory tier on disk cannot be made, read or written
    ├── RunFailed        a training run ended before its last step; says which rank and why
    └── RunTaken         a run's folder belongs to another launch, which still runs

Each message says what was wrong, where, and the smallest change that would make it right.
The command line prints the message alone and exits with the error's `exit_code`.

Messages quote what users wrote. Whatever that is, a message stays printable and short: see `tidy`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SAVED_NOT_FINISHED, INTERRUPTED = 75, 130
_LONG_WORD = re.compile(r"\S{400,}")
_MOST_CHARS = 2000


class RatrainError(Exception):
    """Root of the tree: anything the user can fix. `place` names the file, key, rank or op.

    `more` are further errors of the same input, so that a file's errors are shown all at once.
    """

    exit_code = 2

    def __init__(
        self, what: str, *, place: str = "", fix: str = "", more: tuple[RatrainError, ...] = ()
    ) -> None:
        super().__init__(what)
        self.what = tidy(what)
        self.place = tidy(place).replace("\n", "\\n")
        self.fix = tidy(fix).replace("\n", "\\n")
        self.more = more

    @property
    def alone(self) -> str:
        """The message without the further errors."""
        head = f"{self.place}: {self.what}" if self.place else self.what
        return f"{head}\n  fix: {self.fix}" if self.fix else head

    def __str__(self) -> str:
        return "\n".join([self.alone, *map(str, self.more)])


def tidy(text: str) -> str:
    """The text, printable in any encoding, moving no terminal, and cut where it is long."""
    if len(text) > _MOST_CHARS:
        text = _cut(text, _MOST_CHARS)
    text = _LONG_WORD.sub(lambda word: _cut(word[0], 200), text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else escaped(c) for c in text)


def _cut(text: str, chars: int) -> str:
    """Its beginning and its end."""
    return f"{text[: chars * 3 // 4]}...({len(text):,} characters)...{text[-(chars // 4) :]}"


def escaped(char: str) -> str:
    """A character as Python writes it: \\x1b."""
    return ascii(char)[1:-1]


class SpecError(RatrainError):
    """A description (job, model, cluster, plan, flag) is wrong."""


class Infeasible(RatrainError):
    """The description is sound but does not fit; says which device, item and how many bytes."""

    exit_code = 3


class PluginError(RatrainError):
    """A package that brings schedules, passes or clusters cannot be loaded; names the package."""


class ProgramError(RatrainError):
    """A program breaks a rule; carries the verifier's findings in its message."""

    exit_code = 4


class MissingOrder(ProgramError):
    """Nothing orders two accesses of a state or of its memory; names both."""


class TimelineError(RatrainError):
    """A timeline file is damaged, or two timelines do not describe the same program."""


class TransportError(RatrainError):
    """A peer, a link or a message failed."""

    exit_code = 5


class PeerDown(TransportError):
    """The peer died, closed, or could not be reached; `bytes_acked` had landed before."""

    def __init__(
        self, what: str, *, place: str = "", fix: str = "", nic: str = "", bytes_acked: int = 0
    ) -> None:
        super().__init__(what, place=place, fix=fix)
        self.nic = nic
        self.bytes_acked = bytes_acked


class DeadlineExceeded(TransportError):
    """The time given to a transfer or a wait ran out."""


OF_ANOTHER = (PeerDown, DeadlineExceeded)
"""What a rank meets when another one has ended or hangs: it seldom is why a run ends."""


class StaleDescriptor(TransportError):
    """The descriptor names an earlier life of the peer."""


class BadTarget(TransportError):
    """The target region is unknown, revoked, or smaller than the write."""


class TransferCancelled(TransportError):
    """The transfer was cancelled by its owner; nothing more of it can land."""


class HandshakeFailed(TransportError):
    """The peer has another secret, version or protocol."""


class ProviderUnavailable(TransportError):
    """The provider that was asked for cannot serve here."""


class EngineClosed(TransportError):
    """The engine was closed under the call."""


class ChipError(RatrainError):
    """A simulated chip cannot finish its work; names router, cycle and opcode."""

    exit_code = 6


class CheckpointError(RatrainError):
    """A checkpoint cannot be written, or is damaged, incomplete, or of another model."""

    exit_code = 7


class CannotResume(CheckpointError):
    """There are checkpoints, and this run cannot resume from any: they are damaged, of another
    model, or not on this disk."""


class SavedElsewhere(CannotResume):
    """A part of a checkpoint is on another host's disk only."""


class StoreError(CheckpointError):
    """An object store does not answer, or refuses; names the URL."""


class StorageError(RatrainError):
    """A file of a memory tier on disk cannot be made, read or written, or is not what was written;
    names the file."""

    exit_code = 10


class RunFailed(RatrainError):
    """A training run ended before its last step; what was saved before is whole."""

    exit_code = 8


class RunTaken(RatrainError):
    """A run's folder belongs to another launch, which still runs; says whose it is."""

    exit_code = 9


@dataclass(frozen=True)
class ExitStatus:
    """What an exit status of the command line, or of a rank, means; `again`: whether starting the
    same command again makes sense, for people and batch systems."""

    number: int
    meaning: str
    again: str


_MEND = "no: mend what the message names"
EXIT_STATUSES = (
    ExitStatus(0, "done", "no"),
    ExitStatus(
        1,
        "a comparison found a difference, a check failed, the reader of a pipe has gone, or an "
        "unexpected error",
        "no",
    ),
    ExitStatus(SpecError.exit_code, "the job, an option or a file is invalid", _MEND),
    ExitStatus(
        Infeasible.exit_code, "it does not fit, or its devices are not on this machine", _MEND
    ),
    ExitStatus(
        ProgramError.exit_code, "a program is not sound for another reason than memory", _MEND
    ),
    ExitStatus(
        TransportError.exit_code,
        "a peer or a link failed: of a rank, it lost another one, or heard nothing from it",
        "yes: ranks resume from the latest checkpoint",
    ),
    ExitStatus(ChipError.exit_code, "a simulated chip cannot finish its work", _MEND),
    ExitStatus(
        CheckpointError.exit_code,
        "a checkpoint cannot be read or written",
        "no: mend what the message names, often a full disk",
    ),
    ExitStatus(
        RunFailed.exit_code,
        "a rank failed or was killed; the message names the first one and why",
        "yes, with --resume, unless the message names a mistake",
    ),
    ExitStatus(
        RunTaken.exit_code,
        "another launch that still runs owns the run's folder",
        "when that one has ended",
    ),
    ExitStatus(
        StorageError.exit_code,
        "a file of a memory tier on disk cannot be made, read or written",
        "yes, with --resume, once the disk that the message names has room or is mended",
    ),
    ExitStatus(
        SAVED_NOT_FINISHED,
        "a run was asked to stop (Ctrl-C, SIGTERM, SIGUSR1, SIGUSR2, a file stop-requested) and "
        "has saved; it is not finished",
        "yes, with --resume",
    ),
    ExitStatus(
        INTERRUPTED,
        "ended at once by Ctrl-C, of a run by a second one",
        "yes, with --resume: from the latest checkpoint",
    ),
)
"""All there are; a process that a signal ended has none, and shells and batch systems show 128 and
the signal's number: 137 for SIGKILL."""
