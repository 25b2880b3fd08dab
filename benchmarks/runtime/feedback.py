"""Training whose gradients travel in fp32, in bf16, and in bf16 with error feedback, side by side.

    python benchmarks/runtime/feedback.py [--steps 150] [--seeds 3] [--data 2] [--folder DIR]

The quickstart's model and text, 16 sequences of 64 tokens a step, on that many replicas, one
process each, once a seed for each wire, one after the other. Said of each: the mean loss of the
last 20 steps; how far a step's loss is from that of the fp32 run of its seed at most; how far the
final weights are from those of that run, as a part of their length; the median time of a step; the
most that a rank's ledger held. No lab and no root needed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from ratrain.checkpoint.listing import latest
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.corpus.sample_text import write_sample_text
from ratrain.runtime.run_folder import RunFolder

JOB = Path(__file__).parents[2] / "examples/quickstart.toml"
RATRAIN = (sys.executable, "-c", "from ratrain.cli.main import main; main()")
WIRES = {
    "fp32": (),
    "bf16": ("schedule.gradient_wire=bf16",),
    "bf16, error feedback": ("schedule.gradient_wire=bf16", "schedule.error_feedback=true"),
}
LAST, WARM_UP = 20, 10
TEXT = "text.jsonl"


@dataclass(frozen=True)
class Run:
    """What a run left."""

    losses: tuple[float, ...]
    step_s: float
    weights: np.ndarray
    held_bytes: int


@dataclass(frozen=True)
class Away:
    """How a run ended, and how far it is from the fp32 run of its seed."""

    loss: float
    furthest: float
    weights: float


def train(folder: Path, wire: str, seed: int, steps: int, data: int) -> Run:
    """One run from its beginning to its end."""
    settings = (
        *WIRES[wire],
        f"cluster.devices={data}",
        "layout.pipeline=1",
        f"layout.data={data}",
        "schedule.memory_budget=500MB",
        "model.sequence_length=64",
        "batch.sequences=16",
        f"train.steps={steps}",
        f"train.seed={seed}",
        "checkpoint.every=0",
        f'data.files=["{folder.parent.resolve() / TEXT}"]',
    )
    overrides = [word for setting in settings for word in ("--set", setting)]
    command = [*RATRAIN, "train", str(JOB), "--run", str(folder), *overrides]
    done = subprocess.run(
        [*command, "--no-calibrate", "--threads", "1"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{wire}: status {done.returncode}\n{done.stderr[-2000:]}")
    run = RunFolder(folder)
    rows, saved = run.read_metrics(), latest(run.checkpoints)
    assert saved is not None
    checkpoint = open_checkpoint(saved.path)
    weights = [
        checkpoint.read_range(unit, "weights", 0, size)
        for unit, size in checkpoint.manifest.meta.units.items()
    ]
    return Run(
        tuple(row["loss"] for row in rows),
        median(row["step_time_s"] for row in rows[WARM_UP:]),
        np.concatenate(weights),
        max(rank["ledger_peak_bytes"] for row in rows for rank in row["ranks"]),
    )


def away(run: Run, exact: Run) -> Away:
    """The `Away` of a run."""
    pairs = zip(run.losses, exact.losses, strict=True)
    distance = np.linalg.norm(run.weights - exact.weights) / np.linalg.norm(exact.weights)
    return Away(fmean(run.losses[-LAST:]), max(abs(a - b) / b for a, b in pairs), float(distance))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=int, default=2, help="replicas")
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    options = parser.parse_args()
    runs: dict[str, list[Run]] = {wire: [] for wire in WIRES}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_sample_text(folder / TEXT)
        for seed in range(options.seeds):
            for number, wire in enumerate(WIRES):
                path = folder / f"{seed}-{number}"
                runs[wire].append(train(path, wire, seed, options.steps, options.data))
                print(f"seed {seed}, {wire}: {runs[wire][-1].step_s:.3f} s a step", flush=True)
    print(f"\n{'wire':22}{'loss':>8}{'furthest':>10}{'weights':>9}{'step':>9}{'memory':>10}")
    for wire, of_wire in runs.items():
        ends = [away(run, exact) for run, exact in zip(of_wire, runs["fp32"], strict=True)]
        print(
            f"{wire:22}{fmean(end.loss for end in ends):8.4f}"
            f"{fmean(end.furthest for end in ends):10.2%}"
            f"{fmean(end.weights for end in ends):9.3%}"
            f"{median(run.step_s for run in of_wire):7.3f} s"
            f"{max(run.held_bytes for run in of_wire) / 1e6:7.1f} MB"
        )


if __name__ == "__main__":
    main()
