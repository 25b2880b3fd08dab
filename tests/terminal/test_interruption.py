"""Ctrl-C, also where the exception that it raises is lost."""

from __future__ import annotations

import subprocess
import sys

LOSES = """
import os, signal, sys
from contextlib import suppress
from ratrain.cli import main as room
from ratrain.cli.progress import progress

class Group:
    def main(self, standalone_mode):
        with progress("counting") as report:
            with suppress(KeyboardInterrupt):  # as C code does that drops every error
                os.kill(os.getpid(), signal.SIGINT)
            if {reports}:
                report(1, 2)
                print("went on")
        print("returned")

room.ratrain = Group()
sys.argv = ["ratrain"]
room.main()
"""


def ended(reports: bool) -> subprocess.CompletedProcess[str]:
    code = LOSES.format(reports=reports)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_an_interrupt_that_was_lost_is_raised_at_the_next_report_of_progress() -> None:
    done = ended(reports=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_an_interrupt_that_was_lost_is_raised_when_the_verb_returns() -> None:
    done = ended(reports=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "returned\n", "interrupted\n")
