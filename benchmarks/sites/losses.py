"""Loss by tokens of methods that send less between sites: of the mean of all sites' weights, on
held-out text. `python benchmarks/sites/losses.py [--steps 240] [--seeds 3] [--into losses.json]`.

Two sites of one rank each, a thread each, on this machine; text, batches, initial weights and
schedule of rates are the same for all methods, and so for torch's. Each learning rate is tried
with the first seed; the best one with the others. A file of results is gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from sites import CLUSTER

from ratrain.plan import load_job
from ratrain.runtime.run.evaluate import all_of, evaluated
from ratrain.runtime.run.trained import trained_model

HERE = Path(__file__).parent
PERIOD, LENGTH, BATCH, EVERY = 8, 64, 8, 80
RATES = (1e-3, 2e-3, 4e-3)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 272,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
JOB = """
[model]
name = "model/config.json"
sequence_length = {length}
[cluster]
name = "cluster.toml"
devices = 2
[batch]
sequences = {sequences}
micro_batch = {batch}
[layout]
pipeline = 1
data = 2
[schedule]
dtype = "fp32"
replicas = "identical"
sharding = 0
[train]
steps = {steps}
learning_rate = {rate}
warmup_steps = 20
seed = {seed}
[data]
files = ["text.jsonl"]
validation = ["held-out.jsonl"]
tokenizer = "bytes"
[checkpoint]
every = {every}
keep = 1000
"""
AVERAGES = f"schedule.average_every={PERIOD}"
EARLY = AVERAGES, "schedule.averages=early-start"
AT_ONCE = "schedule.average_turns={e = 0, 0 = 0, 1 = 0, 2 = 0, h = 0}"


def outer(rate: float, momentum: float) -> tuple[str, ...]:
    return f"train.outer_learning_rate={rate}", f"train.outer_momentum={momentum}"


OURS: dict[str, tuple[str, ...]] = {
    "every step": (),
    "local-sgd": (AVERAGES,),
    "dreamddp": (AVERAGES, "schedule.averages=dreamddp"),
    "early-start": EARLY,
    "DiLoCo 0.7, 0.9": (*EARLY, AT_ONCE, *outer(0.7, 0.9)),
    "DiLoCo 0.4, 0.8": (*EARLY, AT_ONCE, *outer(0.4, 0.8)),
}
PEERS = {"torch ddp": "ddp", "torch local-sgd": "local-sgd"}
METHODS = ("torch ddp", "torch local-sgd", *OURS)


def ratrain(folder: Path, *arguments: str) -> None:
    """A verb, whose output is shown where it fails."""
    command = [sys.executable, "-c", "from ratrain.cli.main import main; main()", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def prepare(folder: Path) -> None:
    """Text of which every twelfth document is held out, a model and a cluster."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "cluster.toml").write_text(CLUSTER.format(rate=100))
    ratrain(folder, "data", "--sample-text", "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines(keepends=True)
    held_out, size = list[str](), 0
    for line in lines[::12]:
        if size < 60_000:
            held_out.append(line)
            size += len(line)
    (folder / "held-out.jsonl").write_text("".join(held_out))
    kept = [line for place, line in enumerate(lines) if place % 12]
    (folder / "text.jsonl").write_text("".join(kept))


def write_job(folder: Path, steps: int, rate: float, seed: int) -> None:
    job = JOB.format(
        length=LENGTH, sequences=2 * BATCH, batch=BATCH, steps=steps, rate=rate, seed=seed,
        every=EVERY,
    )  # fmt: skip
    (folder / "job.toml").write_text(job)


def ours(folder: Path, method: str) -> list[tuple[int, float]]:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    sets = [word for each in OURS[method] for word in ("--set", each)]
    options = ("--run", "run", "--no-calibrate", "--threads", "1")
    ratrain(folder, "train", "job.toml", *options, *sets)
    job = load_job(folder / "job.toml")
    assert job.data is not None
    from dataclasses import replace

    held_out = replace(job.data, files=job.data.validation, validation=())
    found: list[tuple[int, float]] = []
    for step in range(EVERY, job.train.steps + 1, EVERY):
        model = trained_model(run, step)
        result = evaluated(model, held_out, folder, ["held out"], LENGTH)
        found.append((step, all_of(result).loss))
    return found


def peer(folder: Path, method: str) -> list[tuple[int, float]]:
    out = folder / "peer.json"
    command = [
        sys.executable, str(HERE / "losses_peer.py"), PEERS[method], str(folder / "job.toml"),
        str(PERIOD), str(EVERY), str(out),
    ]  # fmt: skip
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **address, "RANK": str(rank)})
        for rank in range(2)
    ]
    if any([rank.wait() for rank in ranks]):
        raise SystemExit(f"{method} failed")
    return [(step, loss) for step, loss in json.loads(out.read_text())]


class Results:
    """Losses by method, rate and seed, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.of: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def find(self, folder: Path, method: str, steps: int, rate: float, seed: int) -> None:
        key = f"{method}|{rate}|{seed}"
        if key in self.of:
            return
        write_job(folder, steps, rate, seed)
        self.of[key] = (peer if method in PEERS else ours)(folder, method)
        self._path.write_text(json.dumps(self.of))
        print(key, f"{self.of[key][-1][1]:.4f}", flush=True)

    def last(self, method: str, rate: float, seed: int) -> float:
        return self.of[f"{method}|{rate}|{seed}"][-1][1]

    def best(self, method: str) -> float:
        return min(RATES, key=lambda rate: self.last(method, rate, 0))


def say(results: Results, seeds: int) -> None:
    print(f"{'method':20}  rate   final: mean  worst   | by rate, seed 0 | mean loss by step")
    for method in METHODS:
        rate = results.best(method)
        curves = [results.of[f"{method}|{rate}|{seed}"] for seed in range(seeds)]
        finals = [curve[-1][1] for curve in curves]
        swept = " ".join(f"{results.last(method, each, 0):.3f}" for each in RATES)
        middle = " ".join(
            f"{fmean(curve[place][1] for curve in curves):.3f}"
            for place in range(len(curves[0]))
        )
        print(
            f"{method:20}  {rate:.0e}  {fmean(finals):.4f}  {max(finals):.4f}  | {swept} | {middle}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3 * EVERY)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--into", type=Path, default=Path("losses.json"))
    asked = parser.parse_args()
    results = Results(asked.into)
    with tempfile.TemporaryDirectory(prefix="losses-") as name:
        folder = Path(name)
        prepare(folder)
        for method in METHODS:
            for rate in RATES:
                results.find(folder, method, asked.steps, rate, 0)
        for seed in range(1, asked.seeds):
            for method in METHODS:
                results.find(folder, method, asked.steps, results.best(method), seed)
    say(results, asked.seeds)


if __name__ == "__main__":
    main()
