"""Two sites of one replica each, a thin line between them: averages by turns against torch's DDP
and its own LocalSGD, DreamDDP's published order by hooks, and torchft's methods where it is
installed.
`python benchmarks/sites/sites.py [--rates 20 50 100] [--steps 24] [--wires]`, as root; `--wires`:
averages alone, in each wire with an outer step that makes a mean.

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
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from ratrain.describe.average_wires import AVERAGE_WIRES

HERE = Path(__file__).parent
PERIOD = 8


@dataclass(frozen=True)
class Model:
    """A LLaMA, and the batch of a replica: sequences of so many tokens."""

    hidden: int
    layers: int
    kv_heads: int
    intermediate: int
    vocab: int
    length: int
    batch: int

    @property
    def config(self) -> dict[str, object]:
        return {
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        }


MODELS = {"2.0M": Model(192, 4, 2, 512, 1024, 128, 4), "0.4M": Model(96, 3, 4, 256, 272, 64, 8)}
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


PEERS = {
    "torch ddp": ("peer.py", "ddp"),
    "torch local-sgd": ("peer.py", "local-sgd"),
    "DreamDDP's hooks": ("dreamddp_peer.py", "search"),
    "torchft local-sgd": ("torchft_peer.py", "local-sgd"),
    "torchft DiLoCo": ("torchft_peer.py", "1-0"),
    "torchft Streaming DiLoCo, 2 parts": ("torchft_peer.py", "2-3"),
    "torchft Streaming DiLoCo, 4 parts": ("torchft_peer.py", "4-1"),
}


def ratrain(folder: Path, *arguments: str) -> None:
    """A verb, whose output is shown where it fails."""
    command = [sys.executable, "-c", "from ratrain.cli.main import main; main()", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def prepare(folder: Path, model: Model, rate: int, steps: int) -> None:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(model.config))
    (folder / "cluster.toml").write_text(CLUSTER.format(rate=rate))
    batch = model.batch
    job = JOB.format(length=model.length, sequences=2 * batch, batch=batch, steps=steps)
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


def peer(folder: Path, model: Model, script: str, method: str, steps: int) -> list[float]:
    out = folder / "peer.json"
    numbers = map(str, (model.length, model.batch, steps, PERIOD))
    command = (sys.executable, str(HERE / script), method, "model/config.json", *numbers)
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
    parser.add_argument("--model", choices=MODELS, default="2.0M", help="0.4M: that of losses.py")
    asked = parser.parse_args()
    model = MODELS[asked.model]
    print(f"{'method':34}" + "".join(f"{rate:>8} Mbit/s" for rate in asked.rates))
    found: dict[str, list[str]] = {}
    with_torchft = find_spec("torchft") is not None
    peers = {name: it for name, it in PEERS.items() if with_torchft or "torchft" not in name}
    with tempfile.TemporaryDirectory(prefix="partial-sites-") as temporary:
        folder = Path(temporary)
        for rate in asked.rates:
            prepare(folder, model, rate, asked.steps)
            for name, (script, method) in () if asked.wires else peers.items():
                steps, period = (8, 1) if method == "ddp" else (asked.steps, PERIOD)
                step_s = typical(peer(folder, model, script, method, steps), period)
                found.setdefault(name, []).append(f"{step_s:.3f}")
                print(rate, name, f"{step_s:.3f}", flush=True)
            for name, keys in (WIRES if asked.wires else OURS).items():
                prepare(folder, model, rate, asked.steps if keys else 8)
                run, period = ours(folder, name, keys, rate), PERIOD if keys else 1
                step_s, wait_s, sent = (
                    typical(each, period) for each in (run.times, run.waits, run.sent)
                )
                cell = f"{step_s:.3f} ({run.predicted_s:.3f})"
                found.setdefault(f"ratrain {name}", []).append(cell)
                more = f"compute waited {wait_s:.3f}, {sent / 2e6:.3f} MB a rank and step"
                print(rate, name, cell, more, flush=True)
    for method, cells in found.items():
        print(f"{method:34}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    main()
