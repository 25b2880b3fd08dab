"""What plans of unequal stages and replicas gain on clusters of 17 to 64 devices.

    python benchmarks/unequal/gain.py                    # 12 random clusters
    python benchmarks/unequal/gain.py --cases 4 --seed 3 --devices 64

Random clusters of two to four kinds of device; in every second one they stand four to a host. The
fastest plan of alike replicas is compared with the fastest that `ratrain train` can run and with
the fastest that can be simulated. Seconds are processor time: of the search for alike replicas, and
of the other one, which comes on top.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from math import exp, log
from pathlib import Path
from random import Random

from random_clusters import Cluster, Kind, write_job

from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.misfit import planned
from ratrain.plan.search.unequal import unequal_search

FEWEST = 17
STARTS = 4
WANTED_S = 10.0


def random_cluster(rng: Random, most: int) -> tuple[Cluster, bool]:
    """A cluster, and whether its devices stand four to a host."""
    together = rng.random() < 0.5
    each = 4 if together else 1
    rates = rng.sample([5, 10, 15, 20, 30, 40, 60], rng.choice([2, 3, 4]))
    counts = [each] * len(rates)
    for _ in range((rng.randint(FEWEST, most) - sum(counts)) // each):
        counts[rng.randrange(len(counts))] += each
    kinds = tuple(Kind(rate, count, False) for rate, count in zip(rates, counts, strict=True))
    link = rng.choice(["1Gbit/s", "10Gbit/s"])
    return Cluster(kinds, link, rng.choice([16, 24, 32]), rng.choice([64, 128, 256])), together


def four_to_a_host(path: Path, cluster: Cluster) -> None:
    """Writes the cluster's file anew."""
    file = path.parent / "cluster.toml"
    text = file.read_text()
    for kind in dict.fromkeys(kind.count for kind in cluster.kinds):
        text = text.replace(f"devices = 1\ncount = {kind}\n", f"devices = 4\ncount = {kind // 4}\n")
    file.write_text(text)


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--cases", type=int, default=12)
    asked.add_argument("--devices", type=int, default=64, help="at most")
    asked.add_argument("--seed", type=int, default=0)
    chosen = asked.parse_args()
    gains: list[float] = []
    slowest_s = 0.0
    for case in range(chosen.cases):
        cluster, together = random_cluster(Random(1000 * chosen.seed + case), chosen.devices)
        with tempfile.TemporaryDirectory() as folder:
            path = write_job(Path(folder), cluster)
            if together:
                four_to_a_host(path, cluster)
            job = load_job(path)
            began = time.process_time()
            alike = planned(job)
            between = time.process_time()
            starts = [tried.plan for tried in alike.tried[:STARTS]]
            unequal = unequal_search(job, starts, alike.best.step_s)
            ended = time.process_time()
        alike_s = alike.best.step_s
        trained_s = min([alike_s, *(plan.step_s for plan in unequal.trainable)])
        best_s = min([trained_s, *(plan.step_s for plan in unequal.others)])
        gains.append(alike_s / trained_s)
        slowest_s = max(slowest_s, ended - between)
        hosts = ", four to a host" if together else ""
        print(f"{case}: {cluster.devices} devices: {cluster.words}{hosts}")
        print(
            f"   alike {alike_s:.4g} s ({between - began:.1f} s), trainable {trained_s:.4g} s: "
            f"{alike_s / trained_s - 1:.1%} more alike; simulated only {best_s:.4g} s; "
            f"at least {unequal.least_s:.4g} s; {unequal.drafts:,} drafts, {unequal.simulated} "
            f"simulated whole ({ended - between:.1f} s)",
            flush=True,
        )
    mean = exp(sum(map(log, gains)) / len(gains)) - 1
    print(
        f"alike replicas take {mean:.1%} more in the geometric mean, {max(gains) - 1:.1%} at most; "
        f"the search took {slowest_s:.1f} s at most (wanted: {WANTED_S:g})"
    )


if __name__ == "__main__":
    main()
