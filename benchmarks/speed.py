"""How fast RATrain builds, proves and simulates programs, and how fast its commands answer.

    python benchmarks/speed.py            (about a minute)
    python benchmarks/speed.py --runs 3

Medians of several runs in one call, wall time and CPU time. An op is one row of a program's
table in one simulated step; memory of every rank is accounted for in every row. Where SimPy is
installed, its events per second are measured in the same call: one timeout of one process each.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ratrain.compiled import library
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.program.kind import Kind
from ratrain.program.program import Program
from ratrain.program.replicas import Replica, Unit, stage
from ratrain.program.setup import Setup
from ratrain.program.skeletons import build
from ratrain.program.text import read_text, write_text
from ratrain.program.verify import verify
from ratrain.simulate.costs import Costs, costs_of_ops, fixed_work
from ratrain.simulate.engine import run
from ratrain.simulate.simulate import STEPS, simulate

EXAMPLES = Path(__file__).parents[1] / "examples"
STAGES, MICRO_BATCHES = 64, 512


def main() -> None:
    """Prints the machine and every row."""
    parser = argparse.ArgumentParser(description="How fast RATrain is.")
    parser.add_argument("--runs", type=int, default=7, help="runs of each row (default 7)")
    runs: int = parser.parse_args().runs
    print(machine())
    print(f"\n{'median of ' + str(runs) + ' runs':48}{'wall':>10}{'CPU':>10}{'Mops/s':>10}")
    plain_1f1b(runs)
    full_program(runs)
    commands(runs)
    if find_spec("simpy"):
        other_simulator(runs)


def machine() -> str:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    parts = (("simulate", "engine_c"), ("program", "walk_c"), ("program", "edges_c"))
    compiled = all(library(room, name) for room, name in parts)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{model}, {os.cpu_count()} cores{load}\n"
        f"ratrain {metadata.version('ratrain')}, Python {platform.python_version()}, "
        f"numpy {np.__version__}, cores {'compiled' if compiled else 'IN PYTHON'}"
    )


def measure(
    label: str, runs: int, work: Callable[[], Any], ops: int = 0, *, children: bool = False
) -> None:
    """One row: the medians of `work`'s wall and CPU time; `children`: CPU of its processes."""
    walls, cpus = [], []
    for _ in range(runs):
        began = time.perf_counter(), _cpu_s(children)
        work()
        walls.append(time.perf_counter() - began[0])
        cpus.append(_cpu_s(children) - began[1])
    wall_s, cpu_s = median(walls), median(cpus)
    rate = f"{ops / wall_s / 1e6:10.2f}" if ops else ""
    print(f"{label:48}{1e3 * wall_s:7.1f} ms{1e3 * cpu_s:7.1f} ms{rate}", flush=True)


def _cpu_s(children: bool) -> float:
    spent = os.times()
    return spent.children_user + spent.children_system if children else time.process_time()


# ---- rows -------------------------------------------------------------------------------


def plain_1f1b(runs: int) -> None:
    """A large plain pipeline, part by part."""
    stages = tuple(stage(n, (Unit(str(n), 100, 100, 600, 10, 50),), 10) for n in range(STAGES))
    setup = Setup((Replica(stages, MICRO_BATCHES),))
    program = build("1f1b", setup)
    table, costs = program.table, _plain_costs(program)
    op_costs = costs_of_ops(table, costs)
    rates, ops = costs.link_rate_bytes_per_s, len(table)
    verdict = verify(program)
    print(f"1F1B, {STAGES} stages x {MICRO_BATCHES} micro-batches, {ops:,} ops a step")
    measure("  build", runs, lambda: build("1f1b", setup), ops)
    measure("  table", runs, lambda: Program(setup, program.lanes).table, ops)
    measure("  table and edges", runs, lambda: Program(setup, program.lanes).table.edges, ops)
    measure("  verify (two steps; table and edges at hand)", runs, lambda: verify(program), 2 * ops)
    measure("  clock, 1 step", runs, lambda: run(table, op_costs, rates, 1), ops)
    measure(
        f"  clock, {STEPS} steps", runs, lambda: run(table, op_costs, rates, STEPS), STEPS * ops
    )
    measure(
        f"  simulate, {STEPS} steps, itemised",
        runs,
        lambda: simulate(program, costs, verdict=verdict),
        STEPS * ops,
    )


def _plain_costs(program: Program) -> Costs:
    units = len(program.table.states.units.rank)
    time_s = {
        **{k: 0.0 for k in Kind if k.is_message or k.is_barrier or k is Kind.UpdateShard},
        Kind.F: 2.0,
        Kind.B: 4.0,
        Kind.SEND_F: 0.1,
        Kind.SEND_B: 0.1,
    }
    work = {kind: fixed_work(np.full(units, each_s)) for kind, each_s in time_s.items()}
    return Costs(work, np.zeros(0))


def full_program(runs: int) -> None:
    """RATrain's own program for 32 billion parameters: every pass, shared links, memory."""
    case = case_of(load_job(EXAMPLES / "qwen32b-mt3000.toml"))
    program, costs = case.program, case.costs
    table, verdict = program.table, verify(program)
    op_costs = costs_of_ops(table, costs)
    rates, ops = costs.link_rate_bytes_per_s, len(table)
    print(f"RATrain, 32B on 256 clusters, {ops:,} ops a step")
    measure("  verify (two steps; table and edges at hand)", runs, lambda: verify(program), 2 * ops)
    measure(
        f"  clock, {STEPS} steps", runs, lambda: run(table, op_costs, rates, STEPS), STEPS * ops
    )
    measure(
        f"  simulate, {STEPS} steps, itemised",
        runs,
        lambda: simulate(program, costs, verdict=verdict),
        STEPS * ops,
    )
    text = write_text(program)
    measure("  text, written", runs, lambda: write_text(program), ops)
    measure("  text, read", runs, lambda: read_text(text), ops)


def commands(runs: int) -> None:
    """Whole commands, interpreter start and imports included."""
    start = "import sys; sys.argv[0] = 'ratrain'; from ratrain.cli.main import main; main()"
    lines = (
        ("ratrain --help", ["--help"]),
        ("ratrain simulate, 7B on 1,024 clusters", _simulate("llama7b-1024-mt3000.toml")),
        ("ratrain simulate, 32B on 256 clusters", _simulate("qwen32b-mt3000.toml")),
    )
    print("whole commands")
    for label, arguments in lines:
        measure(f"  {label}", runs, lambda a=arguments: _call([sys.executable, "-c", start, *a]),
                children=True)  # fmt: skip


def _simulate(example: str) -> list[str]:
    return ["simulate", str(EXAMPLES / example)]


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def other_simulator(runs: int) -> None:
    """SimPy's bare event loop: processes that wait, nothing accounted for."""
    simpy = import_module("simpy")
    processes, waits = 100, 2000

    def waiting(env: Any) -> Any:
        for _ in range(waits):
            yield env.timeout(1.0)

    def work() -> None:
        env = simpy.Environment()
        for _ in range(processes):
            env.process(waiting(env))
        env.run()

    print(f"SimPy {metadata.version('simpy')}, for comparison")
    measure("  timeouts alone", runs, work, processes * waits)


if __name__ == "__main__":
    main()
