"""2,000 steps on real text, three times: the same bits whatever the schedule and whoever dies.

    python benchmarks/runtime/long_run.py [--steps 2000] [--kills 20] [--between 1 20]
        [--folder DIR] [--every 25] [--optimizer-tier disk]

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
RATRAIN = (sys.executable, "-c", "from ratrain.cli.main import main; main()")


@dataclass(frozen=True)
class Run:
    """What a run left: each step's loss as its bits, and how often its ranks were killed."""

    folder: RunFolder
    losses: tuple[str, ...]
    kills: int
    took_s: float


@dataclass(frozen=True)
class Kills:
    """How often ranks are killed, after how many seconds each, and the seed of both."""

    count: int
    between_s: tuple[float, float]
    seed: int


def train(job: Path, folder: Path, *, schedule: str, kills: Kills) -> Run:
    """One run from its beginning to its end."""
    began_s = time.monotonic()
    log = folder.parent / f"{folder.name}.log"
    command = [*RATRAIN, "train", str(job), "--run", str(folder), "--schedule", schedule]
    command += ["--restarts", str(2 * kills.count), "--no-calibrate", "--threads", "1"]
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        killed = _kill_now_and_then(child, kills)
        status = child.wait()
    if status:
        sys.exit(f"{schedule}: status {status}\n{log.read_text()[-2000:]}")
    run = RunFolder(folder)
    losses = tuple(row["loss_bits"] for row in run.read_metrics())
    return Run(run, losses, killed, time.monotonic() - began_s)


def _kill_now_and_then(child: subprocess.Popen[bytes], kills: Kills) -> int:
    """SIGKILL to one of the child's ranks at random moments; how often it was sent."""
    chance, sent = random.Random(kills.seed), 0
    while sent < kills.count:
        try:
            child.wait(chance.uniform(*kills.between_s))
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
            for child in map(int, path.read_text().split()):
                yield child
                yield from _descendants(child)


def _is_rank(pid: int) -> bool:
    with suppress(OSError):
        return b"ratrain.runtime.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def differences(first: Run, second: Run) -> list[str]:
    """What is not equal, in words; nothing where all is."""
    unequal: list[str] = []
    if len(first.losses) != len(second.losses):
        unequal.append(f"{len(first.losses)} and {len(second.losses)} steps")
    pairs = enumerate(zip(first.losses, second.losses, strict=False))
    steps = [step for step, (a, b) in pairs if a != b]
    if steps:
        unequal.append(f"losses of {len(steps)} steps, the first: {steps[0]}")
    return unequal + weight_differences(first.folder, second.folder)


def weight_differences(first: RunFolder, second: RunFolder) -> list[str]:
    """The same, of the last checkpoints."""
    ours, theirs = latest(first.checkpoints), latest(second.checkpoints)
    if ours is None or theirs is None:
        return ["a checkpoint is missing"]
    return [
        f"{row.kind} of unit {row.unit}: {row.differing} of {row.elements} elements"
        for row in compare(open_checkpoint(ours.path), open_checkpoint(theirs.path))
        if not row.identical
    ]


def write_job(folder: Path, steps: int, every: int, tier: str) -> Path:
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
            every=every,
            tier=f'optimizer_tier = "{tier}"' if tier else "",
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
{tier}

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
    asked.add_argument(
        "--between",
        type=float,
        nargs=2,
        default=(1.0, 20.0),
        metavar=("LEAST", "MOST"),
        help="seconds between two kills (default 1 20)",
    )
    asked.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    asked.add_argument("--folder", type=Path, help="keep the runs there")
    asked.add_argument("--every", type=int, default=25, help="steps between two checkpoints")
    asked.add_argument("--optimizer-tier", default="", help="where optimizer states wait")
    chosen = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="long-run-") as scratch:
        base = chosen.folder or Path(scratch)
        base.mkdir(parents=True, exist_ok=True)
        job = write_job(base, chosen.steps, chosen.every, chosen.optimizer_tier)

        def run(name: str, schedule: str, count: int) -> Run:
            kills = Kills(count, tuple(chosen.between), chosen.seed)
            done = train(job, base / name, schedule=schedule, kills=kills)
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
    unequal = differences(ours, other())
    verdict = "; ".join(unequal) if unequal else "losses and weights equal, bit for bit"
    print(f"  {name}: {verdict}")


if __name__ == "__main__":
    main()
