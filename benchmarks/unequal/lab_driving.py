"""What messages take of the processors in a lab, whose links cost more a byte than the loopback.

`message_work_in(lab)` has it measured at one place, against another: a process at a place starts
none elsewhere, so it prints the command line of the other one, which is started from outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from ratrain.lab import Lab, Place, place_to_env
from ratrain.lab.inside import inside
from ratrain.profile.doubt import Watch
from ratrain.profile.driving import message_work


def message_work_in(lab: Lab) -> tuple[float, float]:
    """Seconds of a processor at one end of a message between the first two places, and of each of
    its bytes."""
    with (
        _at(lab.places[0], [sys.executable, __file__]) as here,
        _at(lab.places[1], json.loads(_line(here))) as there,
    ):
        per_message_s, per_byte_s = json.loads(_line(here))
        there.kill()
    return per_message_s, per_byte_s


def _at(place: Place, command: Sequence[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, **place_to_env(place)}
    return subprocess.Popen(
        inside(*command), env=environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit("what messages take could not be measured")
    return line


def main() -> None:
    """At the first place: prints the other's command line, then what was measured."""

    def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
        print(json.dumps(list(command)), flush=True)
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # until the other one is done with

    print(json.dumps(message_work(Watch(), nics="all", start=start)), flush=True)


if __name__ == "__main__":
    main()
