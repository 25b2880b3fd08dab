"""Starts the ranks of a run on this machine, watches them, and says how they ended.

torch's own elastic agent starts and restarts the processes. Ranks of several machines are
started by `torchrun ... -m ratrain.runtime.rank RUN_FOLDER` on each.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratrain.errors import RatrainError, RunFailed
from ratrain.lab.cluster import Lab
from ratrain.runtime.run_folder import RunFolder, RunSpec

Tick = Callable[[], None]
"""Called several times a second while the ranks run."""


@dataclass(frozen=True)
class Failure:
    """How a rank ended, in words."""

    rank: int
    what: str
    place: str = ""
    fix: str = ""


def launch(folder: RunFolder, spec: RunSpec, *, lab: Lab | None, restarts: int, tick: Tick) -> None:
    """Runs all ranks to their end; raises `RunFailed` with the first cause where one failed."""
    _clear(folder)
    if lab is not None:
        places = [asdict(place) for place in lab.places]
        (folder.path / "places.json").write_text(json.dumps(places))
    agent = _Agent(folder, spec, lab, restarts)
    with _stop_on_signal(folder):
        agent.start()
        try:
            while not agent.wait(0.2):
                tick()
        except BaseException:
            while not agent.wait(0.2):
                end_ranks()
            raise
    tick()
    if agent.error is not None:
        raise _explained(folder, agent.error, lab)


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
        address = self._lab.master_address if self._lab else "127.0.0.1"
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


def end_ranks() -> None:
    """Ends the ranks that this process has started, at once (Linux)."""
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            with suppress(OSError):
                if b"ratrain.runtime.rank" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def _clear(folder: RunFolder) -> None:
    """What an earlier attempt left that would be taken for this one's."""
    folder.stop_request.unlink(missing_ok=True)
    (folder.path / "places.json").unlink(missing_ok=True)
    for old in (folder.path / "ranks").glob("failure-*.json"):
        old.unlink()


def _explained(folder: RunFolder, error: BaseException, lab: Lab | None) -> RatrainError:
    """The first cause of a failure, rather than what followed from it on other ranks."""
    failures = _failures(folder, error, lab)
    if not failures:
        return RunFailed(str(error).splitlines()[0], place=str(folder.path))
    first = min(failures, key=_follows)
    others = sorted(failure.rank for failure in failures if failure is not first)
    what = first.what
    if others:
        what += f"; after it rank{'s' if len(others) > 1 else ''} " + ", ".join(map(str, others))
        what += " ended too"
    saved = sorted(path.name for path in folder.checkpoints.glob("step-*[0-9]"))
    fix = first.fix or f"see {folder.logs}"
    if saved:
        fix += f"; `--resume` goes on behind {saved[-1]}"
    return RunFailed(what, place=first.place or f"rank {first.rank}", fix=fix)


def _follows(failure: Failure) -> int:
    """1 for what is likely to follow from another rank's end: a lost connection."""
    words = ("connection", "closed by peer", "timed out", "recv", "socket", "broken pipe")
    return int(any(word in failure.what.lower() for word in words))


def _failures(folder: RunFolder, error: BaseException, lab: Lab | None) -> list[Failure]:
    found: dict[int, Failure] = {}
    for path in sorted((folder.path / "ranks").glob("failure-*.json")):
        body = folder.read_json(path)
        found[body["rank"]] = Failure(body["rank"], body["what"], body["place"], body["fix"])
    for rank, failed in getattr(error, "failures", {}).items():
        code = int(getattr(failed, "exitcode", 1))
        if code < 0 and rank not in found:
            found[rank] = Failure(rank, _killed(rank, -code, lab))
    return [found[rank] for rank in sorted(found)]


def _killed(rank: int, number: int, lab: Lab | None) -> str:
    name = signal.Signals(number).name
    if lab is not None and lab.oom_kills(rank):
        return f"rank {rank} was killed by the kernel: its memory limit was reached"
    return f"rank {rank} was killed by {name}"


def shared_folder_note(path: Path) -> str:
    """What ranks on several machines must share."""
    return f"every rank reads and writes {path}: put it on a file system that all of them see"
