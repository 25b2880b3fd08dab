"""The processes of a training: this one is number 0, and it starts those beside it.

Each has its partitions' rows on the disk and in memory, a budget of its own, and the whole of the
weights, to which all of them make the same step. Process 0 begins every epoch, and writes
checkpoints and reports; when it has gone the others end.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from ratrain.errors import PeerDown, RatrainError, RunFailed
from ratrain.graph.links import Links, connected
from ratrain.graph.plan import Laid, Plan
from ratrain.graph.program import GraphProgram, Layout, build
from ratrain.graph.spec import GraphFile
from ratrain.graph.stopped import STOPPED_S, Watch
from ratrain.graph.train import Training, store_of
from ratrain.storage import TierStore

ENDS_S = 10.0
"""So long processes may take to end when another has gone."""
PR_SET_PDEATHSIG = 1
STOPS = (signal.SIGTERM, signal.SIGUSR1)
"""They end a run after the epoch that is under way."""


@dataclass(frozen=True)
class Task:
    """What a process beside the first is to do."""

    spec: GraphFile
    laid: Laid
    layout: Layout
    disk: Path
    folder: Path


@dataclass(frozen=True)
class Beside:
    """A process beside the first; `said`: where its error comes."""

    process: BaseProcess
    said: Connection


@dataclass(frozen=True)
class Crew:
    """The first process's training; `plan`: with what that process has of the graph; `close` ends
    all, and removes what they have on the disk."""

    training: Training
    plan: Plan
    close: Callable[[], None]


def begun(spec: GraphFile, plan: Plan, disk: Path, folder: Path) -> Crew:
    """Starts the processes of a plan."""
    beside: list[Beside] = []
    own, *others = connected(plan.processes)
    links = Links(0, own, lambda error: _why(error, beside, watch))
    store: TierStore | None = None
    watch: Watch | None = None

    def close() -> None:
        if watch is not None:
            watch.end()
        links.close()
        _end(beside)
        if store is not None:
            store.close()

    try:
        store = store_of(disk, folder)
        for process, sockets in enumerate(others, 1):
            task = Task(spec, plan.laid.of(process), plan.program.layout, disk, folder)
            beside.append(_started(process, task, sockets))
        watch = Watch([each.process.pid or 0 for each in beside], links.close)
        laid = plan.laid.of(0)
        training = _training(spec, laid, plan.program, store, links)
    except BaseException:
        close()
        raise
    return Crew(training, replace(plan, laid=laid), close)


def _training(
    spec: GraphFile, laid: Laid, program: GraphProgram, store: TierStore, links: Links
) -> Training:
    _leave_a_processor(links.processes)
    return Training(spec, laid, program, store, links)


def _leave_a_processor(processes: int) -> None:
    """To the lanes that read and write: threads of torch that wait for each other spin, and where
    one of them has no processor the others wait for it (six times the epoch, measured on two).
    OMP_NUM_THREADS says otherwise."""
    if "OMP_NUM_THREADS" not in os.environ:
        linux = hasattr(os, "sched_getaffinity")
        processors = len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1
        torch.set_num_threads(max(1, (processors - 1) // processes))


# ---- processes beside the first -----------------------------------------------------------


def _started(process: int, task: Task, sockets: dict[int, socket.socket]) -> Beside:
    """Starts one, with its ends of connections, which it alone has then."""
    context = multiprocessing.get_context("spawn")
    said, says = context.Pipe(duplex=False)
    arguments = process, task, sockets, says
    started = context.Process(target=_serve, args=arguments, daemon=True)
    started.start()
    says.close()
    for each in sockets.values():
        each.close()
    return Beside(started, said)


def _serve(process: int, task: Task, sockets: dict[int, socket.socket], says: Connection) -> None:
    """Trains until the first process has gone."""
    if sys.platform == "linux":  # of one that is killed nothing holds the folder any longer
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (*STOPS, signal.SIGINT):  # the first says when it is over
        signal.signal(number, signal.SIG_IGN)
    links = Links(process, sockets)
    try:
        store = store_of(task.disk, task.folder, process)
        try:
            _train(task, store, links)
        finally:
            store.close()
    except PeerDown:
        pass  # another one ended, and said why
    except RatrainError as error:
        says.send((type(error), error.what, error.place, error.fix))
    finally:
        links.close()


def _train(task: Task, store: TierStore, links: Links) -> None:
    program = build(task.laid.shape, task.layout)
    training = _training(task.spec, task.laid, program, store, links)
    training.resume(task.folder)
    training.store_features()
    while True:
        training.epoch()


def _end(beside: list[Beside]) -> None:
    """Waits for processes that were told, and ends those that do not."""
    end_s = time.monotonic() + ENDS_S
    for each in beside:
        each.process.join(max(0.0, end_s - time.monotonic()))
        if each.process.is_alive():
            each.process.kill()
            each.process.join()


def _why(error: PeerDown, beside: list[Beside], watch: Watch | None) -> RatrainError:
    """Why a process has gone: what it said itself, else how it ended."""
    if watch is not None and watch.found is not None:
        stopped = beside[watch.found].process
        if stopped.exitcode is None:  # it would not end by itself
            stopped.kill()
            return RunFailed(
                f"was stopped (SIGSTOP), and did not go on for {STOPPED_S:g} s",
                place=f"process {watch.found + 1} of {len(beside) + 1}",
                fix="go on with --resume",
            )
    _end(beside)
    for number, each in enumerate(beside, 1):
        try:
            kind, what, place, fix = each.said.recv()
        except EOFError:
            continue
        return kind(f"process {number}: {what}", place=place, fix=fix)
    for number, each in enumerate(beside, 1):
        if status := each.process.exitcode:
            how = f"was ended by signal {-status}" if status < 0 else f"ended with {status}"
            return RunFailed(
                how,
                place=f"process {number} of {len(beside) + 1}",
                fix="see whether the machine has the memory, then go on with --resume",
            )
    return error
