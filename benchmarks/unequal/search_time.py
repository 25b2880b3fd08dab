"""How long `plan` searches on random clusters of 6 to 8 unequal devices, and what it finds.

    python benchmarks/unequal/search_time.py [--clusters 30] [--seed 7] [--json FILE]

Models have 16 to 32 layers, steps 16 to 128 sequences. Some jobs leave the compute order to the
planner, some have little memory. Two files of the same seed tell whether another version of the
planner finds worse plans, or takes longer for them. Processor time, so that a busy machine disturbs
it little.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

from random_clusters import Cluster, Kind, write_job

from ratrain.errors import Infeasible
from ratrain.plan.layout.jobs import load_job_to_plan
from ratrain.plan.search.every_plan import every_plan

RATES = (5, 10, 15, 20, 30, 40, 60)
ONE_ORDER = 'skeleton = "1f1b"\n'


@dataclass(frozen=True)
class Searched:
    """A job, what its search took, and the step of the best plan; None where nothing fits."""

    words: str
    processor_s: float
    step_s: float | None


def drawn(dice: Random) -> tuple[Cluster, bool, str | None]:
    """A cluster, whether the compute order is the planner's choice, and the memory budget."""
    rates = dice.sample(RATES, dice.choice([2, 2, 3, 4]))
    counts = [1] * len(rates)
    for _ in range(dice.randint(6, 8) - len(rates)):
        counts[dice.randrange(len(counts))] += 1
    kinds = tuple(
        Kind(rate, count, count > 1 and dice.random() < 0.4)
        for rate, count in zip(rates, counts, strict=True)
    )
    link = dice.choice(["200Mbit/s", "1Gbit/s", "10Gbit/s"])
    cluster = Cluster(kinds, link, dice.choice([16, 24, 32]), dice.choice([16, 32, 64, 128]))
    budget = dice.choice(["60MB", "90MB", "130MB"]) if dice.random() < 0.3 else None
    return cluster, dice.random() < 0.4, budget


def searched(seed: int, number: int) -> Searched:
    """The search of one drawn job."""
    cluster, any_order, budget = drawn(Random(f"{seed}-{number}"))
    words = cluster.words + ", any order" * any_order + (f", {budget}" if budget else "")
    with tempfile.TemporaryDirectory() as folder:
        path = write_job(Path(folder), cluster)
        text = path.read_text()
        text = text.replace(ONE_ORDER, "") if any_order else text
        path.write_text(text + (f'memory_budget = "{budget}"\n' if budget else ""))
        job = load_job_to_plan(path, ())
        began_s = time.process_time()
        try:
            plans = every_plan(job)
        except Infeasible:
            return Searched(words, time.process_time() - began_s, None)
        took_s = time.process_time() - began_s
    if plans.best is not None:
        return Searched(words, took_s, plans.best.step_s)
    assert plans.alike is not None, "one of the searches has found a plan"
    return Searched(words, took_s, plans.alike.best.step_s)


def main() -> None:
    """A row for each cluster."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Searched] = []
    for number in range(options.clusters):
        rows.append(searched(options.seed, number))
        step = "nothing fits" if rows[-1].step_s is None else f"{rows[-1].step_s:.4f} s"
        print(f"{rows[-1].processor_s:6.1f} s  {step:>12}  {rows[-1].words}", flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    took_s = [row.processor_s for row in rows]
    print(f"median {median(took_s):.1f} s, most {max(took_s):.1f} s, in all {sum(took_s):.0f} s")


if __name__ == "__main__":
    main()
