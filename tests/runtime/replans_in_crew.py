"""Pairs of plans on ranks that stay: the checkpoint of one goes on as the other.

    python tests/runtime/replans_in_crew.py [--pairs 40] [--first 0]

What `soak.py --replans` does with whole command lines takes a minute a pair; this takes seconds.
The exit status is 1 where a pair went wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path

from crew import Crew
from drawn_replans import draw_replan, run_replan_in_crew
from drawn_unequal import MOST_RANKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40, help="how many that train [40]")
    parser.add_argument("--first", type=int, default=0, help="number of the first one [0]")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with Crew(MOST_RANKS) as crew:
        for seed in count(options.first):
            drawn = draw_replan(seed)
            sizes = drawn.first.world_size, drawn.second.world_size
            if max(sizes) > MOST_RANKS:
                continue
            with tempfile.TemporaryDirectory() as path:
                try:
                    outcome = run_replan_in_crew(crew, drawn, Path(path))
                except AssertionError as error:
                    print(f"{drawn}\n   WRONG: {error}", flush=True)
                    counts["wrong"] += 1
                    continue
            told = "refused"
            if not outcome.refusal:
                told = "same bits" if outcome.compared_to_plain else "same losses"
            counts[told] += 1
            print(f"{seed}: {sizes[0]} to {sizes[1]} ranks, {told} {outcome.refusal}", flush=True)
            if counts.total() - counts["refused"] >= options.pairs:
                break
    print(", ".join(f"{number} {told}" for told, number in sorted(counts.items())))
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
