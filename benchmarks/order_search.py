"""Orders found by search beside the best named ones, on random clusters that are unequal or have
slow links.

    python benchmarks/order_search.py [--replicas] [--cases 20] [--seconds 30]

A case is a model cut at random (or equally) over 3 to 8 devices of random (or equal) speeds, with
links of a random rate within and between two sites; with `--replicas` over 2 to 8 devices, each
stage on 2 or 4 of them. Its seed draws all of it. `best named`: the fastest of every named compute
order with the passes of every strategy (but those of the paper's baselines), interleaved ones with
two stages per rank. `found`: by the search, which begins with the fastest strategies and counts
processor seconds. `most`: what an order of the same ops could gain at most, by the bound that
`ratrain simulate` prints. `begun`: the gain of the fastest order that the search began with, before
any single change. `CPU s`: of the search and of the comparison of strategies before it. Every
figure of a step is the simulator's on the proved program.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

from ratrain.describe.cluster import ClusterSpec, HostKind
from ratrain.describe.job import (
    Batch,
    ClusterChoice,
    JobSpec,
    LayoutSpec,
    ModelChoice,
    ScheduleSpec,
)
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.describe.strict import FrozenMap
from ratrain.errors import RatrainError
from ratrain.plan.case.case import case_of
from ratrain.plan.orders.schedules import Comparison, as_named, compare, laid_out, layout_for
from ratrain.plan.orders.search import Limits, search_compared
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import STRATEGIES
from ratrain.simulate.long import simulate_proved

WANTED = 0.05
"""The gain that is wanted over the best named order, on half of the cases."""


def main() -> None:
    """Prints a line for each case, and how many reach the gain that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--replicas", action="store_true")
    asked = parser.parse_args()
    heads = ("best named", "step", "found", "gain", "most", "begun", "orders", "/CPU s", "CPU s")
    print("case p d  m {:26}{:>8}{:>8}{:>7}{:>7}{:>7}{:>9}{:>7}{:>6}".format(*heads), flush=True)
    jobs = (
        (seed, (replicas_case if asked.replicas else case)(seed)) for seed in range(asked.cases)
    )
    gains = [_line(seed, job, asked.seconds) for seed, job in jobs]
    reached = sum(gain >= WANTED for gain in gains)
    mean = sum(gains) / len(gains)
    print(f"{reached} of {len(gains)} gain {WANTED:.0%} over the best named; {mean:.1%} on average")


def _line(seed: int, job: JobSpec, seconds: float) -> float:
    """One case; its gain over the best named order."""
    layout = job.layout
    assert layout is not None
    began_s = time.process_time()
    comparison = compare(laid_out(job))
    searching_s = time.process_time()
    result = search_compared(comparison, Limits(seconds, clock=time.process_time), seed)
    ended_s = time.process_time()
    best_s, name = min(_named(comparison))
    order, effort = result.order, result.effort
    step_s = best_s if order is None else min(best_s, order.step_s)
    begun_s = best_s if effort.begun_s is None else min(best_s, effort.begun_s)
    bound = None if order is None else order.simulation.bound
    most = "-" if bound is None else f"{max(0.0, 1 - bound.time_s / best_s):.1%}"
    gain = 1 - step_s / best_s
    print(
        f"{seed:4}{layout.pipeline:2}{layout.data:2}{job.batch.sequences // layout.data:3} "
        f"{name:26}{best_s:8.3f}{step_s:8.3f}{gain:7.1%}{most:>7}{1 - begun_s / best_s:7.1%}"
        f"{effort.evaluations:9,}{effort.evaluations / max(ended_s - searching_s, 1e-9):7,.0f}"
        f"{ended_s - began_s:6.0f}",
        flush=True,
    )
    return gain


