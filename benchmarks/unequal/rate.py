"""How many plans of unequal stages and replicas are simulated a second, and how near they come.

    python benchmarks/unequal/rate.py                  # 10 clusters, 40 plans each, 4 of them whole

Random clusters of 16 devices of two or three kinds, and random plans that use all of them: one to
four replicas of any depth, kinds in any order, 32 micro-batches on every rank. Each plan is
simulated at the grain of stages, as the search ranks it, and some as whole programs, built and
proved. Both take turns, cluster by cluster, with no cost known yet. Seconds are processor time of
one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random

import numpy as np
from random_clusters import Cluster, Kind, write_job

from ratrain.plan.draft.clock import StageClock
from ratrain.plan.draft.draft import Draft, shared
from ratrain.plan.draft.parts import Part, part_of
from ratrain.plan.draft.pools import Post, pipeline_of, pools_of
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import load_job, strategy_of
from ratrain.plan.search.tried import timed
from ratrain.program.replicas import Recovery
from ratrain.simulate.costs import Floats

DEVICES, MICRO_BATCHES, LAYERS = 16, 32, 32
WANTED = 300
MODES = (Recovery.NONE, Recovery.FORWARD, Recovery.BACKWARD)


@dataclass
class Timings:
    """Plans that were simulated, in how many seconds, and their steps."""

    plans: int = 0
    seconds: float = 0.0
    steps_s: list[float | None] = field(default_factory=list[float | None])

    def take(self, plans: Sequence[Draft], step_s: Callable[[Draft], float | None]) -> None:
        began = time.process_time()
        self.steps_s += [step_s(plan) for plan in plans]
        self.seconds += time.process_time() - began
        self.plans += len(plans)

    @property
    def rate(self) -> float:
        return self.plans / self.seconds


def random_cluster(rng: Random) -> tuple[Cluster, int]:
    """Sixteen devices, and how many replicas the plans on them have."""
    rates = rng.sample([5, 10, 15, 20, 30, 40, 60], rng.choice([2, 3]))
    counts = [1] * len(rates)
    for _ in range(DEVICES - len(rates)):
        counts[rng.randrange(len(counts))] += 1
    kinds = tuple(Kind(rate, count, False) for rate, count in zip(rates, counts, strict=True))
    replicas = rng.randint(1, 4)
    link = rng.choice(["200Mbit/s", "1Gbit/s", "10Gbit/s"])
    return Cluster(kinds, link, LAYERS, MICRO_BATCHES * replicas), replicas


def random_drafts(stages: Stages, replicas: int, rng: Random) -> Iterator[Draft]:
    """Every device in one of the replicas, each of one stage or more, in any order."""
    state = StateMode(1, False)
    while True:
        posts = [Post(n, 1) for n, pool in enumerate(stages.pools) for _ in pool.devices]
        rng.shuffle(posts)
        cuts = [0, *sorted(rng.sample(range(1, DEVICES), replicas - 1)), DEVICES]
        shapes = [tuple(posts[a:b]) for a, b in pairwise(cuts)]
        parts: list[Part] = []
        for shape in shapes:
            part = part_of(stages, pipeline_of(shape), 1, replicas, state)
            assert part is not None, "memory is ample"
            parts.append(part)
        yield shared(stages, parts, [MICRO_BATCHES] * replicas, state)


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--clusters", type=int, default=10)
    asked.add_argument("--plans", type=int, default=40, help="of each cluster")
    asked.add_argument("--whole", type=int, default=4, help="of these simulated whole")
    asked.add_argument("--seed", type=int, default=0)
    chosen = asked.parse_args()
    by_stage, whole = Timings(), Timings()
    pairs: list[tuple[float, float, float]] = []
    for number in range(chosen.clusters):
        rng = Random(1000 * chosen.seed + number)
        cluster, replicas = random_cluster(rng)
        with tempfile.TemporaryDirectory() as folder:
            job = load_job(write_job(Path(folder), cluster))
            stages = Stages(job, pools_of(job.cluster.members()), strategy_of(job), MODES)
            made = random_drafts(stages, replicas, rng)
            drafts = [next(made) for _ in range(chosen.plans)]
            by_stage.take(drafts, StageClock(stages).step_s)

            def whole_s(draft: Draft, stages: Stages = stages) -> float | None:
                plan, _ = timed(stages.job, stages.pools, draft, inf)
                return plan and plan.step_s

            whole.take(drafts[: chosen.whole], whole_s)
            for draft, step_s, stage_s in zip(
                drafts, whole.steps_s[-chosen.whole :], by_stage.steps_s[-chosen.plans :],
                strict=False,
            ):  # fmt: skip
                assert step_s is not None
                assert stage_s is not None
                pairs.append((step_s, stage_s, draft.estimate_s))
    for name, timings in (
        ("at the grain of stages", by_stage),
        ("whole programs", whole),
    ):
        print(f"{name}: {timings.plans} plans, {timings.rate:,.0f} a second")
    print(f"(wanted: {WANTED} a second at the grain of stages)")
    steps_s = np.array(pairs)
    for name, column in (("at the grain of stages", 1), ("closed form", 2)):
        off = np.abs(steps_s[:, column] / steps_s[:, 0] - 1)
        print(
            f"{name}, against {len(pairs)} whole programs: off by {off.mean():.3%} in the mean, "
            f"{off.max():.2%} at most; Spearman {_spearman(steps_s[:, 0], steps_s[:, column]):.4f}"
        )


def _spearman(first: Floats, second: Floats) -> float:
    ranks = [np.argsort(np.argsort(column)) for column in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


if __name__ == "__main__":
    main()
