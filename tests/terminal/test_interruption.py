"""Ctrl-C, also where the exception that it raises is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOSES = """
import os, signal, sys
from contextlib import suppress
from ratrain.cli import main as room

class Dying:
    def __del__(self):  # Python drops every error here, and shows it
        os.kill(os.getpid(), signal.SIGINT)

def in_c_code():
    with suppress(KeyboardInterrupt):  # as C code does that drops every error
        os.kill(os.getpid(), signal.SIGINT)

def in_del():
    Dying()

from ratrain.cli.progress import progress

class Group:
    def main(self, standalone_mode):
        with progress("counting") as report:
            {place}()
            if {reports}:
                report(1, 2)
                print("went on")
        print("returned")

room.ratrain = Group()
sys.argv = ["ratrain"]
room.main()
"""


def ended(place: str, reports: bool) -> subprocess.CompletedProcess[str]:
    code = LOSES.format(place=place, reports=reports)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("place", ["in_c_code", "in_del"])
def test_an_interrupt_that_was_lost_is_raised_at_the_next_report_of_progress(place: str) -> None:
    done = ended(place, reports=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("place", ["in_c_code", "in_del"])
def test_an_interrupt_that_was_lost_is_raised_when_the_verb_returns(place: str) -> None:
    done = ended(place, reports=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "returned\n", "interrupted\n")
