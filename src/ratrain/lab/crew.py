"""One command for each rank of a lab, their output in one stream, ended together."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ratrain.lab.cluster import Lab
from ratrain.lab.inside import inside
from ratrain.lab.place import Place, place_to_env

GRACE_S = 5.0  # between asking a rank to end and making it
MASTER_PORT = 29500  # free: the lab's network is its own
Say = Callable[[int, bytes], None]


@dataclass(frozen=True)
class Ending:
    """How one rank ended: its exit status (128 + the signal's number where one killed it)."""

    rank: int
    status: int
    oom_kills: int
    stopped: bool  # by us, because another rank failed


def run_crew(lab: Lab, command: Sequence[str], say: Say) -> tuple[Ending, ...]:
    """Run the command at each place until all end, or one fails and the rest are ended.

    `say` gets each line of output with its rank, as it comes.
    """
    crew = [_start(lab, place, command) for place in lab.places]
    stopped: frozenset[int] = frozenset()
    try:
        _stream(crew, say, until_failure=True)
        stopped = frozenset(rank for rank, child in enumerate(crew) if child.poll() is None)
        _end(crew, signal.SIGTERM)
        _stream(crew, say, until_failure=False, most_s=GRACE_S)
    finally:
        _end(crew, signal.SIGKILL)
        for child in crew:
            child.wait()
    return tuple(
        Ending(rank, _status(child), lab.oom_kills(rank), rank in stopped)
        for rank, child in enumerate(crew)
    )


def _start(lab: Lab, place: Place, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C is for us alone, and one signal reaches all it starts."""
    return subprocess.Popen(
        inside(*command),
        env={**os.environ, **rank_environment(lab, place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def rank_environment(lab: Lab, place: Place) -> dict[str, str]:
    """What torch.distributed and our own runtime look for; threads as the share allows."""
    mates = [mate.rank for mate in lab.places if mate.host == place.host]
    chosen = {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(mates.index(place.rank)),
        "WORLD_SIZE": str(len(lab.places)),
        "MASTER_ADDR": lab.places[0].address,
        "MASTER_PORT": str(MASTER_PORT),
        "RATRAIN_INTERFACE": place.interface,
        "GLOO_SOCKET_IFNAME": place.interface,
        **place_to_env(place),
    }
    defaults = {"OMP_NUM_THREADS": str(math.ceil(place.cpus)), "PYTHONUNBUFFERED": "1"}
    return {**{k: v for k, v in defaults.items() if k not in os.environ}, **chosen}


def _stream(
    crew: list[subprocess.Popen[bytes]],
    say: Say,
    *,
    until_failure: bool,
    most_s: float = math.inf,
) -> None:
    """Pass output on until all ranks have ended; or one has failed, or the time is over."""
    end_s = time.monotonic() + most_s
    rests: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for rank, child in enumerate(crew):
            if child.stdout is not None:
                selector.register(child.stdout, selectors.EVENT_READ, rank)
        while True:
            ended = _is_over(crew, until_failure) or time.monotonic() > end_s
            _pass_on(selector, say, rests, wait_s=0.0 if ended else 0.05)
            if ended:
                break
        while _pass_on(selector, say, rests, wait_s=0.0):
            pass
    for rank, rest in rests.items():
        if rest:
            say(rank, rest)


def _is_over(crew: list[subprocess.Popen[bytes]], until_failure: bool) -> bool:
    statuses = [child.poll() for child in crew]
    return None not in statuses or (until_failure and any(statuses))


def _pass_on(
    selector: selectors.BaseSelector, say: Say, rests: dict[int, bytes], wait_s: float
) -> bool:
    """Say each whole line that has come; False where nothing had."""
    if not selector.get_map():
        time.sleep(wait_s)
        return False
    ready = selector.select(wait_s)
    for key, _ in ready:
        chunk = os.read(key.fd, 1 << 16)
        if not chunk:
            selector.unregister(key.fileobj)
        *lines, rest = (rests.get(key.data, b"") + chunk).split(b"\n")
        for line in lines:
            say(key.data, line)
        rests[key.data] = rest
    return bool(ready)


def _end(crew: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Signal every rank's whole session, also where the rank itself has ended."""
    for child in crew:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)


def _status(child: subprocess.Popen[bytes]) -> int:
    code = child.wait()
    return code if code >= 0 else 128 - code
