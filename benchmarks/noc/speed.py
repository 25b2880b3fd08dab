"""How fast the mesh simulator is: CPU time of the compiled core, and of the Python model.

Run: python benchmarks/noc/speed.py [--json]

BookSim2 is not run here. Its figure (4.0 thousand cycles per CPU-second, 8x8, uniform random at
0.25 flits/node/cycle, one virtual channel) was measured elsewhere on a comparable core and is
quoted; the target is 20 times that.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ratrain.chip.noc import gemm
from ratrain.chip.noc.binding import Simulation
from ratrain.chip.noc.chip import ChipSpec
from ratrain.chip.noc.collectives import Request, collective
from ratrain.chip.noc.gemm_simulation import simulate_summa
from ratrain.chip.noc.spec import MeshSpec, Plane
from ratrain.chip.noc.traffic import Traffic, draw

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "chip" / "noc"))
from noc_reference import Reference  # pyright: ignore[reportMissingImports]

BOOKSIM2_CYCLES_PER_S = 4000.0
REPEATS = 7


def core_speed(size: int, load: float, flits: int = 1, cycles: int = 20000) -> list[float]:
    """Cycles per CPU-second of the core alone, after 2000 cycles of warm-up, several times."""
    mesh = MeshSpec(size, size)
    workload = draw(mesh, Traffic(packet_flits=flits), load, cycles + 2000)
    rates: list[float] = []
    for _ in range(REPEATS):
        sim = Simulation(workload)
        sim.run(2000)
        started = time.thread_time()
        sim.run(cycles + 2000)
        rates.append(cycles / (time.thread_time() - started))
    return rates


def reference_speed(load: float, cycles: int = 300) -> float:
    """Cycles per CPU-second of the plain Python model on 8x8."""
    workload = draw(MeshSpec(8, 8, planes=(Plane("a", 64),)), Traffic(), load, cycles)
    model = Reference(workload)
    started = time.thread_time()
    model.run()
    return model.now / (time.thread_time() - started)


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main() -> None:
    rows: dict[str, object] = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    for size, load, flits in ((8, 0.1, 1), (8, 0.25, 1), (8, 0.25, 16), (8, 1.0, 1), (4, 0.25, 1)):
        speeds = core_speed(size, load, flits)
        middle = statistics.median(speeds)
        rows[f"{size}x{size} load {load} {flits}-flit"] = {
            "cycles_per_cpu_s": round(middle),
            "lowest": round(min(speeds)),
            "highest": round(max(speeds)),
            "million_router_cycles_per_cpu_s": round(middle * size * size / 1e6, 2),
        }
    middle = statistics.median(core_speed(8, 0.25))
    rows["times BookSim2 (quoted) at 8x8, 0.25"] = round(middle / BOOKSIM2_CYCLES_PER_S, 1)
    python = reference_speed(0.25)
    rows["Python model, 8x8, 0.25"] = {"cycles_per_cpu_s": round(python)}
    rows["times the Python model"] = round(middle / python)
    chip = ChipSpec(32, 32)
    for kind in ("multicast", "reduce", "all-reduce"):
        request = Request(kind, "hw", 32768, 32, 32)
        rows[f"32x32 {kind} hw 32 KiB with values, wall s"] = round(
            seconds(lambda request=request: collective(chip, request)), 2
        )
    request = Request("reduce", "tree", 32768, 32, 32)
    rows["32x32 reduce tree 32 KiB with values, wall s"] = round(
        seconds(lambda: collective(chip, request)), 2
    )
    rows["32x32 SUMMA, 6 iterations with values, wall s"] = round(
        seconds(lambda: simulate_summa(chip, hardware=True)), 2
    )
    rows["256x256 GEMM models (both flows, all bases), wall s"] = round(
        seconds(lambda: [gemm.sweep(f, b) for f in ("summa", "fcl") for b in gemm.BASES]),
        3,
    )
    big = ChipSpec(256, 256)
    request = Request("multicast", "hw", 2048, 256, 1, values=False)
    rows["256x256 mesh, one row multicast simulated, wall s"] = round(
        seconds(lambda: collective(big, request)), 2
    )
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
        return
    for name, value in rows.items():
        print(f"{name:<54}{value}")


if __name__ == "__main__":
    main()
