"""Many seeds of the simulated protocol, on all processors: `python tests/protocol/soak_protocol.py
[--seeds 100000] [--first 0]`. Ends with 1 where any seed fails; a seed that does is replayed with
`--first SEED --seeds 1`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime")]

from faulted import Failed, Outcome, run_seed  # noqa: E402


def _one(seed: int) -> Outcome | str:
    try:
        return run_seed(seed)
    except Failed as failed:
        return str(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    began_s, failed, outcomes = time.monotonic(), 0, list[Outcome]()
    with multiprocessing.get_context("fork").Pool(asked.processes) as pool:
        seeds = range(asked.first, asked.first + asked.seeds)
        for each in pool.imap_unordered(_one, seeds, chunksize=16):
            if isinstance(each, Outcome):
                outcomes.append(each)
            else:
                failed += 1
                print(each, flush=True)
    hours = sum(outcome.simulated_s for outcome in outcomes) / 3600
    print(
        f"{len(outcomes)} seeds well, {failed} not, in {time.monotonic() - began_s:.0f} s: "
        f"{hours:.1f} simulated hours, {sum(o.attempts for o in outcomes)} meetings of ranks, "
        f"{sum(o.live_sources for o in outcomes)} from what survivors held, "
        f"{sum(o.lost_steps for o in outcomes)} steps done again"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
