"""How fast the planner is, and how far its closed forms are from proof and simulation.

python benchmarks/planner.py speed     plans checked against memory per second, whole searches
python benchmarks/planner.py gap       closed form against simulation, 1,000 random plans
"""

from __future__ import annotations

import platform
import random
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from ratrain.describe.job import Batch, ClusterChoice, JobSpec, ModelChoice, ScheduleSpec
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.plan.layout.enumerate import groups_of
from ratrain.plan.layout.plan import plan_of_row
from ratrain.plan.price.bill import bill_of
from ratrain.plan.price.held import held_by_ranks_of, most_held_of
from ratrain.plan.price.places import costs_of
from ratrain.plan.search.layouts import check, search_layouts
from ratrain.program.strategies import apply_strategy
from ratrain.program.verify import verify
from ratrain.simulate.simulate import simulate

RUNS = 5
PLANS = 1000
JOBS = {
    "GPT-3 175B, 1,024 A100": ("gpt3-175b", "a100-80g-dgx", 1024, 1536, None),
    "LLaMA-2 70B, 1,024 mt3000": ("llama-2-70b", "mt3000", 1024, 8192, 20_000_000_000),
    "Qwen2.5 32B, 256 mt3000": ("qwen2.5-32b", "mt3000", 256, 4096, 20_000_000_000),
}


def job(
    model: str,
    cluster: str,
    devices: int,
    sequences: int,
    budget_bytes: int | None,
    sequence_length: int = 2048,
) -> JobSpec:
    return JobSpec(
        ModelChoice(model_preset(model), sequence_length),
        ClusterChoice(cluster_preset(cluster), devices),
        Batch(sequences),
        None,
        ScheduleSpec(memory_budget_bytes=budget_bytes, backend="described"),  # every axis
    )


def median_s(action: Callable[[], object]) -> float:
    """Median process seconds of a few runs, caches emptied before each."""
    times_s: list[float] = []
    for _ in range(RUNS):
        held_by_ranks_of.cache_clear()
        most_held_of.cache_clear()
        begin = time.process_time()
        action()
        times_s.append(time.process_time() - begin)
    return statistics.median(times_s)


def speed() -> None:
    """A bill is one plan checked: a row in one recovery mode, every item of every rank."""
    print("job                            bills   bills/s    rows  rows/s all  search")
    for name, described in JOBS.items():
        spec = job(*described)
        groups = list(groups_of(spec))
        rows = sum(len(group) for group in groups)

        def bills(chosen: list = groups) -> None:
            for group in chosen:
                for code in range(3):
                    bill_of(group, np.full((len(group), group.layout.stages), code))

        def checks(chosen: JobSpec = spec) -> None:
            for group in groups_of(chosen):
                check(group)

        bills_s, checks_s = median_s(bills), median_s(checks)
        begin = time.perf_counter()
        search_layouts(spec)
        took_s = time.perf_counter() - begin
        print(
            f"{name:<28} {3 * rows:7,d} {3 * rows / bills_s:9,.0f} {rows:7,d} "
            f"{rows / checks_s:11,.0f} {took_s:5.1f} s"
        )


def gap() -> None:
    """Random plans that fit: RATrain's strategy, clusters of one kind of device and mixed ones."""
    rng = random.Random(0)
    for clusters in (("mt3000", "a100-80g-dgx", "cpu-lab"), ("mixed-sites",)):
        times: list[float] = []
        memory: list[float] = []
        while len(times) < (PLANS if len(clusters) > 1 else PLANS // 5):
            cluster = rng.choice(clusters)
            devices = rng.choice([1, 2, 4] if cluster == "cpu-lab" else [4, 8, 12, 16])
            model = rng.choice(["small-llama", "small-qwen", "gpt-3.6b", "llama-2-7b"])
            length, sequences = rng.choice([512, 1024]), rng.choice([16, 32, 48, 64])
            spec = job(model, cluster, devices, sequences, None, length)
            groups = [g for g in groups_of(spec) if g.micro_batches * g.layout.stages <= 400]
            if not groups:
                continue
            checked = check(rng.choice(groups))
            fitting = np.flatnonzero(checked.fits).tolist()
            if not fitting:
                continue
            row = rng.choice(fitting)
            made = plan_of_row(checked.group, row, checked.recovery[row])
            program = apply_strategy(made.strategy, made.setup, made.choices)
            verdict = verify(program)
            costs = costs_of(made, program.setup)
            simulated = simulate(program, costs, verdict=verdict)
            times.append(float(checked.step_s[row]) / simulated.step_time_s - 1)
            if made.alike.micro_batches > made.layout.pipeline:
                left = spec.budgets[0] + int(checked.missing_bytes[row])
                memory.append(left / simulated.bound_bytes - 1)
        show(f"step time, {', '.join(clusters)}", times)
        show("  bill against proof, full pipelines", memory)


def show(name: str, gaps: list[float]) -> None:
    sizes = np.abs(gaps)
    print(
        f"{name}: {len(gaps)} plans, mean {sizes.mean():.2%}, median {np.median(sizes):.2%}, "
        f"95th percentile {np.percentile(sizes, 95):.2%}, bias {np.mean(gaps):+.2%}, "
        f"worst {sizes.max():.1%}, lowest {min(gaps):+.1%}"
    )


if __name__ == "__main__":
    print(f"Python {platform.python_version()}, {platform.machine()}, numpy {np.__version__}")
    {"speed": speed, "gap": gap}[sys.argv[1] if len(sys.argv) > 1 else "speed"]()
