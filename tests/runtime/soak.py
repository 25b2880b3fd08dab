"""Many jobs drawn at random, run one after another on this machine's processes: `make soak`.

    python tests/runtime/soak.py [--unequal | --replans] [--jobs 100] [--first 0] [--keep FOLDER]

Each job is told, and how it went; the exit status is 1 where one went wrong. `--first N --jobs 1`
runs job N again, `--keep` leaves the folders of jobs that went wrong. With `--unequal` stages and
replicas differ, on at most five processes; with `--replans` each run goes on with another plan.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from drawn_jobs import DrawnJob, draw, run_job
from drawn_replans import DrawnReplan, draw_replan, run_replan
from drawn_unequal import draw_unequal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100, help="how many [100]")
    parser.add_argument("--first", type=int, default=0, help="number of the first one [0]")
    parser.add_argument("--keep", type=Path, help="leave what went wrong in this folder")
    parser.add_argument("--unequal", action="store_true", help="stages and replicas that differ")
    parser.add_argument("--replans", action="store_true", help="runs that go on with another plan")
    options = parser.parse_args()
    drawing = draw_unequal if options.unequal else draw
    if options.replans:
        drawing = draw_replan
    counts: Counter[str] = Counter()
    began_s = time.monotonic()
    for number, seed in enumerate(range(options.first, options.first + options.jobs), start=1):
        counts[_run(drawing(seed), options.keep)] += 1
        left_s = (time.monotonic() - began_s) / number * (options.jobs - number)
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"   {number} of {options.jobs}: {outcomes}; {left_s / 60:.0f} min left", flush=True)
    sys.exit(1 if counts["wrong"] else 0)


def _run(drawn: DrawnJob | DrawnReplan, keep: Path | None) -> str:
    """Runs one job; what became of it, in a word."""
    print(drawn, flush=True)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as path:
        try:
            run = run_replan if isinstance(drawn, DrawnReplan) else run_job
            outcome = run(drawn, Path(path))  # type: ignore[arg-type]
        except Exception as error:
            print(f"   WRONG: {type(error).__name__}: {error}", flush=True)
            if keep is not None:
                shutil.copytree(path, keep / str(drawn.seed), dirs_exist_ok=True)
            return "wrong"
    took = f"{time.monotonic() - began_s:.0f} s"
    if outcome.refusal:
        print(f"   refused in {took}: {outcome.refusal}", flush=True)
        return "refused"
    compared = ", as plain torch" if outcome.compared_to_plain else ""
    if isinstance(drawn, DrawnReplan):
        compared = ", with the same bits" if outcome.compared_to_plain else ""
    print(f"   trained, cut and resumed in {took}{compared}", flush=True)
    return "trained"


if __name__ == "__main__":
    main()
