"""One command inside a place of a lab: `python -m ratrain.lab.inside COMMAND...`.

The place comes through the environment. The command dies with the thread that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from ratrain.errors import RatrainError, SpecError
from ratrain.lab.place import VARIABLE, enter, place_from_env

PR_SET_PDEATHSIG = 1
NOT_FOUND = 127  # as a shell says it


def inside(*command: str) -> list[str]:
    """The command line that runs the command at the place in its environment."""
    return [sys.executable, "-P", "-m", "ratrain.lab.inside", *command]


def main(command: Sequence[str]) -> None:
    """Enter, and become the command; never returns where that works."""
    place = place_from_env(os.environ)
    if place is None:
        raise SpecError("no place is given", place=VARIABLE, fix="set what place_to_env returns")
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    enter(place)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_FOUND)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RatrainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
