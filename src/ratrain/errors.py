"""Every error a user can meet, in one tree.

    RatrainError
    ├── SpecError        a file, flag or value that describes something is wrong
    ├── Infeasible       the description is fine, but nothing fits (memory, devices)
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
    └── RunFailed        a training run ended before its last step; says which rank and why

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


class RunFailed(RatrainError):
    """A training run ended before its last step; what was saved before is whole."""

    exit_code = 8
