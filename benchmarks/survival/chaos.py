"""What faults cost a run: throughput beside an undisturbed one, and time to the next step.

    python benchmarks/survival/chaos.py --minutes 30 --seed 7 [--mirror]

Four emulated machines on two sites (examples/clusters/two-sites-lab.toml) train the tiny model.
First undisturbed, for a minute; then under `ratrain lab chaos`, a fault every 29 s on average, of
every kind. Root, on a quiet machine. Throughput outside of recovery: steps that counted, in the
time from which each wait after a new start is taken away, against the undisturbed rate. Steps
lost: those that were done again. `--mirror`: a model of one layer, on replicas that shard states
and mirror each other's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

CLUSTER = Path(__file__).parents[2] / "examples" / "clusters" / "two-sites-lab.toml"
JOB = """
[model]
name = "{model}"
sequence_length = 64
[cluster]
name = "{cluster}"
devices = 4
[batch]
sequences = 24
micro_batch = 1
[schedule]
dtype = "fp32"{mirror}
[train]
steps = 1000000
learning_rate = 1e-2
[data]
files = ["text.jsonl"]
[checkpoint]
every = {every}
"""

ONE_LAYER = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 352,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
"""No pipeline divides it, so every plan has replicas, which mirror each other."""


def ratrain(folder: Path, *words: str) -> dict[str, Any]:
    """What a verb prints as JSON."""
    command = [sys.executable, "-P", "-m", "ratrain", *words, "--json"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False)
    body: dict[str, Any] = json.loads(done.stdout)
    if done.returncode not in (0, 75):
        raise SystemExit(json.dumps(body, indent=1))
    return body


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=29.0, help="seconds between faults")
    parser.add_argument("--lasts", type=float, default=8.0, help="seconds that one takes")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoints", type=int, default=10, help="steps between two")
    parser.add_argument("--mirror", action="store_true", help="with [schedule] mirror")
    chosen = parser.parse_args()
    model, mirror = "tiny-llama", ""
    if chosen.mirror:
        model, mirror = "model/config.json", "\nmirror = true\nsharding = 1"
    every = chosen.checkpoints
    job = JOB.format(model=model, cluster=CLUSTER, every=every, mirror=mirror)
    with tempfile.TemporaryDirectory(prefix="chaos-") as made:
        folder = Path(made)
        (folder / "job.toml").write_text(job)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(ONE_LAYER))
        ratrain(folder, "data", "--sample-text", "text.jsonl")
        chaos = ("lab", "chaos", "job.toml", "--seed", str(chosen.seed))
        quiet = ratrain(folder, *chaos, "--every", "1000", "--for", "75", "--run", "runs/quiet")
        body = ratrain(
            folder,
            *chaos,
            "--every",
            str(chosen.every),
            "--lasts",
            str(chosen.lasts),
            *("--for", str(60 * chosen.minutes), "--run", "runs/chaos"),
        )
    say(quiet, body)


def say(quiet: dict[str, Any], body: dict[str, Any]) -> None:
    goodput, faults = body["goodput"], body["faults"]
    waits = sorted(each["longest_wait_s"] for each in faults if each["restarted"])
    undisturbed = quiet["goodput"]
    rate = quiet["steps"] / (undisturbed["steps_s"] + undisturbed["between_steps_s"])
    trained_s = goodput["steps_s"] + goodput["between_steps_s"]
    print(f"{body['steps']} steps, wrong {body['wrong_steps']}, {len(faults)} faults, ", end="")
    print(
        f"{len(waits)} new starts, losses done again differ by {body['again_loss_difference']:.1e}"
    )
    again = [each["steps_again"] for each in faults]
    print(f"steps lost: {sum(again)}, at most {max(again, default=0)} by one fault")
    if waits:
        print(f"to the next step: median {median(waits):.1f} s, worst {waits[-1]:.1f} s")
    print(
        f"undisturbed {rate:.3f} steps/s; outside of recovery {body['steps'] / trained_s:.3f}, ",
        end="",
    )
    print(f"{body['steps'] / trained_s / rate:.3f} of it; goodput {goodput['fraction']:.3f}")
    for each in faults:
        print(
            f"{each['at_s']:8.1f} {each['kind']:5} {each['host']:9} "
            f"{each['longest_wait_s']:6.1f} s",
            end="",
        )
        print(f" {each['steps_again']:3}" if each["restarted"] else "", end="")
        print("" if each["hit"] else "  met nobody")


if __name__ == "__main__":
    main()
