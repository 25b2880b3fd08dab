"""Progress bars where people see them: narrow and dumb terminals, resizing, Ctrl-C, pipes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from screens import BAR, Terminal, ratrain
from verbs import SMALL

from ratrain.cli.terminal.progress import Meter, bar_line
from ratrain.describe.units import clock_of

pytestmark = pytest.mark.slow  # half a second each

COUNT = """
import sys, time
from ratrain.cli.terminal import progress as room
room.SHOWN_AFTER_S, room.LINE_EVERY_S = 0.0, 0.3
with room.progress("counting", {unit!r}) as report:
    if {counted}:
        report(0, 1000)
    for done in range({of_1000}):
        time.sleep(0.001)
        if {counted}:
            report(done + 1, 1000)
        if done == 500:
            print("a line meanwhile", file=sys.stderr)
print("done")
"""


def counting(unit: str = "plans", counted: bool = True, of_1000: int = 1000) -> list[str]:
    """A program that counts to 1,000, or only so far."""
    return [sys.executable, "-c", COUNT.format(unit=unit, counted=counted, of_1000=of_1000)]


def last_bar(terminal: Terminal) -> str:
    return terminal.bars_seen[-1] if terminal.bars_seen else ""


# ---- what it says -----------------------------------------------------------------------


def test_a_bar_says_amount_rate_and_time_left_and_is_gone_at_the_end(tmp_path: Path) -> None:
    terminal = Terminal(counting(), columns=80, folder=tmp_path)
    assert terminal.end() == 0
    assert re.search(
        r"counting +━.*\d+:\d\d left +[\d,]+/1,000 plans +\d+ plans/s", last_bar(terminal)
    )
    assert terminal.lines == ["a line meanwhile", "done"]


def test_work_of_unknown_length_says_how_long_it_has_taken(tmp_path: Path) -> None:
    terminal = Terminal(counting(counted=False), columns=80, folder=tmp_path)
    terminal.end()
    assert re.search(r"counting +━* *━* +0:\d\d so far", last_bar(terminal))
    assert "/s" not in last_bar(terminal)


def test_bytes_are_shown_in_their_units(tmp_path: Path) -> None:
    terminal = Terminal(counting("B"), columns=80, folder=tmp_path)
    terminal.end()
    assert re.search(r"\d+ B of 1 kB +[\d.]+ k?B/s", last_bar(terminal))


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**15), st.floats(0, 1e6))),
    st.sampled_from(["", "B", "elements"]),
    st.integers(1, 200),
)
def test_a_line_fits_whatever_is_reported_and_however_wide_the_terminal(
    reports: list[tuple[int, int, float]], unit: str, columns: int
) -> None:
    from rich.console import Console

    clock = Clock()
    meter = Meter("working", unit, clock)
    for done, total, pause_s in reports:
        clock.now_s += pause_s
        meter.report(done, total)
    assert meter.left_s is None or meter.left_s >= 0
    console = Console(width=columns, color_system=None)
    with console.capture() as captured:
        console.print(bar_line(meter, columns), width=columns)
    (line,) = captured.get().rstrip("\n").split("\n")
    assert len(line) <= columns


def test_the_rate_counts_from_the_first_report_of_nothing_done() -> None:
    clock = Clock()
    meter = Meter("working", "plans", clock)
    clock.now_s = 60  # getting ready
    meter.report(0, 100)
    clock.now_s = 70
    meter.report(20, 100)
    assert (meter.rate, meter.left_s) == (2.0, 40.0)


@pytest.mark.parametrize(
    ("time_s", "shown"), [(0.4, "0:00"), (7, "0:07"), (59.6, "1:00"), (3723, "1:02:03")]
)
def test_a_length_of_time_is_written_as_a_clock_does(time_s: float, shown: str) -> None:
    assert clock_of(time_s) == shown


# ---- terminals of every kind ------------------------------------------------------------


@pytest.mark.parametrize("columns", [200, 60, 40, 20, 6])
def test_a_bar_stands_on_one_line_of_any_terminal(tmp_path: Path, columns: int) -> None:
    terminal = Terminal(counting(of_1000=400), columns=columns, folder=tmp_path)
    assert terminal.end() == 0
    assert terminal.wrapped == []
    assert terminal.lines == ["done"]


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path: Path) -> None:
    terminal = Terminal(counting(), columns=80, folder=tmp_path, TERM="dumb")
    assert terminal.end() == 0
    assert b"\x1b" not in terminal.raw
    assert len(re.findall(r"(?m)^counting  \d+:\d\d left  [\d,]+/1,000 plans", terminal.text)) >= 2
    assert terminal.lines[-1] == "done"


def test_no_color_leaves_the_bar_its_form_alone(tmp_path: Path) -> None:
    plain = Terminal(counting(), columns=80, folder=tmp_path, NO_COLOR="1")
    coloured = Terminal(counting(), columns=80, folder=tmp_path)
    plain.end()
    coloured.end()
    colours = re.compile(rb"\x1b\[[\d;]*m")
    assert colours.search(coloured.raw)
    assert not colours.search(plain.raw)
    assert "━" in last_bar(plain)


def test_a_terminal_that_is_made_narrower_and_wider_keeps_one_bar(tmp_path: Path) -> None:
    terminal = Terminal(counting(of_1000=999), columns=100, folder=tmp_path)
    for columns in (60, 30, 120):
        terminal.follow(lambda t: bool(t.bars()))
        terminal.resize(columns)
        time.sleep(0.3)
    assert terminal.end() == 0
    assert terminal.most_bars == 1
    assert terminal.lines[-1] == "done"
    assert not BAR & set(terminal.text)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_terminal_that_wraps_its_lines_anew_keeps_one_bar_too(tmp_path: Path) -> None:
    """tmux, as most terminals, breaks a line in two where it does not fit any more."""
    tmux = ["tmux", "-S", str(tmp_path / "socket")]

    def screen() -> str:
        capture = [*tmux, "capture-pane", "-p", "-S", "-"]
        return subprocess.run(capture, capture_output=True, text=True, check=True).stdout

    (tmp_path / "count.py").write_text(counting(of_1000=999)[-1])
    shell = f"seq 40; {sys.executable} {tmp_path / 'count.py'}; sleep 60"
    subprocess.run([*tmux, "new-session", "-d", "-x", "100", "-y", "20", shell], check=True)
    try:
        deadline_s = time.monotonic() + 20
        while not BAR & set(screen()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        for columns in (60, 30, 120):
            subprocess.run([*tmux, "resize-window", "-x", str(columns), "-y", "20"], check=True)
            time.sleep(0.3)
        while "done" not in screen() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        lines = [line.rstrip() for line in screen().split("\n") if line.strip()]
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    assert lines == [*map(str, range(1, 41)), "a line meanwhile", "done"]


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_pipe_gets_nothing(tmp_path: Path, variables: dict[str, str]) -> None:
    done = subprocess.run(
        counting(of_1000=400), capture_output=True, cwd=tmp_path, env=variables, check=True
    )
    assert (done.stdout, done.stderr) == (b"done\n", b"")


# ---- Ctrl-C -----------------------------------------------------------------------------


def interrupted(terminal: Terminal) -> None:
    """Presses Ctrl-C once a bar is there; the program must end at once, and say so."""
    terminal.follow(lambda t: bool(t.bars()), limit_s=60)
    terminal.type("\x03")
    assert terminal.end(limit_s=20) == 130, terminal.text
    assert terminal.lines[-1] == "interrupted"
    assert "Traceback" not in terminal.text
    assert not BAR & set(terminal.text)


def test_ctrl_c_ends_a_verb_and_erases_its_bar(tmp_path: Path) -> None:
    interrupted(Terminal(ratrain("noc", "sweep"), columns=80, folder=tmp_path))


LONG = [
    f"simulate {SMALL.replace('small', 'qwen32b-mt3000')} --steps 64",
    f"plan {SMALL.replace('small', 'qwen32b-mt3000')}",
    f"explain {SMALL.replace('small', 'qwen32b-mt3000')}",
    "noc reproduce",
    "noc gemm summa --simulate 32",
    "validate",
    "reproduce",
    "profile",
    "lab check lab-mixed",
    "net check --local 4 --mib 512",
]


@pytest.mark.slow
@pytest.mark.parametrize("words", LONG, ids=lambda words: " ".join(words.split()[:2]))
def test_ctrl_c_ends_every_long_verb(tmp_path: Path, words: str) -> None:
    interrupted(Terminal(ratrain(*words.split()), columns=80, folder=tmp_path))
