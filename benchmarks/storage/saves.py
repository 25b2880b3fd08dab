"""What a checkpoint costs a run whose optimizer is on disk: its files taken, or written again.

    python benchmarks/storage/saves.py FOLDER [--pairs 3] [--steps 6] [--dtype bf16]

One job saves after every step, in alternating pairs of runs: as a run does it, and with links
refused, so that what is on disk is written a second time, as where checkpoints are on another file
system. Of each: the median step, the seconds of a step's Save ops, and the bytes that the kernel
counted as written by all processes of the run, over the steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from optimizer_on_disk import CLUSTER, JOB, ratrain

from ratrain.checkpoint.listing import latest
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.describe.units import format_bytes, format_time
from ratrain.runtime.run_folder import RunFolder
from ratrain.timeline.timeline import read_timeline

REFUSES_LINKS = """import os
def _refuse(*_, **__):
    raise OSError(18, "Invalid cross-device link")
os.link = _refuse
"""
BLOCK_BYTES = 512  # of what the kernel counts
WAYS = ("taken", "written")


def trained(folder: Path, way: str, run: str) -> tuple[int, RunFolder]:
    """Bytes written, and the run."""
    environment = dict(os.environ)
    if way == "written":
        site = folder / "no-links"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(REFUSES_LINKS)
        environment["PYTHONPATH"] = str(site)
    words = ("train", "job.toml", "--no-calibrate", "--run", run)
    words = (*words, "--set", "schedule.optimizer_tier=disk")
    command = [sys.executable, "-m", "ratrain", *words, "--set", "checkpoint.every=1"]
    child = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert child.stdout is not None
    said = child.stdout.read().decode()
    _, status, used = os.wait4(child.pid, 0)
    if status:
        sys.exit(said)
    return used.ru_oublock * BLOCK_BYTES, RunFolder(folder / run)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--dtype", default="fp32")
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True)
    dtype = asked.dtype
    (folder / "one.toml").write_text(CLUSTER.replace('"fp32"', f'"{dtype}"'))
    job = JOB.format(steps=asked.steps, sequences=asked.sequences)
    (folder / "job.toml").write_text(job.replace('"fp32"', f'"{dtype}"'))
    ratrain(folder, "data", "--sample-text", "text.jsonl")
    steps_s, saves_s, written = (defaultdict[str, list[float]](list) for _ in range(3))
    for pair in range(asked.pairs):
        for way in WAYS:
            size_bytes, run = trained(folder, way, f"{way}-{pair}")
            steps_s[way] += [row["step_time_s"] for row in run.read_metrics()[1:]]
            spans = [s for s in read_timeline(run.measured).spans if s.lane == "disk"]
            count = len({span.step for span in spans})
            saves_s[way].append(sum(span.length_s for span in spans) / count)
            written[way].append(size_bytes / asked.steps)
    for way in WAYS:
        print(
            f"{way:8} step {format_time(median(steps_s[way]))}, its saves "
            f"{format_time(median(saves_s[way]))} of the disk lane, "
            f"{format_bytes(median(written[way]))} written a step by all processes"
        )
    newest = [latest(folder / f"{way}-0") for way in WAYS]
    for way, checkpoint in zip(WAYS, newest, strict=True):
        assert checkpoint is not None
        files = open_checkpoint(checkpoint.path).manifest.files
        taken = sum(file.size_bytes for file in files if ".optimizer-" in file.file)
        print(f"{way:8} {format_bytes(taken)} of its last checkpoint are files of the tier")
    print(ratrain(folder, "compare", "taken-0", "written-0").stdout.strip())


if __name__ == "__main__":
    main()
