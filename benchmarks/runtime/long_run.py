"""2,000 steps on real text, three times: the same bits whatever the schedule and whoever dies.

    python benchmarks/runtime/long_run.py [--steps 2000] [--kills 20] [--folder DIR]

1. `ratrain train --schedule ratrain`, and 2. `--schedule baseline-1f1b`: every step's loss and
the final weights must be equal, bit for bit. 3. The first again, its ranks killed with SIGKILL at
random moments, with --restarts: losses and final weights must again be the same.
No lab and no root needed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cases import Case

from ratrain.checkpoint.comparison import compare
from ratrain.checkpoint.listing import latest
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.runtime.run_folder import RunFolder

CASE = Case("long run", model="tiny", pipeline=2, data=2, sequence_length=64, sequences=8)
SAVE_EVERY = 25
BETWEEN_KILLS_S = (1.0, 20.0)
RATRAIN = (sys.executable, "-c", "from ratrain.cli.main import main; main()")


@dataclass(frozen=True)
class Run:
    """What a run left: each step's loss as its bits, and how often its ranks were killed."""

    folder: RunFolder
    losses: tuple[str, ...]
    kills: int
    took_s: float


def train(job: Path, folder: Path, *, schedule: str, restarts: int, kills: int, seed: int) -> Run:
    """One run from its beginning to its end."""
    began_s = time.monotonic()
    log = folder.parent / f"{folder.name}.log"
    command = [*RATRAIN, "train", str(job), "--run", str(folder), "--schedule", schedule]
    command += ["--restarts", str(restarts), "--no-calibrate", "--threads", "1"]
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        killed = _kill_now_and_then(child, kills, random.Random(seed))
        status = child.wait()
    if status:
        sys.exit(f"{schedule}: status {status}\n{log.read_text()[-2000:]}")
    run = RunFolder(folder)
    losses = tuple(row["loss_bits"] for row in run.read_metrics())
    return Run(run, losses, killed, time.monotonic() - began_s)


def _kill_now_and_then(child: subprocess.Popen[bytes], kills: int, chance: random.Random) -> int:
    """SIGKILL to one of the child's ranks at random moments; how often it was sent."""
    sent = 0
    while sent < kills:
        try:
            child.wait(chance.uniform(*BETWEEN_KILLS_S))
        except subprocess.TimeoutExpired:
            ranks = [pid for pid in _descendants(child.pid) if _is_rank(pid)]
            if ranks:
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(ranks), signal.SIGKILL)
                    sent += 1
        else:
            break
    return sent


def _descendants(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for one in map(int, path.read_text().split()):
                yield one
                yield from _descendants(one)


def _is_rank(pid: int) -> bool:
    with suppress(OSError):
        return b"ratrain.runtime.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def differences(one: Run, other: Run) -> list[str]:
    """What is not equal, in words; nothing where all is."""
    found: list[str] = []
    if len(one.losses) != len(other.losses):
        found.append(f"{len(one.losses)} and {len(other.losses)} steps")
    pairs = enumerate(zip(one.losses, other.losses, strict=False))
    unlike = [step for step, (a, b) in pairs if a != b]
    if unlike:
        found.append(f"losses of {len(unlike)} steps, the first: {unlike[0]}")
    return found + weight_differences(one.folder, other.folder)


def weight_differences(one: RunFolder, other: RunFolder) -> list[str]:
    """The same, of the last checkpoints."""
    ours, theirs = latest(one.checkpoints), latest(other.checkpoints)
    if ours is None or theirs is None:
        return ["a checkpoint is missing"]
    return [
        f"{row.kind} of unit {row.unit}: {row.differing} of {row.elements} elements"
        for row in compare(open_checkpoint(ours.path), open_checkpoint(theirs.path))
        if not row.identical
    ]


def write_job(folder: Path, steps: int) -> Path:
    """The job, its model, its cluster and its text."""
    CASE.write(folder)
    text = folder / "text.jsonl"
    subprocess.run(
        [*RATRAIN, "data", "--sample-text", str(text)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    job = folder / "job.toml"
    job.write_text(
        JOB.format(
            sequence_length=CASE.sequence_length,
            sequences=CASE.sequences,
            steps=steps,
            every=SAVE_EVERY,
        )
    )
    return job


JOB = """\
[model]
name = "config.json"
sequence_length = {sequence_length}

[cluster]
name = "cluster.toml"
devices = 4

[batch]
sequences = {sequences}
micro_batch = 1

[layout]
pipeline = 2
data = 2

[schedule]
dtype = "fp32"
recovery = "exempt-last"

[train]
steps = {steps}
learning_rate = 1e-3
warmup_steps = 50
seed = 7

[data]
files = ["text.jsonl"]

[checkpoint]
every = {every}
"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--steps", type=int, default=2000)
    asked.add_argument("--kills", type=int, default=20)
    asked.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    asked.add_argument("--folder", type=Path, help="keep the runs there")
    chosen = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="long-run-") as scratch:
        base = chosen.folder or Path(scratch)
        base.mkdir(parents=True, exist_ok=True)
        job = write_job(base, chosen.steps)

        def run(name: str, schedule: str, kills: int) -> Run:
            done = train(
                job,
                base / name,
                schedule=schedule,
                restarts=2 * kills,
                kills=kills,
                seed=chosen.seed,
            )
            last = float.fromhex(done.losses[-1])
            print(
                f"{name}: {len(done.losses)} steps in {done.took_s:.0f} s, loss {last:.4f}, "
                f"ranks killed {done.kills} times",
                flush=True,
            )
            return done

        ours = run("ratrain", "ratrain", 0)
        _judge("baseline-1f1b", ours, lambda: run("baseline", "baseline-1f1b", 0))
        _judge("with kills", ours, lambda: run("killed", "ratrain", chosen.kills))


def _judge(name: str, ours: Run, other: Callable[[], Run]) -> None:
    found = differences(ours, other())
    print(f"  {name}: " + ("; ".join(found) if found else "losses and weights equal, bit for bit"))


if __name__ == "__main__":
    main()
