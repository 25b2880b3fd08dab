"""The planner's plans of unequal devices against every plan there is, on random small clusters.

    python benchmarks/unequal/exhaustive.py                       # 12 clusters of up to 5 devices
    python benchmarks/unequal/exhaustive.py --fewest 7 --devices 8 --cases 20 --limit 300

Which plans these are, and by which bounds some are passed over, `all_plans` says. Plans whose
stages have several members, or micro-batches of unequal sizes, are not among them; where the
planner's is faster than its other ones, it is printed.

With `--limit` a cluster is given up whose plans take more seconds of processor time than that; what
was faster until then is printed all the same. With `--until` no cluster is begun after so many
seconds of processor time in all.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from statistics import median

from all_plans import AllPlans
from random_clusters import Cluster, Kind, random_cluster, write_job

from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.plan import Plan, has_members
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.search.tried import Timed

__all__ = ["Cluster", "Kind", "compare", "random_cluster", "write_job"]

WANTED = 0.01
"""How much slower than the best of all plans a found one may be."""
SOUND = 1e-9
"""How far a lower bound may be above the step of its plan: sums are added in other orders."""


@dataclass(frozen=True)
class Compared:
    """A cluster: the step of the planner's fastest plan, and of the fastest of all."""

    cluster: Cluster
    alike_s: float
    found_s: float
    best_s: float
    best: str
    drafts: int
    simulated: int
    search_s: float
    every_s: float
    is_whole: bool  # whether every plan was looked at
    beyond_s: float  # of the fastest plan that is not among all plans; infinite where none is
    above: float  # by which a bound was above the step of its plan, at most

    @property
    def loss(self) -> float:
        return self.found_s / self.best_s - 1


def _is_beyond(plan: Plan) -> bool:
    """Whether a plan has stages of several members, or in micro-batches of other sizes."""
    return has_members(plan) or any(replica.joined for replica in plan.replicas)


def compare(cluster: Cluster, limit_s: float = inf) -> Compared:
    """The planner on a cluster, then every plan, in so many seconds at most."""
    with tempfile.TemporaryDirectory() as folder:
        job = load_job(write_job(Path(folder), cluster))
        began = time.process_time()
        plans = every_plan(job)
        assert plans.alike is not None, "memory is ample"
        assert plans.unequal is not None, "devices are of several kinds"
        found = (*plans.unequal.trainable, *plans.unequal.others)
        steps_s = [plans.alike.best.step_s]
        steps_s += [plan.step_s for plan in found if not _is_beyond(plan.plan)]
        beyond_s = [plan.step_s for plan in found if _is_beyond(plan.plan)]
        searched = time.process_time()
        every = AllPlans(job, cluster, min(steps_s), limit_s)
        for plan in found:
            if isinstance(plan, Timed) and not _is_beyond(plan.plan):
                every.check(plan.draft, plan.step_s)
        every.search()
        return Compared(
            cluster,
            steps_s[0],
            min(steps_s),
            every.best_s,
            every.best_words,
            every.drafts,
            every.simulated,
            searched - began,
            time.process_time() - searched,
            every.is_whole,
            min(beyond_s, default=inf),
            every.above,
        )


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--cases", type=int, default=12)
    asked.add_argument("--devices", type=int, default=5, help="at most")
    asked.add_argument("--fewest", type=int, default=3, help="devices at least")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--limit", type=float, default=inf, help="seconds for each cluster")
    asked.add_argument("--until", type=float, default=inf, help="seconds for all clusters")
    chosen = asked.parse_args()
    losses: list[float] = []
    given_up, above = 0, 0.0
    for case in range(chosen.cases):
        if time.process_time() > chosen.until:
            break
        rng = Random(1000 * chosen.seed + case)
        cluster = random_cluster(rng, chosen.devices, chosen.fewest)
        compared = compare(cluster, chosen.limit)
        over = "" if compared.is_whole else ", given up"
        beyond_s = compared.beyond_s
        beyond = f"; beyond these {beyond_s * 1e3:.1f} ms" if beyond_s < compared.found_s else ""
        print(f"{case}: {compared.cluster.words}")
        print(
            f"   alike {compared.alike_s * 1e3:.1f} ms, found {compared.found_s * 1e3:.1f} ms "
            f"({compared.search_s:.1f} s), "
            f"best of all {compared.best_s * 1e3:.1f} ms: {compared.loss:.2%} more; "
            f"{compared.drafts:,} plans within the bounds, {compared.simulated:,} simulated "
            f"({compared.every_s:.0f} s{over}){beyond}",
            flush=True,
        )
        if compared.loss > WANTED:
            print(f"   {compared.best}", flush=True)
        if compared.is_whole or compared.loss > WANTED:
            losses.append(compared.loss)
        else:
            given_up += 1
        above = max(above, compared.above)
        if compared.above > SOUND:
            print(f"   a lower bound was {compared.above:.2e} above the step of its plan")
    print(distribution(losses, given_up))
    if above > SOUND:
        raise SystemExit("a lower bound was above the step of its plan: not every plan was seen")


def distribution(losses: Sequence[float], given_up: int) -> str:
    """How many plans are how near the best of all."""
    exact, near, within = (
        sum(loss <= most for loss in losses) for most in (1e-5, WANTED / 10, WANTED)
    )
    worst = max(losses, default=0.0)
    return (
        f"{len(losses)} clusters: {exact} at 0.00%, {near} within {WANTED / 10:.1%}, "
        f"{within} within {WANTED:.0%}, median: {median(losses or [0.0]):.2%}, "
        f"worst: {worst:.2%} (wanted: {WANTED:.0%})"
        + (f"; {given_up} given up" if given_up else "")
    )


if __name__ == "__main__":
    main()
