"""Orders found by search beside the best named ones, on random pipelines of unequal stages or slow
links.

    python benchmarks/order_search.py [--cases 20] [--seconds 30]

A case is a model cut at random (or equally) over 3 to 8 devices of random (or equal) speeds, with
links of a random rate within and between two sites. Every strategy of the registry is simulated
on it with all its passes, interleaved ones with two stages per rank; the search begins with those
that fit. `same passes`: the fastest named order on the passes and the layout of the order found.
`most`: what an order could gain at most on that layout, whose busiest rank computes for so long.
`most`: what an order could gain at most on the layout found, where the busiest rank computes that
long. `begun`: the gain of the fastest order that the search began with, before any single change.
Every figure of a step is the simulator's on the proved program.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
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
from ratrain.plan.order_search import Limits
from ratrain.plan.schedules import compare_schedules
from ratrain.plan.searched_order import search_for

WANTED = 0.05
"""The gain that is wanted over the best named order, on half of the cases."""


def main() -> None:
    """Prints a line for each case, and how many reach the gain that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    heads = ("best named", "step", "same passes", "step", "found", "gain", "most", "begun")
    print(
        "case p  m {:14}{:>7} {:14}{:>7}{:>7}{:>7}{:>7}{:>7}".format(*heads)
        + f"{'orders':>8}{'/s':>6}{'/CPU s':>7}{'s':>5}",
        flush=True,
    )
    gains = [_line(seed, asked.seconds) for seed in range(asked.cases)]
    for number, over in enumerate(("the best named", "that and the same passes' best")):
        reached = sum(gain[number] >= WANTED for gain in gains)
        mean = sum(gain[number] for gain in gains) / len(gains)
        print(f"{reached} of {len(gains)} gain {WANTED:.0%} over {over}; {mean:.1%} on average")


def _line(seed: int, seconds: float) -> tuple[float, float]:
    """One case; its gain over the best named order, and over the best of these and of all orders
    with the same passes."""
    job = case(seed)
    assert job.layout is not None
    began_s = time.perf_counter()
    comparison = compare_schedules(job)
    best_s = comparison.fastest_s
    assert best_s is not None
    searching_s = time.process_time()
    result = search_for(comparison, Limits(seconds), seed)
    ended_s = time.process_time()
    wall_s = time.perf_counter() - began_s
    order, effort = result.order, result.effort
    name, same_s = ("-", best_s) if order is None else order.same_passes or ("-", best_s)
    step_s = best_s if order is None else order.step_s
    begun_s = best_s if effort.begun_s is None else min(best_s, effort.begun_s)
    gain = 1 - step_s / best_s
    ranks = () if order is None else order.simulation.ranks
    least_s = max((times.compute_s + times.recovery_s for times in ranks), default=best_s)
    print(
        f"{seed:4}{job.layout.pipeline:2}{job.batch.sequences:3} {comparison.rows[0].name:14}"
        f"{best_s:7.3f} {name:14}{same_s:7.3f}{step_s:7.3f}{gain:7.1%}{1 - least_s / best_s:7.1%}"
        f"{1 - begun_s / best_s:7.1%}{effort.evaluations:8,}"
        f"{effort.evaluations / effort.seconds:6,.0f}"
        f"{effort.evaluations / (ended_s - searching_s):7,.0f}{wall_s:5.0f}",
        flush=True,
    )
    return gain, 1 - step_s / min(best_s, same_s)


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
