"""Tries many damaged inputs and prints a table:

python tests/fuzz/soak.py --inputs 50000 --seeds 5
python tests/fuzz/soak.py --only 3/1234        one input again, with all that it printed
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_targets import TARGETS
from fuzz_workers import Tried, World, preload, run_here, run_inputs, try_input
from fuzz_world import make_world

KINDS = {
    "traceback": ("traceback", "died", "status", "silent"),
    "hang": ("hang",),
    "nonsense": ("accepted", "no effect", "figure", "output"),
    "no place": ("no place", "other place"),
    "no fix": ("no fix", "control", "long"),
    "sense refused": ("refused",),
}


class Tally:
    """Counts by target, and every input that something was wrong with."""

    def __init__(self, log: Path | None) -> None:
        self.inputs: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.wrong: Counter[tuple[str, str]] = Counter()
        self.failed: list[Tried] = []
        self.slowest_s = 0.0
        self._log = log.open("a", buffering=1) if log else None
        self._shown_s = time.monotonic()
        self._began_s = time.monotonic()

    def take(self, tried: Tried) -> None:
        """One input more."""
        self.inputs[tried.target] += 1
        self.refused[tried.target] += tried.status != 0
        self.slowest_s = max(self.slowest_s, tried.cpu_s)
        for kind, _ in tried.problems:
            self.wrong[tried.target, kind] += 1
        if tried.problems:
            self.failed.append(tried)
            if self._log:
                self._log.write(json.dumps(asdict(tried)) + "\n")
        if time.monotonic() - self._shown_s > 10:
            self._shown_s = time.monotonic()
            done = self.inputs.total()
            rate = done / (self._shown_s - self._began_s)
            print(f"{done:,} inputs, {rate:.1f}/s, {len(self.failed)} wrong", file=sys.stderr)

    def table(self) -> str:
        """Rows by target, in at most 100 columns."""
        names = [*KINDS]
        lines = [f"{'input':42}{'tried':>7}{'refused':>8}" + "".join(f"{n:>10}" for n in names[:5])]
        order = [target.file for target in TARGETS] + ["command line"]
        for target in [*order, "all"]:
            picked = order if target == "all" else [target]
            tried = sum(self.inputs[name] for name in picked)
            refused = sum(self.refused[name] for name in picked)
            cells = [
                sum(self.wrong[name, kind] for name in picked for kind in KINDS[column])
                for column in names[:5]
            ]
            lines.append(
                f"{target[-41:]:42}{tried:>7,}{refused:>8,}" + "".join(f"{c:>10}" for c in cells)
            )
        refused_sense = sum(self.wrong[name, "refused"] for name in order)
        lines.append(f"sense refused: {refused_sense}; slowest {self.slowest_s:.1f} s of processor")
        return "\n".join(lines)


def main() -> None:
    """The whole soak; status 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--world", type=Path, help="a world made before; made where it is absent")
    parser.add_argument("--log", type=Path, help="write what was wrong as JSON lines")
    parser.add_argument("--only", metavar="SEED/INDEX", help="one input, with what it printed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ratrain-fuzz-") as scratch:
        world = (asked.world or Path(scratch) / "world").resolve()
        if not (world / "run2").exists():
            print("making the world: two small training runs", file=sys.stderr)
            make_world(world)
        if asked.only:
            _only(world, Path(scratch), asked.only)
            return
        tally = Tally(asked.log)
        each = asked.inputs // asked.seeds
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            run_inputs(world, Path(scratch), seed, each, asked.workers, tally.take)
    print(tally.table())
    for tried in tally.failed[:20]:
        print(f"{tried.seed}/{tried.index} {tried.target} {tried.what}: {tried.problems[0]}")
    sys.exit(1 if tally.failed else 0)


def _only(original: Path, scratch: Path, name: str) -> None:
    """One input again."""
    import fuzz_workers

    seed, index = map(int, name.split("/"))
    preload()
    world = World(original, scratch / "worker")
    world.enter()
    world.tidy()

    def told(arguments: list[str]):
        answer = run_here(arguments)
        print("$ ratrain", " ".join(arguments))
        print(answer.out[-3000:])
        print(answer.err[-3000:])
        print("status", answer.status, answer.failure, answer.detail, f"{answer.cpu_s:.2f} s")
        return answer

    fuzz_workers.run_here = told
    for said in try_input(world, seed, index):
        print(said)


if __name__ == "__main__":
    main()
