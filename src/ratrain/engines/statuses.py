"""What an engine's script or driver does about the exit status of ranks; all of them, for people,
are in docs/reference/exit-codes.md."""

from __future__ import annotations

START_AGAIN = (5, 8, 134, 135, 137, 139)
"""A rank lost a peer, or failed, or was killed (128 and SIGABRT, SIGBUS, SIGKILL, SIGSEGV): ranks
go on from the latest checkpoint."""
STOPPED = (75, 138, 140, 143)
"""Saved and not finished; or asked to stop before a rank could hear it (128 and SIGUSR1, SIGUSR2,
SIGTERM)."""
