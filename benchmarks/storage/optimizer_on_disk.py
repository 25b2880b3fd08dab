"""One job under a memory budget, with its optimizer on the device and on disk.

    python benchmarks/storage/optimizer_on_disk.py FOLDER [--pairs 2] [--steps 6]

Without the disk the budget refuses it; with it, it trains. Then both train without a budget in
alternating pairs: the step, predicted and measured, and the bits of losses and weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

CLUSTER = """name = "one"
source = "a benchmark: this machine"
[[device]]
name = "cores"
launch = "20us"
launch_source = "assumed"
memory_efficiency = 0.8
memory_efficiency_source = "assumed"
[[device.tiers]]
name = "RAM"
capacity = "20GB"
bandwidth = "10GB/s"
source = "assumed"
[[device.tiers]]
name = "disk"
capacity = "20GB"
bandwidth = "1.5GB/s"
source = "assumed; a run times its own"
[[device.rates]]
dtype = "fp32"
peak = "100GFLOP/s"
gemm = "60GFLOP/s"
source = "assumed; a run times its own"
[[host]]
name = "this"
device = "cores"
devices = 1
count = 1
[links.room]
latency = "20us"
bandwidth = "1GB/s"
source = "unused"
"""
JOB = """[model]
name = "small-llama"
sequence_length = 128
[cluster]
name = "one.toml"
devices = 1
[batch]
sequences = {sequences}
micro_batch = 2
[layout]
pipeline = 1
[schedule]
dtype = "fp32"
recovery = "everywhere"
[train]
steps = {steps}
[data]
files = ["text.jsonl"]
"""


def ratrain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ratrain", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def trained(folder: Path, tier: str, run: str, *more: str) -> dict[str, Any]:
    """The report of a run."""
    words = ("--set", f"schedule.optimizer_tier={tier}", "--run", run, *more)
    done = ratrain(folder, "train", "job.toml", *words)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return json.loads((folder / run / "report.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--budget", default="430MB")
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True)
    (folder / "one.toml").write_text(CLUSTER)
    (folder / "job.toml").write_text(JOB.format(steps=asked.steps, sequences=asked.sequences))
    ratrain(folder, "data", "--sample-text", "text.jsonl")
    budget = ("--set", f"schedule.memory_budget={asked.budget}")
    refused = ratrain(
        folder, "train", "job.toml", "--set", "schedule.optimizer_tier=device", *budget
    )
    print(f"budget {asked.budget}, optimizer on the device: status {refused.returncode}")
    print("  " + refused.stderr.strip().splitlines()[0])
    capped = trained(folder, "disk", "capped", *budget)
    peak = max(rank["allocated_peak_bytes"] for rank in capped["memory"])
    print(
        f"budget {asked.budget}, optimizer on disk: trains, {peak / 1e6:.0f} MB allocated at most"
    )
    steps: dict[str, list[tuple[float, float]]] = {"device": [], "disk": []}
    for pair in range(asked.pairs):
        for tier in steps:
            report = trained(folder, tier, f"{tier}-{pair}")
            step = report["step_time_s"]
            steps[tier].append((step["predicted"], step["measured"]))
    for tier, rows in steps.items():
        each = "; ".join(f"{p:.3f} predicted, {m:.3f} s measured ({m / p:.2f})" for p, m in rows)
        print(f"{tier:7} {each}")
    ratios = [b[1] / a[1] for a, b in zip(steps["device"], steps["disk"], strict=True)]
    print(f"disk / device: {median(ratios):.3f} median, worst {max(ratios):.3f}")
    same = ratrain(folder, "compare", "device-0", "disk-0")
    print(same.stdout.strip())


if __name__ == "__main__":
    main()
