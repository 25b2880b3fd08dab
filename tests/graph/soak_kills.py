"""A graph's training killed again and again: the weights of a run left alone, bit for bit.

    python tests/graph/soak_kills.py [--kills 100] [--kinds gcn,gat,sage,gin] [--processes 1,2]

Every kill is SIGKILL to the first process, at a moment drawn between the launch and a second after
its first new checkpoint; of several processes sometimes to another. The run resumes each time. It
ends with status 1 where a bit differs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from test_run import beside, checkpoints, ended, started, written

EPOCHS_A_KILL = 12


def killed_run(folder: Path, draw: random.Random, kills: int) -> int:
    """Kills a run so often, then lets it end; how many of the kills met a process."""
    met = 0
    for _ in range(kills):
        before = checkpoints(folder / "killed")
        process = started(folder, "--run", "killed", "--resume")
        if draw.random() < 0.75:  # else while it begins
            while checkpoints(folder / "killed") == before and process.poll() is None:
                time.sleep(0.01)
        time.sleep(draw.uniform(0, 1.0))
        if process.poll() is None:
            others = beside(process)
            os.kill(draw.choice([process.pid, *others]), signal.SIGKILL)
            met += 1
        ended(process)
    status, _, err = ended(started(folder, "--run", "killed", "--resume"))
    if status:
        sys.exit(err)
    return met


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kinds", default="gcn,gat,sage,gin")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    counts = [int(each) for each in asked.processes.split(",")]
    cases = [(kind, count) for kind in asked.kinds.split(",") for count in counts]
    draw, met, unlike = random.Random(asked.seed), 0, 0
    for number, (kind, processes) in enumerate(cases):
        kills = asked.kills // len(cases) + (number < asked.kills % len(cases))
        with tempfile.TemporaryDirectory(prefix="graph-kills-") as name:
            folder = Path(name)
            written(folder, kind, max(1, kills) * EPOCHS_A_KILL, processes)
            status, _, err = ended(started(folder, "--run", "whole"))
            if status:
                sys.exit(err)
            met += (here := killed_run(folder, draw, kills))
            same = checkpoints(folder / "killed") == checkpoints(folder / "whole")
        unlike += not same
        verdict = "the same bits" if same else "OTHER BITS"
        print(f"{kind}, {processes} processes: killed {here} times, {verdict}", flush=True)
    print(f"killed {met} times in {len(cases)} runs, {unlike} with other bits")
    sys.exit(unlike > 0)


if __name__ == "__main__":
    main()
