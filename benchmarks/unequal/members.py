"""What plans with stages of several members gain on random clusters, by what is special in them.

    python benchmarks/unequal/members.py --json before.json     # of one version of the planner
    python benchmarks/unequal/members.py --against before.json  # of another: who is faster, and how

Clusters are those of `exhaustive.py`, 98 of up to 6 devices as in docs/notes/planner.md, and some
of 7 and 8. Steps are simulated, none is measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from random import Random

from random_clusters import Cluster, random_cluster, write_job

from ratrain.plan.layout.jobs import load_job_to_plan
from ratrain.plan.layout.plan import Plan, has_members
from ratrain.plan.search.every_plan import EveryPlan, every_plan

DRAWN = ((31, 3, 4, 60), (11, 3, 5, 24), (41, 3, 6, 14))
"""Seed, fewest and most devices, and number of clusters: the 98 of docs/notes/planner.md."""
LARGER = 71


@dataclass(frozen=True)
class Found:
    """A cluster: the step of the best plan and what is special in it, and the step of the best one
    without stages of several members."""

    words: str
    step_s: float
    plain_s: float
    special: tuple[str, ...]
    processor_s: float


def special(plan: Plan) -> tuple[str, ...]:
    """What is special in a plan with stages of several members."""
    if not has_members(plan):
        return ()
    said = {
        "members": True,
        "several replicas": sum(len(replica.members) for replica in plan.replicas) > 1,
        "unequal degrees": any(
            len({replica.tensor[rank] for rank in ranks}) > 1
            for replica in plan.replicas
            for ranks in replica.places
        ),
        "other degrees than 1": any(max(replica.tensor) > 1 for replica in plan.replicas),
        "idle devices": len(plan.devices) < plan.job.cluster.devices,
        "members that serve nothing": any(() in replica.serves for replica in plan.replicas),
        "level 3": plan.mode.sharding == 3,
    }
    return tuple(word for word, is_so in said.items() if is_so)


def found(cluster: Cluster) -> Found:
    """The search of a cluster's job."""
    with tempfile.TemporaryDirectory() as folder:
        job = load_job_to_plan(write_job(Path(folder), cluster), ())
        began_s = time.process_time()
        plans = every_plan(job)
        took_s = time.process_time() - began_s
    return Found(cluster.words, *_steps(plans), took_s)


def _steps(plans: EveryPlan) -> tuple[float, float, tuple[str, ...]]:
    alike_s = plans.alike.best.step_s if plans.alike is not None else inf
    trainable = plans.unequal.trainable if plans.unequal is not None else ()
    plain_s = min([alike_s, *(p.step_s for p in trainable if not has_members(p.plan))])
    if plans.best is None:
        return alike_s, plain_s, ()
    return plans.best.step_s, plain_s, special(plans.best.plan)


def clusters(larger: int) -> list[Cluster]:
    """All that are drawn, and so many of 7 and 8 devices."""
    draws = (*DRAWN, (LARGER, 7, 8, larger))
    return [
        random_cluster(Random(1000 * seed + case), most, fewest)
        for seed, fewest, most, cases in draws
        for case in range(cases)
    ]


def main() -> None:
    """A row for each cluster; then how many gain what."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--larger", type=int, default=40, help="clusters of 7 and 8 devices")
    parser.add_argument("--first", type=int, default=0, help="clusters that are left out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path, help="the rows of another version")
    options = parser.parse_args()
    others: list[dict[str, float]] = []
    if options.against:
        others = json.loads(options.against.read_text())
    rows: list[Found] = []
    for cluster in clusters(options.larger)[options.first :]:
        rows.append(found(cluster))
        row = rows[-1]
        line = f"{row.step_s * 1e3:7.1f} ms, {gain(row.step_s, row.plain_s):4.1f} % less than plain"
        if others:
            line += f", {gain(row.step_s, others[len(rows) - 1]['step_s']):5.2f} % less than before"
        print(f"{line}; {', '.join(row.special) or 'plain'}; {row.words}", flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    _sum_up("plans without members", rows, [row.plain_s for row in rows])
    if others:
        _sum_up("the other version", rows, [other["step_s"] for other in others[: len(rows)]])


def gain(step_s: float, other_s: float) -> float:
    """By how many percent a step is shorter than another."""
    return 100 * (1 - step_s / other_s)


def _sum_up(than: str, rows: list[Found], others_s: list[float]) -> None:
    """How many gain over these steps, by what is special; and how many lose."""
    gains = [gain(row.step_s, other_s) for row, other_s in zip(rows, others_s, strict=True)]
    gained = [(row, each) for row, each in zip(rows, gains, strict=True) if each > 1e-4]
    lost = [each for each in gains if each < -1e-4]
    print(f"of {len(rows)} clusters {len(gained)} faster than {than}, {len(lost)} slower", end="")
    print(f" (by up to {-min(lost):.2f} %)" if lost else "")
    for word in sorted({word for row, _ in gained for word in row.special}):
        of_word = [each for row, each in gained if word in row.special]
        print(f"  {word}: {len(of_word)}, by {min(of_word):.1f} to {max(of_word):.1f} %")


if __name__ == "__main__":
    main()
