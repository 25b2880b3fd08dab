"""Runs the ranks of a run on this machine to their end, restarts them, and says what went wrong.

Ranks on several machines are started by `torchrun ... -m ratrain.runtime.rank RUN_FOLDER` on each.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ratrain.errors import RatrainError, RunFailed
from ratrain.lab.cluster import Lab
from ratrain.lab.crew import MASTER_PORT
from ratrain.runtime.memory_here import KillWatch
from ratrain.runtime.ownership import Claim, handed_on
from ratrain.runtime.rank.orders import Rendezvous, new_start
from ratrain.runtime.rank.stop import passed_on
from ratrain.runtime.run.first_cause import explained
from ratrain.runtime.run.processes import RankEnd, RankProcesses, base_environment
from ratrain.runtime.run_folder import RunFolder, RunSpec

Tick = Callable[[], None]
"""Called several times a second while the ranks run; it follows the run (see trackers.py)."""
LOOPBACK = "127.0.0.1"
StartingAgain = Callable[[RatrainError, bool], None]
"""Called with the first cause of a failure; whether the other ranks go on, with new processes for
those that were lost, or all ranks are started again."""
BACK_S = 20.0
"""How long ranks may take until they wait for the next episode, once they are called back."""
_LOOK_EVERY_S, _LOOK_S = 0.1, 0.01


def launch(
    folder: RunFolder,
    spec: RunSpec,
    *,
    claim: Claim,
    lab: Lab | None,
    restarts: int,
    tick: Tick,
    starting_again: StartingAgain = lambda _cause, _goes_on: None,
) -> None:
    """Runs all ranks to their end. After a failure, `restarts` times at most, the other ranks go on
    with new processes for those that were lost; where they cannot, all of them start again from
    the latest checkpoint. Raises an error with the first cause of the last failure.
    `claim` is ours on the run's folder."""
    claim.require()
    _clear(folder)
    if lab is not None:
        places = [asdict(lab.places[device]) for device in spec.device_numbers]
        (folder.path / "places.json").write_text(json.dumps(places))
    kills = KillWatch()
    ranks: RankProcesses | None = None
    with passed_on(folder.stop_request.touch), handed_on(claim.words):
        for attempts_left in range(restarts, -1, -1):
            ranks = ranks or _started(folder, spec, lab, goes_on=restarts > 0)
            ends, called_back = _ended(ranks, claim, tick, goes_on=attempts_left > 0)
            claim.require()
            if not any(end.status for end in ends):
                break
            tick()
            cause = explained(folder, spec, ends, lab, kills)
            if not attempts_left:
                raise cause
            starting_again(cause, called_back)
            if called_back:
                with _rendezvous(lab, spec) as (rendezvous, _):
                    pass  # rank 0 listens there by itself
                ranks.go_on(range(rendezvous.world_size), rendezvous)
            else:
                ranks = None
    tick()


def _started(folder: RunFolder, spec: RunSpec, lab: Lab | None, *, goes_on: bool) -> RankProcesses:
    for pattern in ("failure-*.json", "torch-*"):  # they would be taken for this attempt's
        for leftover in (folder.path / "ranks").glob(pattern):
            leftover.unlink()
    with _rendezvous(lab, spec) as (rendezvous, listener):
        ranks, environment = range(rendezvous.world_size), base_environment(rendezvous)
        return RankProcesses(folder, ranks, environment, listener, goes_on=goes_on)


def _ended(
    ranks: RankProcesses, claim: Claim, tick: Tick, *, goes_on: bool
) -> tuple[list[RankEnd], bool]:
    """How each rank ended: all of them well, or ended here because one of them failed; and whether
    those that have not failed were called back instead, and wait for the next episode."""
    try:
        while ranks.running and not ranks.failed:
            claim.require_seen()
            tick()
            time.sleep(_LOOK_EVERY_S)
        if not (goes_on and ranks.failed and ranks.can_go_on):
            return ranks.end(), False
        return (ranks.ends(), True) if all_back(ranks) else (ranks.end(), False)
    except BaseException:
        ranks.kill()
        raise


def all_back(ranks: RankProcesses) -> bool:
    """Calls all ranks back; whether any has come that can go on. Who does not come in time is
    ended: it may have stalled."""
    ranks.call_back()
    end_s = time.monotonic() + BACK_S
    while not ranks.are_back and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return ranks.waiting > 0


@contextmanager
def _rendezvous(
    lab: Lab | None, spec: RunSpec
) -> Generator[tuple[Rendezvous, socket.socket | None]]:
    """Where the ranks find each other: at an address of the lab's network, which is its own, so any
    port is free there; else at this machine's own, where rank 0 inherits the listening socket."""
    if lab is not None:
        address = lab.places[spec.device_numbers[0]].address
        yield Rendezvous(spec.seats.world_size, address, MASTER_PORT, new_start()), None
        return
    try:
        listener = socket.create_server((LOOPBACK, 0))
    except OSError as error:
        raise RunFailed(
            f"this machine does not have its loopback address {LOOPBACK}: "
            f"{error.strerror or error}",
            place="network",
            fix="bring the loopback interface up (`ip link set lo up`)",
        ) from error
    with listener:
        address, port = listener.getsockname()
        yield Rendezvous(spec.seats.world_size, address, port, new_start()), listener


def _clear(folder: RunFolder) -> None:
    """What an earlier launch left that would be taken for this one's."""
    folder.stop_request.unlink(missing_ok=True)
    (folder.path / "places.json").unlink(missing_ok=True)


def folder_note(path: Path, disks: str) -> str:
    """Where the folder must be when ranks on several machines start."""
    if disks == "per-host":
        return (
            f"copy {path} to every host with `cp -p` or `rsync -a`: each host saves to its own "
            "disk; to resume, start the same hosts, in any order"
        )
    return (
        f"All ranks read and write the folder {path}: put it on a file system that they all "
        'share, or set [checkpoint] disks = "per-host" and copy it to every host'
    )
