"""How long `ratrain plan` takes on many devices of four kinds.

    python benchmarks/unequal/large.py                  # 1,024 devices, 256 of each kind
    python benchmarks/unequal/large.py --devices 256

Plans of identical replicas: which devices stay idle, the order of kinds, degrees, cuts, sizes.
On up to 256 devices, those of unequal replicas and stages too.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from ratrain.describe.cluster import ClusterSpec, HostKind
from ratrain.describe.job import Batch, ClusterChoice, JobSpec, ModelChoice, ScheduleSpec
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.plan.price.kind_speed import parts_of_cluster
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.search.unequal import searchable, unequal_search

KINDS = ((1.0, 80), (0.6, 48), (0.35, 64), (0.2, 32))
"""Speed as a part of an A100's, and GB."""
WANTED_S = 10.0
STARTS = 4
"""Plans of identical replicas with which the search for others begins, as `plan` does."""


def four_kinds(devices: int) -> ClusterSpec:
    """An equal number of four kinds, in hosts of eight."""
    base = cluster_preset("mixed-sites")
    a100 = base.device[0]
    kinds = tuple(
        replace(
            a100,
            name=f"kind-{number}",
            tiers=(replace(a100.tiers[0], capacity_bytes=size * 10**9), *a100.tiers[1:]),
            rates=tuple(
                replace(rate, peak_flops=rate.peak_flops * part, gemm_flops=rate.gemm_flops * part)
                for rate in a100.rates
            ),
        )
        for number, (part, size) in enumerate(KINDS)
    )
    hosts = tuple(
        HostKind(kind.name, kind.name, 8, devices // 32, links=base.host[0].links) for kind in kinds
    )
    return ClusterSpec("four-kinds", kinds, hosts, base.links)


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--devices", type=int, default=1024)
    asked.add_argument("--model", default="llama-2-70b")
    chosen = asked.parse_args()
    job = JobSpec(
        ModelChoice(model_preset(chosen.model), 4096),
        ClusterChoice(four_kinds(chosen.devices), chosen.devices),
        Batch(2048),
        None,
        ScheduleSpec("ratrain", backend="described"),
    )
    parts = sum(1 for _ in parts_of_cluster(job))
    began = time.process_time()
    searched = search_layouts(job)
    took_s = time.process_time() - began
    best = searched.best.plan
    print(
        f"{chosen.model}, {chosen.devices:,} devices of {len(KINDS)} kinds: {parts} parts of the "
        f"cluster, {searched.checks:,} rows, {searched.simulated} simulated, {took_s:.1f} s of "
        f"processor time (wanted: {WANTED_S:g})"
    )
    layout = best.layout
    print(
        f"  pipeline {layout.pipeline} x data {layout.data} x tensor {layout.tensor}, "
        f"{len(best.idle)} devices idle, a step of {searched.best.step_s:.1f} s"
    )
    if not searchable(job):
        return
    began = time.process_time()
    starts = [tried.plan for tried in searched.tried[:STARTS]]
    unequal = unequal_search(job, starts, searched.best.step_s)
    took_s = time.process_time() - began
    fastest_s = min(
        [searched.best.step_s, *(p.step_s for p in (*unequal.trainable, *unequal.others))]
    )
    print(
        f"  unequal replicas and stages: {unequal.drafts:,} drafts, {unequal.simulated} simulated, "
        f"{took_s:.1f} s more, a step of {fastest_s:.1f} s"
    )


if __name__ == "__main__":
    main()
