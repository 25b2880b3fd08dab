"""A model several times as large as its memory, with everything in tiers, under a control group.

    python benchmarks/storage/beyond_memory.py FOLDER [--budget 240MB] [--cap 600MB] [--layers 24]

The same job is asked several ways in a group of its own, memory capped: as it is, with its
optimizer on disk, with optimizer, weights and activations on disk, and with those moved as another
system moves them. What is killed is said; of what trains the step, predicted and measured, the
largest memory of the group, and the bytes that it moved against those that its program says.
`--rounds`: so many times, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ratrain.describe.units import format_bytes, parse_bytes

GROUPS = Path("/sys/fs/cgroup/memory")
CLUSTER = (Path(__file__).parent / "optimizer_on_disk.py").read_text().split('CLUSTER = """')[1]
JOB = """[model]
name = "config.json"
sequence_length = {length}
[cluster]
name = "one.toml"
devices = 1
[batch]
sequences = {sequences}
micro_batch = 1
[layout]
pipeline = 1
[schedule]
dtype = "fp32"
skeleton = "{skeleton}"
[train]
steps = {steps}
[data]
files = ["text.jsonl"]
"""
WAYS: dict[str, tuple[str, ...]] = {
    "all on the device": ("optimizer_tier=device", "recovery=everywhere"),
    "optimizer on disk": ("optimizer_tier=disk", "recovery=everywhere"),
    "everything on disk": (
        "optimizer_tier=disk",
        "view_tier=disk",
        "gradient_tier=disk",
        "activation_tier=disk",
        "recovery=everywhere",
    ),
    "everything on disk and spilled": (
        "optimizer_tier=disk",
        "view_tier=disk",
        "gradient_tier=disk",
        "activation_tier=disk",
        "recovery=spill",
    ),
    # 10Cache's policy (arXiv 2511.14124), with our files, threads and updates: an order that a
    # first step has recorded, micro-batch by micro-batch, and a window of a fixed number of units,
    # each fetched when one before it is released; the window begins anew at each step's end.
    "everything on disk by a learnt window": (
        "skeleton=1f1b",
        'without=["update-prefetch"]',
        "optimizer_tier=disk",
        "view_tier=disk",
        "activation_tier=disk",
        "recovery=everywhere",
    ),
}


def config(layers: int, hidden: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "intermediate_size": 8 * hidden // 3 // 64 * 64,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }


def capped(folder: Path, cap: str, *words: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """A command in a group of its own, and the most memory that it had."""
    group = GROUPS / f"ratrain-bench-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(int(parse_bytes(cap))))

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-m", "ratrain", *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, preexec_fn=enter, check=False
    )
    largest = int((group / "memory.max_usage_in_bytes").read_text())
    group.rmdir()
    return done, largest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", default="240MB")
    parser.add_argument("--cap", default="600MB")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--skeleton", default="layer-major-4")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default=",".join(WAYS))
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True)
    (folder / "one.toml").write_text(CLUSTER.split('"""')[0])
    (folder / "config.json").write_text(json.dumps(config(asked.layers, asked.hidden)))
    job = JOB.format(
        length=asked.length, sequences=asked.sequences, steps=asked.steps, skeleton=asked.skeleton
    )
    (folder / "job.toml").write_text(job)
    subprocess.run(
        [sys.executable, "-m", "ratrain", "data", "--sample-text", "text.jsonl"],
        cwd=folder,
        capture_output=True,
        check=True,
    )
    for number, way in enumerate(asked.only.split(",") * asked.rounds):
        keys = [f"schedule.{key}" for key in WAYS[way.strip()]]
        # What does not fit the budget is refused: it is asked without, and the cap judges.
        fits = "everything" in way
        keys += [f"schedule.memory_budget={asked.budget}"] if fits else []
        words = [word for key in keys for word in ("--set", key)]
        words += [] if fits else ["--emulate"]  # else the launch refuses it by its proof
        run = f"run-{number}"
        done, largest = capped(folder, asked.cap, "train", "job.toml", *words, "--run", run)
        said = f"{way}: the group had {format_bytes(largest)} at most"
        if done.returncode:
            print(f"{said}; status {done.returncode}: {done.stderr.strip()[-300:]}", flush=True)
            continue
        report = json.loads((folder / run / "report.json").read_text())
        step, waits = report["step_time_s"], report.get("waits_s") or report.get("where_time_went")
        print(
            f"{said}; step {step['predicted']:.2f} s predicted, {step['measured']:.2f} measured",
            flush=True,
        )
        print(
            "  ", [line for line in done.stdout.splitlines() if "disk" in line], waits, flush=True
        )


if __name__ == "__main__":
    main()
