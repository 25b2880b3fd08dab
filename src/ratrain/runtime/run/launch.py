"""Starts the ranks of a run on this machine, watches them, and says how they ended.

torch's own elastic agent starts and restarts the processes. Ranks of several machines are
started by `torchrun ... -m ratrain.runtime.rank RUN_FOLDER` on each.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ratrain.errors import RunFailed
from ratrain.lab.cluster import Lab
from ratrain.runtime.failures import explained
from ratrain.runtime.rank.trackers import FOLLOWED
from ratrain.runtime.run.children import end_ranks, end_stopped_ranks
from ratrain.runtime.run_folder import RunFolder, RunSpec

Tick = Callable[[], None]
"""Called several times a second while the ranks run; it follows the run (see trackers.py)."""
LOOPBACK = "127.0.0.1"


def launch(folder: RunFolder, spec: RunSpec, *, lab: Lab | None, restarts: int, tick: Tick) -> None:
    """Runs all ranks to their end; raises `RunFailed` with the first cause where one failed."""
    _clear(folder)
    if lab is not None:
        places = [asdict(place) for place in lab.places]
        (folder.path / "places.json").write_text(json.dumps(places))
    else:
        _require_loopback()
    agent = _Agent(folder, spec, lab, restarts)
    stopped: set[int] = set()
    with _stop_on_signal(folder), _followed():
        agent.start()
        try:
            while not agent.wait(0.2):
                tick()
                stopped |= _stopped_after(folder)
        except BaseException:
            while not agent.wait(0.2):
                end_ranks()
            raise
    tick()
    if agent.error is not None:
        raise explained(folder, agent.error, lab, stopped)


class _Agent:
    """The elastic agent, on a thread of its own: it installs no signal handlers there."""

    def __init__(self, folder: RunFolder, spec: RunSpec, lab: Lab | None, restarts: int) -> None:
        self.error: BaseException | None = None
        self._folder, self._spec, self._lab, self._restarts = folder, spec, lab, restarts
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether all ranks have ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
        address = self._lab.master_address if self._lab else LOOPBACK
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self._spec.seats.world_size,
            run_id=f"ratrain-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint=f"{address}:0",
            rdzv_configs={"is_host": True},  # the address may be a lab's, which torch cannot know
            local_addr=address,
            max_restarts=self._restarts,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(
                log_dir=str(self._folder.logs), redirects=Std.ALL, tee=Std.NONE
            ),
            shutdown_timeout=5,
        )
        try:
            elastic_launch(config, sys.executable)(
                "-m", "ratrain.runtime.rank", str(self._folder.path)
            )
        except BaseException as error:
            self.error = error


@contextmanager
def _stop_on_signal(folder: RunFolder) -> Generator[None]:
    """The first Ctrl-C or SIGTERM asks the ranks to save and stop; the second ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(_number: int, _frame: Any) -> None:
        if folder.stop_request.exists():
            raise KeyboardInterrupt
        folder.stop_request.touch()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, asked) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _followed() -> Generator[None]:
    """Ranks that are started now inherit that their launcher draws the curves."""
    os.environ[FOLLOWED] = "1"
    try:
        yield
    finally:
        del os.environ[FOLLOWED]


def _require_loopback() -> None:
    """Ranks and launcher meet at 127.0.0.1; without it they would look for each other in vain."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        raise RunFailed(
            f"this machine does not reach its own address {LOOPBACK}: {error.strerror or error}",
            place="network",
            fix="bring the loopback interface up (`ip link set lo up`)",
        ) from error


def _stopped_after(folder: RunFolder) -> set[int]:
    """Once a rank has failed, those that are stopped are ended here: the agent would give each 30
    seconds to hear a signal that it cannot hear."""
    told = (folder.path / "ranks").glob("failure-*.json")
    return end_stopped_ranks() if any(told) else set()


def _clear(folder: RunFolder) -> None:
    """What an earlier attempt left that would be taken for this one's."""
    folder.stop_request.unlink(missing_ok=True)
    (folder.path / "places.json").unlink(missing_ok=True)
    for old in (folder.path / "ranks").glob("failure-*.json"):
        old.unlink()


def shared_folder_note(path: Path) -> str:
    """What ranks on several machines must share."""
    return f"every rank reads and writes {path}: put it on a file system that all of them see"
