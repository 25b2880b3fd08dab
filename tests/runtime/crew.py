"""Processes that stay and run one configuration after another, so that many cost little time."""

from __future__ import annotations

import multiprocessing as mp
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (
    PrefixStore,  # type: ignore[attr-defined]
    TCPStore,  # type: ignore[attr-defined]
)

Work = Callable[..., Any]
"""What a rank is asked to do: called with (rank, world size, what the asker gave)."""

PATIENCE_S = 300


class Crew:
    """`size` processes with torch loaded; each `ask` opens a new process group among the first."""

    def __init__(self, size: int) -> None:
        context = mp.get_context("spawn")
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._asked = 0
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            arguments = rank, self._store.port, theirs
            process = context.Process(target=_member, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._ends.append(mine)
            self._processes.append(process)

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def ask(self, world_size: int, work: Work, *given: Any) -> list[Any]:
        """What `work` returned on each rank; the first rank's failure is raised."""
        self._asked += 1
        for end in self._ends[:world_size]:
            end.send((self._asked, world_size, work, given))
        found: list[Any] = []
        for rank, end in enumerate(self._ends[:world_size]):
            if not end.poll(PATIENCE_S):
                raise AssertionError(f"rank {rank} does not answer: {work.__name__} {given}")
            found.append(end.recv())
        for rank, (problem, _) in enumerate(found):
            assert not problem, f"rank {rank}: {problem}"
        return [result for _, result in found]


def _member(rank: int, port: int, end: Connection) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    while True:
        number, world_size, work, given = end.recv()
        dist.init_process_group(
            "gloo",
            store=PrefixStore(str(number), store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=PATIENCE_S),
        )
        try:
            end.send(("", work(rank, world_size, *given)))
        except BaseException:
            end.send((traceback.format_exc(), None))
        dist.destroy_process_group()
