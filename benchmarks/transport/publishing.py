"""What it costs a run that others follow its weights.

    python benchmarks/transport/publishing.py [--every 1 10] [--turns 3] [--json FILE]

Two ranks on this machine train a job of 15 M parameters; a process beside them takes every version
that is published, and does nothing else. Runs without it, with it at each interval, take turns:
medians of steps over turns, and how many versions came.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from in_step import CONFIG

JOB = """
model = {{ name = "config.json", sequence_length = 128 }}
cluster = {{ name = "cpu-lab", devices = 2 }}
batch = {{ sequences = 4, micro_batch = 1 }}
layout = {{ pipeline = 1, data = 2 }}
schedule = {{ dtype = "fp32", sharding = 1 }}
train = {{ steps = 24, publish_every = {every} }}
data = {{ files = ["text.txt"] }}
"""
FOLLOWER = """
import sys
import ratrain
with ratrain.follow(sys.argv[1]) as weights:
    while True:
        print(weights.wait(), flush=True)
"""


def run(folder: Path, every: int, number: int) -> tuple[float, int]:
    """The median step of a run's last half, and how many versions were taken."""
    name = f"every-{every}-{number}"
    (folder / f"{name}.toml").write_text(JOB.format(every=every))
    words = ["-m", "ratrain", "train", f"{name}.toml", "--run", name, "--no-calibrate", "--json"]
    prepare = [sys.executable, *words, "--prepare-only"]
    subprocess.run(prepare, cwd=folder, check=True, capture_output=True)
    follower = None
    if every:
        follower = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, name],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    go_on = [sys.executable, *words, "--resume"]
    subprocess.run(go_on, cwd=folder, check=True, capture_output=True)
    versions = 0
    if follower is not None:
        follower.kill()
        versions = len(follower.communicate()[0].splitlines())
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    times = [row["step_time_s"] for row in rows if "step_time_s" in row]
    return median(times[len(times) // 2 :]), versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[int, list[tuple[float, int]]] = {each: [] for each in (0, *asked.every)}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        lines = (f"{n} times {n} is {n * n}.\n" for n in range(9999))
        (folder / "text.txt").write_text("".join(lines))
        for number in range(asked.turns):
            for every in found:
                found[every].append(run(folder, every, number))
    alone = median(step for step, _ in found[0])
    for every, figures in found.items():
        step = median(step for step, _ in figures)
        words = f"every {every} steps" if every else "nobody follows"
        print(f"{words:>16}: {1e3 * step:.1f} ms a step ({step / alone:.3f} of alone), "
              f"{sum(count for _, count in figures)} versions in {asked.turns} runs")  # fmt: skip
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