def _named(comparison: Comparison) -> Iterator[tuple[float, str]]:
    """The step of every named order with the passes of every strategy, where it fits."""
    for row in comparison.rows:
        if row.predicted is not None and row.predicted.fits:
            yield row.predicted.step_s, row.name
    strategies = [name for name in STRATEGIES if not name.startswith("paper-")]
    orders = [name for name, skeleton in SKELETONS.items() if skeleton.fixed is None]
    for name, order in product(strategies, orders):
        job = as_named(comparison.job, name)
        job = replace(job, layout=layout_for(job, comparison.layout, order))
        job = replace(job, schedule=replace(job.schedule, skeleton=order))
        try:
            chosen = case_of(job)
        except RatrainError:
            continue
        if chosen.proved.verdict.sound:
            step_s = simulate_proved(chosen.proved, chosen.costs).step_time_s
            yield step_s, f"{order} + {name}"


def case(seed: int) -> JobSpec:
    """A random job: unequal devices, layers cut unequally, slow links, or several of these."""
    rng = Random(seed)
    stages = rng.choice([3, 4, 5, 6, 8, 8])
    speeds: list[float] = [rng.choice([0.5, 0.7, 1, 1, 1.4, 2]) for _ in range(stages)]
    if rng.random() >= 0.6:
        speeds = [1.0] * stages
    megabits = rng.choice([25, 50, 100, 200, 1000])
    slower_between = rng.choice([1, 1, 2, 4])
    cluster = _cluster(rng, speeds, megabits * 1e6 / 8, slower_between)
    split = [rng.randint(2, 6) for _ in range(stages)]
    if rng.random() < 0.4:
        split = [3] * stages
    model = replace(model_preset("small-llama"), layers=sum(split))
    return JobSpec(
        ModelChoice(model, 256),
        ClusterChoice(cluster, stages),
        Batch(rng.choice([8, 12, 16, 24])),
        LayoutSpec(stages, layers=tuple(split)),
        ScheduleSpec("ratrain", dtype="fp32"),
    )


def replicas_case(seed: int) -> JobSpec:
    """A random job whose stages are each on several devices: equal ones, so that a link is what is
    slow, or stages of unequal depth."""
    rng = Random(1000 + seed)
    stages, data = rng.choice([(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (3, 2), (4, 2)])
    split = [rng.randint(2, 6) for _ in range(stages)]
    if rng.random() < 0.4:
        split = [3] * stages
    megabits = rng.choice([25, 50, 100, 200, 300])
    cluster = _cluster(rng, [1.0] * (stages * data), megabits * 1e6 / 8, rng.choice([1, 1, 2]))
    model = replace(model_preset("small-llama"), layers=sum(split))
    return JobSpec(
        ModelChoice(model, 256),
        ClusterChoice(cluster, stages * data),
        Batch(data * rng.choice([4, 8, 12, 16])),
        LayoutSpec(stages, data=data, layers=tuple(split)),
        ScheduleSpec("ratrain", dtype="fp32"),
    )


def _cluster(rng: Random, speeds: list[float], rate_bytes_per_s: float, slower: int) -> ClusterSpec:
    """Hosts of one device each, the first half of them at one site, the rest at another."""
    preset = cluster_preset("cpu-lab")
    device, room = preset.device[0], preset.links["room"]
    rate = device.rates[0]
    devices = tuple(
        replace(
            device,
            name=f"device-{number}",
            rates=(
                replace(
                    rate, gemm_flops=rate.gemm_flops * speed, peak_flops=rate.peak_flops * speed
                ),
            ),
        )
        for number, speed in enumerate(speeds)
    )
    sites = ["east" if number < len(speeds) // 2 else "west" for number in range(len(speeds))]
    hosts = tuple(
        HostKind(f"host-{number}", f"device-{number}", 1, 1, room=site, site=site)
        for number, site in enumerate(sites)
    )
    links = {
        "room": replace(room, bandwidth_bytes_per_s=rate_bytes_per_s),
        "world": replace(
            room,
            latency_s=rng.choice([0.001, 0.01]),
            bandwidth_bytes_per_s=rate_bytes_per_s / slower,
        ),
    }
    return ClusterSpec("random", devices, hosts, FrozenMap(links))


if __name__ == "__main__":
    main()
