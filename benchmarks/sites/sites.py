"""Two sites of one replica each, a thin line between them: averages by turns against torch's DDP
and its own LocalSGD. `python benchmarks/sites/sites.py [--rates 20 50 100] [--steps 24] [--wires]`,
as root; `--wires`: averages alone, in each wire with an outer step that makes a mean.

Every method trains a model of the same size, on one thread, in two network namespaces whose ports
carry the rate (token bucket). A step's time is the median over periods of eight steps, each the
mean of its steps, without the first; of DDP, whose steps are alike, the median of steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from ratrain.describe.average_wires import AVERAGE_WIRES

HERE = Path(__file__).parent
PERIOD, LENGTH, BATCH = 8, 128, 4
CONFIG = {
    "model_type": "llama",
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
CLUSTER = """
name = "sites"
source = "benchmarks/sites"

[[device]]
name = "core"
launch = "20us"
launch_source = "assumed"
memory_efficiency = 0.8
memory_efficiency_source = "assumed"

[device.lab]
cpus = 1.0

[[device.tiers]]
name = "RAM"
capacity = "2GB"
bandwidth = "5GB/s"
source = "assumed"

[[device.rates]]
dtype = "fp32"
peak = "60GFLOP/s"
gemm = "40GFLOP/s"
source = "assumed"

[[host]]
name = "here"
device = "core"
devices = 1
count = 1
site = "here"

[[host]]
name = "there"
device = "core"
devices = 1
count = 1
site = "there"

[links.world]
latency = "200us"
bandwidth = "{rate}Mbit/s"
shared_by = "host"
source = "this benchmark"
"""
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
learning_rate = 1e-3

[data]
files = ["text.jsonl"]
tokenizer = "bytes"
"""
EARLY = f"schedule.average_every={PERIOD}", "schedule.averages=early-start"
MEAN = *EARLY, "train.outer_learning_rate=1.0", "train.outer_momentum=0.0"
WIRES = {
    f"early-start in {wire}": (*MEAN, f"schedule.average_wire={wire}") for wire in AVERAGE_WIRES
}
OURS: dict[str, tuple[str, ...]] = {
    "every step": (),
    "local-sgd": (f"schedule.average_every={PERIOD}",),
    "dreamddp": (f"schedule.average_every={PERIOD}", "schedule.averages=dreamddp"),
    "early-start": EARLY,
    "early-start in bf16": WIRES["early-start in bf16"],
}


def ratrain(folder: Path, *arguments: str) -> None:
    """A verb, whose output is shown where it fails."""
    command = [sys.executable, "-c", "from ratrain.cli.main import main; main()", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def prepare(folder: Path, rate: int, steps: int) -> None:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "cluster.toml").write_text(CLUSTER.format(rate=rate))
    job = JOB.format(length=LENGTH, sequences=2 * BATCH, batch=BATCH, steps=steps)
    (folder / "job.toml").write_text(job)
    if not (folder / "text.jsonl").exists():
        ratrain(folder, "data", "--sample-text", "text.jsonl")


@dataclass(frozen=True)
class Ours:
    """A run: seconds of each step and as predicted before it; of each step what the slower rank's
    compute waited for (averages, and the optimizer), and the bytes that both sockets were given."""

    times: list[float]
    predicted_s: float
    waits: list[float]
    sent: list[float]


def ours(folder: Path, name: str, keys: tuple[str, ...], rate: int) -> Ours:
    run = folder / f"{name.replace(' ', '-')}-{rate}"
    sets = [word for each in keys for word in ("--set", each)]
    ratrain(folder, "train", "job.toml", "--lab", "--run", str(run), *sets)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "step_time_s" in row]
    computed = [max(r["compute_s"] for r in row["ranks"]) for row in rows]
    total = [0.0, *(sum(r["sent_bytes"] for r in row["ranks"]) for row in rows)]
    return Ours(
        [row["step_time_s"] for row in rows],
        json.loads((run / "prediction.json").read_text())["step_time_s"],
        [row["step_time_s"] - s for row, s in zip(rows, computed, strict=True)],
        [after - before for before, after in pairwise(total)],
    )


def peer(folder: Path, method: str, steps: int) -> list[float]:
    out = folder / "peer.json"
    numbers = map(str, (LENGTH, BATCH, steps, PERIOD))
    command = (sys.executable, str(HERE / "peer.py"), method, "model/config.json", *numbers)
    ratrain(folder, "lab", "run", "cluster.toml", "--", *command, str(out))
    return json.loads(out.read_text())


def typical(times: list[float], period: int) -> float:
    """The median period's mean, without the first."""
    starts = range(period, len(times) - period + 1, period)
    return median(fmean(times[at : at + period]) for at in starts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--steps", type=int, default=4 * PERIOD)
    parser.add_argument("--wires", action="store_true")
    asked = parser.parse_args()
    print(f"{'method':24}" + "".join(f"{rate:>8} Mbit/s" for rate in asked.rates))
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="partial-sites-") as name:
        folder = Path(name)
        for rate in asked.rates:
            prepare(folder, rate, asked.steps)
            for method in () if asked.wires else ("ddp", "local-sgd"):
                few = 8 if method == "ddp" else asked.steps
                step_s = typical(peer(folder, method, few), 1 if method == "ddp" else PERIOD)
                found.setdefault(f"torch {method}", []).append(f"{step_s:.3f}")
                print(rate, f"torch {method}", f"{step_s:.3f}", flush=True)
            for method, keys in (WIRES if asked.wires else OURS).items():
                steps = 8 if method == "every step" else asked.steps
                prepare(folder, rate, steps)
                run, period = ours(folder, method, keys, rate), 1 if not keys else PERIOD
                step_s, wait_s, sent = (
                    typical(each, period) for each in (run.times, run.waits, run.sent)
                )
                cell = f"{step_s:.3f} ({run.predicted_s:.3f})"
                found.setdefault(f"ratrain {method}", []).append(cell)
                more = f"compute waited {wait_s:.3f}, {sent / 2e6:.3f} MB a rank and step"
                print(rate, method, cell, more, flush=True)
    for method, cells in found.items():
        print(f"{method:24}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    main()
