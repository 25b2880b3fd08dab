"""Ctrl-C, also where the exception that it raises is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from screens import BAR, Terminal

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

from ratrain.cli.terminal.progress import progress

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


ENDS = """
import os, signal, sys, threading, time
from ratrain.cli.terminal.live import live

def slow_picture(columns):
    time.sleep(0.5)
    return "\\u2501" * 40

try:
    with live(sys.stderr, slow_picture):
        threading.Timer(1.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(1.2)  # drawn once, and being made again
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_an_interrupt_while_a_picture_s_thread_ends_leaves_nothing_of_it(tmp_path: Path) -> None:
    terminal = Terminal([sys.executable, "-c", ENDS], columns=80, folder=tmp_path)
    terminal.follow(lambda t: bool(BAR & set(t.text)), limit_s=20)
    assert terminal.end(limit_s=20) == 0
    assert terminal.text.strip() == "interrupted"
