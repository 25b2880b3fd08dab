"""NIXL and Mooncake as peers of the comparison, each in an interpreter of its own.

    python -m venv /tmp/others
    /tmp/others/bin/pip install numpy
    /tmp/others/bin/pip install --no-deps nixl-cu12 mooncake-transfer-engine-non-cuda
    python benchmarks/transport/peers.py --others /tmp/others/bin/python

`peers.py` starts this file with that interpreter, once for each of KINDS, and asks over a pipe.
Neither is a dependency of RATrain. Both need no GPU for this (NIXL: UCX inside its wheel;
Mooncake: the wheel without CUDA, as the other one wants libcudart.so.12). Debian packages that
they link against: libibverbs1, librdmacm1, libnuma1.

NIXL: prepared lists of descriptors and requests, so that no write pays for building them, without
its progress thread (which takes 6 ms for each write on two cores); a write counts when the
receiver has its notification, as ours does. Mooncake: metadata mode P2PHANDSHAKE; its writes
bring no immediate, so the one-way time is taken by a receiver that watches the last byte, and
a write counts when the sender has its acknowledgement. Both look without rest while they wait.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

SPACE = 128 << 20
KINDS = ("nixl tcp", "nixl shm", "mooncake")
_UCX = {"nixl tcp": ("tcp", "lo"), "nixl shm": ("posix,cma,self,sm,tcp", "lo")}


class Nixl:
    """One end over UCX; the other end is the agent of the process at `pipe`."""

    def __init__(self, name: str, pipe: Connection) -> None:
        from nixl_cu12._api import (  # pyright: ignore[reportMissingImports]
            nixl_agent,
            nixl_agent_config,
        )

        config = nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self.agent = nixl_agent(name, config)
        self.pipe = pipe
        self.space = np.ones(SPACE, np.uint8)
        self.base = int(self.space.ctypes.data)
        self.agent.register_memory([(self.base, SPACE, 0, "")], "DRAM")
        pipe.send((self.agent.get_agent_metadata(), self.base))
        metadata, self.far_base = pipe.recv()
        far = self.agent.add_remote_agent(metadata)
        self.far = far if isinstance(far, str) else far.decode()
        self.requests: dict[int, list[Any]] = {}
        self.arrived = 0

    def _prepare(self, size: int) -> list[Any]:
        """One request for each part of the space."""
        if size in self.requests:
            return self.requests[size]
        agent, slots = self.agent, min(SPACE // size, 2048)
        rows = [[(base + i * size, size, 0) for i in range(slots)] for base in self._bases()]
        here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", rows[0], "DRAM")
        there = agent.prep_xfer_dlist(self.far, rows[1], "DRAM")
        made = [agent.make_prepped_xfer("WRITE", here, [i], there, [i], b"w") for i in range(slots)]
        self.requests[size] = made
        return made

    def _bases(self) -> tuple[int, int]:
        return self.base, self.far_base

    def _await(self, count: int) -> None:
        """Until `count` notifications have come."""
        while self.arrived < count:
            for notifications in self.agent.get_new_notifs().values():
                self.arrived += len(notifications)
        self.arrived -= count

    def _write(self, request: Any) -> None:
        if self.agent.transfer(request) == "ERR":
            raise RuntimeError("NIXL refused a write")

    def _finish(self, request: Any) -> None:
        while (state := self.agent.check_xfer_state(request)) != "DONE":
            if state == "ERR":
                raise RuntimeError("a NIXL write failed")

    def answer(self, size: int, count: int) -> None:
        """The far end of `one_way_us`."""
        request = self._prepare(size)[0]
        for _ in range(count):
            self._await(1)
            self._write(request)
            self._finish(request)  # its notification leaves only while the sender asks

    def one_way_us(self, size: int, count: int) -> float:
        """Median of half a ping-pong of writes with notification."""
        self.pipe.send(("answer", size, count))
        request, times = self._prepare(size)[0], list[float]()
        for _ in range(count):
            began = time.perf_counter()
            self._write(request)
            self._finish(request)
            self._await(1)
            times.append(time.perf_counter() - began)
        return statistics.median(times) / 2 * 1e6

    def count(self, size: int, count: int) -> None:
        """The far end of `gb_per_s`."""
        self._await(count)
        self.pipe.send("counted")

    def gb_per_s(self, size: int, total: int) -> float:
        """Windowed writes, until the receiver has every notification."""
        requests, count = self._prepare(size), max(8, total // size)
        self.pipe.send(("count", size, count))
        window = min(4 if size >= 4 << 20 else 32, len(requests) - 1)
        flying = list[Any]()
        began = time.perf_counter()
        for i in range(count):
            request = requests[i % len(requests)]
            self._write(request)
            flying.append(request)
            if len(flying) > window:
                self._finish(flying.pop(0))
        for request in flying:
            self._finish(request)
        self.pipe.recv()
        return count * size / (time.perf_counter() - began) / 1e9


class Mooncake:
    """One end over Mooncake's TCP transport."""

    def __init__(self, name: str, pipe: Connection) -> None:
        from mooncake.engine import TransferEngine  # pyright: ignore[reportMissingImports]

        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("Mooncake does not start")
        self.pipe = pipe
        self.space = np.ones(SPACE, np.uint8)
        self.base = int(self.space.ctypes.data)
        if self.engine.register_memory(self.base, SPACE):
            raise RuntimeError("Mooncake does not register memory")
        pipe.send((f"127.0.0.1:{self.engine.get_rpc_port()}", self.base))
        self.far, self.far_base = pipe.recv()

    def _write(self, size: int, at: int = 0) -> None:
        if self.engine.transfer_sync_write(self.far, self.base + at, self.far_base + at, size):
            raise RuntimeError("a Mooncake write failed")

    def answer(self, size: int, count: int) -> None:
        """The far end of `one_way_us`: its own space serves for both directions, in halves."""
        self._ping(size, count, first=False)

    def _ping(self, size: int, count: int, *, first: bool) -> list[float]:
        """Writes go into the far end's second half; ours is filled from there."""
        half, times = SPACE // 2, list[float]()
        mine, last = self.space[:size], half + size - 1
        watched = self.space.data
        for i in range(count):
            mark = i % 250 + 2
            began = time.perf_counter()
            if not first:
                while watched[last] != mark:
                    pass
            mine[-1] = mark
            if self.engine.transfer_sync_write(self.far, self.base, self.far_base + half, size):
                raise RuntimeError("a Mooncake write failed")
            if first:
                while watched[last] != mark:
                    pass
            times.append(time.perf_counter() - began)
        return times

    def one_way_us(self, size: int, count: int) -> float:
        """Median of half a ping-pong, each side watching the last byte."""
        self.space[SPACE // 2 : SPACE // 2 + size] = 0
        self.pipe.send(("answer", size, count))
        self.pipe.recv()
        return statistics.median(self._ping(size, count, first=True)) / 2 * 1e6

    def count(self, size: int, count: int) -> None:
        """The far end of `gb_per_s` has nothing to do."""

    def gb_per_s(self, size: int, total: int) -> float:
        """The better of one acknowledged write after the other, and windowed ones."""
        total //= 2
        return max(self._one_by_one(size, total), self._windowed(size, total))

    def _one_by_one(self, size: int, total: int) -> float:
        slots, count = SPACE // size, max(8, total // size)
        began = time.perf_counter()
        for i in range(count):
            self._write(size, i % slots * size)
        return count * size / (time.perf_counter() - began) / 1e9

    def _windowed(self, size: int, total: int) -> float:
        slots, count = SPACE // size, max(8, total // size)
        window, flying = 4 if size >= 4 << 20 else 32, list[int]()
        began = time.perf_counter()
        for i in range(count):
            at = i % slots * size
            args = (self.far, self.base + at, self.far_base + at, size)
            flying.append(self.engine.transfer_submit_write(*args))
            if len(flying) >= window:
                self._finish(flying.pop(0))
        for number in flying:
            self._finish(number)
        return count * size / (time.perf_counter() - began) / 1e9

    def _finish(self, number: int) -> None:
        while (state := self.engine.transfer_check_status(number)) != 1:
            if state < 0:
                raise RuntimeError("a Mooncake write failed")


def make(kind: str, name: str, pipe: Connection) -> Nixl | Mooncake:
    """One end of `kind`."""
    if kind in _UCX:
        os.environ["UCX_TLS"], os.environ["UCX_NET_DEVICES"] = _UCX[kind]
        return Nixl(name, pipe)
    return Mooncake(name, pipe)


def far_end(kind: str, pipe: Connection) -> None:
    """Serve the other end until told to end."""
    end = make(kind, "far", pipe)
    while (job := pipe.recv()) is not None:
        what, size, count = job
        if what == "answer":
            if isinstance(end, Mooncake):
                end.space[SPACE // 2 : SPACE // 2 + size] = 0
                pipe.send("ready")
            end.answer(size, count)
        else:
            end.count(size, count)
    os._exit(0)  # their own threads are of no interest any more


class Other:
    """A peer of `peers.py` in a process of the interpreter `python` (`script` is its near end);
    ImportError where it does not run."""

    def __init__(self, kind: str, python: str, script: str = "others.py") -> None:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self.child = subprocess.Popen(
            [python, str(Path(__file__).resolve().with_name(script)), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.DEVNULL,
            env=clean,
        )
        self._read()

    def _read(self) -> float:
        assert self.child.stdout is not None
        for line in self.child.stdout:  # they log to the same place
            if line.startswith('{"'):
                answer = json.loads(line)
                if "error" in answer:
                    raise ImportError(answer["error"])
                return answer["value"]
        raise ImportError("its process ended")

    def _ask(self, what: str, size: int, count: int) -> float:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps([what, size, count]) + "\n")
        self.child.stdin.flush()
        return self._read()

    def one_way_us(self, size: int, count: int) -> float:
        """As the others."""
        return self._ask("one_way_us", size, count)

    def gb_per_s(self, size: int, total: int) -> float:
        """As the others."""
        return self._ask("gb_per_s", size, total)

    def pages_per_s(self, page: int, count: int = 8000) -> float:
        """As ours."""
        return self._ask("pages_per_s", page, count)

    def close(self) -> None:
        """End."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(10)


def main() -> None:
    """The near end: answer the questions on standard input."""
    context = mp.get_context("spawn")
    pipe, theirs = context.Pipe()
    context.Process(target=far_end, args=(sys.argv[1], theirs), daemon=True).start()
    try:
        end = make(sys.argv[1], "near", pipe)
    except (ImportError, RuntimeError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        os._exit(1)
    print(json.dumps({"value": 0}), flush=True)
    for line in sys.stdin:
        what, size, count = json.loads(line)
        print(json.dumps({"value": getattr(end, what)(size, count)}), flush=True)
    pipe.send(None)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
