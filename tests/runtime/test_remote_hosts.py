"""Hosts as their launcher sees them: commands of real processes behind a stand-in for ssh."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ratrain.runtime.rank.orders import Rendezvous
from ratrain.runtime.run import remote
from ratrain.runtime.run.host_ranks import HostEpisode
from ratrain.runtime.run.remote import LOST, HostCommand, Hosts, Shell

RSH = """#!/bin/sh
# What is to run there hangs; whether the host answers, a file says.
[ "$2" = true ] && { [ -e "$(dirname "$0")/answers" ]; exit; }
exec sleep "$(cat "$(dirname "$0")/begins-after" 2>/dev/null || echo 60)"
"""


def hosts(folder: Path, told: list[str]) -> Hosts:
    rsh = folder / "rsh.sh"
    rsh.write_text(RSH)
    rsh.chmod(0o755)
    episode = HostEpisode((0,), Rendezvous(1, "oak", 29500))
    command = HostCommand("oak", "oak", ("begins",), episode)
    return Hosts([command], lambda c, hear: Shell(c, hear, [str(rsh), "oak"]), told.append)


@pytest.mark.slow
def test_a_host_whose_command_never_begins_is_lost_unless_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BEGIN_S", 0.2)
    told: list[str] = []
    ended = hosts(tmp_path, told).wait(threading.Event())
    assert ended.statuses == {"oak": LOST} and "oak: silent" in told[0]
    (tmp_path / "answers").touch()
    monkeypatch.setattr(remote, "BEGIN_S", 1.5)  # an answer takes a process
    (tmp_path / "begins-after").write_text("4")
    assert hosts(tmp_path, told).wait(threading.Event()).statuses == {"oak": 0}
    assert len(told) == 1
