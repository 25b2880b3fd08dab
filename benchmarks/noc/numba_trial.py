"""C or numba? The same small kernel (unicast only, plain round robin) in numba, beside the core.

Run in an environment that also has numba (no dependency of RATrain):
    PYTHONPATH=src python benchmarks/noc/numba_trial.py
"""

from __future__ import annotations

import time

import numba  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc.binding import Simulation
from ratrain.chip.noc.spec import MeshSpec
from ratrain.chip.noc.traffic import Traffic, draw

Ints = NDArray[np.int64]
CYCLES, WARMUP, SIZE, LOAD = 20000, 2000, 8, 0.25


@numba.njit(cache=False)
def kernel(k: int, cycles: int, src: Ints, dst: Ints, at: Ints) -> int:
    """Single-flit packets on a k x k mesh with 2 + 2 queues; how many flits came out."""
    nodes = k * k
    flits = np.zeros((nodes, 10, 2), np.int64)
    head = np.zeros((nodes, 10), np.int64)
    count = np.zeros((nodes, 10), np.int64)
    start = np.zeros((nodes, 10), np.int64)
    rr = np.zeros((nodes, 5), np.int64)
    waiting = np.full(nodes, -1, np.int64)
    tail = np.full(nodes, -1, np.int64)
    after = np.full(len(src), -1, np.int64)
    step = np.array([k, 1, -k, -1])
    opposite = np.array([2, 3, 0, 1])
    coming = out = 0
    for now in range(cycles):
        while coming < len(src) and at[coming] <= now:
            node = src[coming]
            if waiting[node] < 0:
                waiting[node] = coming
            else:
                after[tail[node]] = coming
            tail[node] = coming
            coming += 1
        start[:] = count
        for node in range(nodes):
            x, y = node % k, node // k
            want = np.full(5, -1, np.int64)
            for i in range(5):
                if start[node, i]:
                    to = dst[flits[node, i, head[node, i] & 1]]
                    tx, ty = to % k, to // k
                    if x != tx:
                        want[i] = 1 if x < tx else 3
                    elif y != ty:
                        want[i] = 0 if y < ty else 2
                    else:
                        want[i] = 4
            for o in range(5):
                if start[node, 5 + o] >= 2:
                    continue
                for j in range(5):
                    i = (rr[node, o] + j) % 5
                    if want[i] == o:
                        place = (head[node, 5 + o] + count[node, 5 + o]) & 1
                        flits[node, 5 + o, place] = flits[node, i, head[node, i] & 1]
                        count[node, 5 + o] += 1
                        head[node, i] += 1
                        count[node, i] -= 1
                        rr[node, o] = (i + 1) % 5
                        break
        for node in range(nodes):
            for port in range(5):
                q = 5 + port
                if not start[node, q]:
                    continue
                if port < 4:
                    to, into = node + step[port], opposite[port]
                    if start[to, into] >= 2:
                        continue
                    place = (head[to, into] + count[to, into]) & 1
                    flits[to, into, place] = flits[node, q, head[node, q] & 1]
                    count[to, into] += 1
                else:
                    out += 1
                head[node, q] += 1
                count[node, q] -= 1
            if waiting[node] >= 0 and start[node, 4] < 2:
                flits[node, 4, (head[node, 4] + count[node, 4]) & 1] = waiting[node]
                count[node, 4] += 1
                waiting[node] = after[waiting[node]]
    return out


def main() -> None:
    mesh = MeshSpec(SIZE, SIZE)
    workload = draw(mesh, Traffic(), LOAD, CYCLES + WARMUP)
    table = workload.task_table()
    src, dst, at = (np.ascontiguousarray(table[:, c]) for c in (6, 7, 17))
    started = time.perf_counter()
    kernel(SIZE, 1, src, dst, at)
    compile_s = time.perf_counter() - started
    for _ in range(3):
        started = time.thread_time()
        out = kernel(SIZE, CYCLES, src, dst, at)
        numba_rate = CYCLES / (time.thread_time() - started)
        sim = Simulation(workload)
        started = time.thread_time()
        sim.run(CYCLES)
        core_rate = CYCLES / (time.thread_time() - started)
        print(
            f"numba (unicast only) {numba_rate:9.0f} cycles/CPU-s, {out} flits; "
            f"C core (everything) {core_rate:9.0f}, {sim.counters()['ejected']} flits"
        )
    print(f"numba compiles the small kernel in {compile_s:.1f} s, in every new process")


if __name__ == "__main__":
    main()
