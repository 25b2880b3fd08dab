"""A step's time in two versions of RATrain, side by side: what a change of the runtime cost.

    python benchmarks/runtime/two_versions.py --against /path/to/other/.venv/bin/ratrain

Six regimes of a small model on processes of this machine, without emulated links, so that nothing
hides what the runtime itself takes: one rank; pipelines; replicas, gradients whole and sharded;
both; many short micro-batches. Both versions run at once, each on one processor (all its ranks),
which they exchange from round to round: so both meet the same noise of the machine, and a step is
the work of all its ranks. `--in-turn`: one after the other, each on all processors. Printed: the
median over a run's steps after the warm-up, then the median over rounds, and the median and range
of the ratios of rounds. Jobs use what both versions know.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

JOB = """
[model]
name = "{model}"
sequence_length = 128
[cluster]
name = "cpu-lab"
devices = {devices}
[batch]
sequences = {sequences}
micro_batch = {micro_batch}
[layout]
pipeline = {pipeline}
data = {data}
[schedule]
name = "{schedule}"
dtype = "fp32"
sharding = {sharding}
[train]
steps = {steps}
[data]
files = ["text.jsonl"]
"""
WARM_UP = 6
REGIMES: dict[str, tuple[str, int, int, int, int]] = {
    "one rank": ("1f1b", 1, 1, 0, 4),
    "pipeline of 2": ("1f1b", 2, 1, 0, 2),
    "pipeline of 2, ratrain": ("ratrain", 2, 1, 1, 2),
    "2 replicas": ("1f1b", 1, 2, 0, 2),
    "2 replicas, level 2": ("1f1b", 1, 2, 2, 2),
    "2 x 2, 16 micro-batches": ("ratrain", 2, 2, 1, 1),
}
"""Schedule, pipeline, data, sharding, micro-batch."""


def started(ratrain: Path, folder: Path, processor: int | None) -> subprocess.Popen[str]:
    """A new run, on one processor or on all."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    pin = [] if processor is None else ["taskset", "-c", str(processor)]
    words = ["train", "job.toml", "--run", "run", "--threads", "1", "--no-lab"]
    return subprocess.Popen(
        [*pin, str(ratrain), *words, "--no-calibrate", "--json"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def step_s(run: subprocess.Popen[str], folder: Path) -> float:
    """The median step of a run, after the warm-up."""
    (_, said) = run.communicate()
    if run.returncode:
        sys.exit(f"{run.args}: {said[-800:]}")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return median([json.loads(line)["step_time_s"] for line in lines][WARM_UP:])


def steps_of_round(
    versions: list[Path], folders: list[Path], turn: int, at_once: bool
) -> list[float]:
    """Each version's step; who is first, or which processor it has, changes from round to round."""
    order = [0, 1] if turn % 2 else [1, 0]
    if at_once:
        runs = {i: started(versions[i], folders[i], order.index(i)) for i in order}
        found = {i: step_s(run, folders[i]) for i, run in runs.items()}
    else:
        found = {i: step_s(started(versions[i], folders[i], None), folders[i]) for i in order}
    return [found[0], found[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    here = Path(sys.executable).parent / "ratrain"
    parser.add_argument("--against", type=Path, required=True, help="the other version's ratrain")
    parser.add_argument("--ratrain", type=Path, default=here, help="this version's [this Python's]")
    parser.add_argument("--in-turn", action="store_true", help="one version after the other")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", choices=REGIMES, help="one regime")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, "other"), Path(name, "this")]
        for folder in folders:
            folder.mkdir()
            text = [asked.ratrain, "data", "--sample-text", "text.jsonl"]
            subprocess.run(text, cwd=folder, check=True, capture_output=True)
        print(f"{'regime':26}{'other ms':>10}{'this ms':>10}{'ratio':>8}  range of ratios")
        for regime, (schedule, pipeline, data, sharding, micro_batch) in REGIMES.items():
            if asked.only not in (None, regime):
                continue
            for folder in folders:
                (folder / "job.toml").write_text(
                    JOB.format(
                        model=asked.model,
                        devices=pipeline * data,
                        sequences=32,
                        micro_batch=micro_batch,
                        pipeline=pipeline,
                        data=data,
                        schedule=schedule,
                        sharding=sharding,
                        steps=asked.steps,
                    )
                )
            pairs = [
                steps_of_round([asked.against, asked.ratrain], folders, turn, not asked.in_turn)
                for turn in range(asked.rounds)
            ]
            ratios = sorted(this / other for other, this in pairs)
            print(
                f"{regime:26}{median(other for other, _ in pairs) * 1e3:10.1f}"
                f"{median(this for _, this in pairs) * 1e3:10.1f}"
                f"{median(ratios):8.3f}  {ratios[0]:.3f} to {ratios[-1]:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
