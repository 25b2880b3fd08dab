"""Training on a GPU. Skipped where there is none; `scripts/gpu_check.sh` runs it where there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ratrain.devices import gpus_here
from ratrain.models import kernels
from ratrain.models.functions import activation, norm, positions

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not gpus_here(), reason="no GPU"),
]

JOB = """
[model]
name = "small-llama"
sequence_length = 256

[cluster]
name = "{cluster}"
devices = {devices}

[batch]
sequences = 16
micro_batch = 2

[layout]
pipeline = {pipeline}
data = {data}
tensor = {tensor}

[schedule]
name = "{schedule}"
dtype = "{dtype}"
gradient_dtype = "fp32"
memory_budget = "4GB"

[train]
steps = {steps}
learning_rate = 1e-3
clip_norm = 1.0
share_gpu = true

[data]
files = ["{text}"]

[checkpoint]
every = 3
"""


OF_TWO_KINDS = """
name = "two-kinds"
source = "a test"
host = [
  { name = "first", device = "gpu", devices = 1, count = 1 },
  { name = "second", device = "processor", devices = 1, count = 1 },
]
links.room = { latency = "100us", bandwidth = "10Gbit/s" }

[[device]]
name = "gpu"
runs_on = "cuda"
launch = "5us"
memory_efficiency = 0.8
tiers = [{ name = "HBM", capacity = "80GB", bandwidth = "3350GB/s" }]
rates = [{ dtype = "fp32", peak = "67TFLOP/s", gemm = "40TFLOP/s" }]

[[device]]
name = "processor"
launch = "10us"
memory_efficiency = 0.8
tiers = [{ name = "RAM", capacity = "8GB", bandwidth = "10GB/s" }]
rates = [{ dtype = "fp32", peak = "100GFLOP/s", gemm = "50GFLOP/s" }]
"""


def ratrain(*words: str) -> subprocess.CompletedProcess[str]:
    """A verb, typed."""
    start = "from ratrain.cli.start import main; main()"
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", start, *words],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
    )


def trained(folder: Path, name: str, *words: str, **said: Any) -> Path:
    """The folder of a run that went well."""
    text = folder / "text.txt"
    text.write_text(
        "\n".join(f"{number} bottles on the wall, {number - 1} left" for number in range(9000))
    )
    filled = {
        "cluster": ROOT / "examples/clusters/one-gpu.toml",
        "devices": 1,
        "pipeline": 1,
        "data": 1,
        "tensor": 1,
        "schedule": "ratrain",
        "dtype": "bf16",
        "steps": 6,
        "text": text,
        **said,
    }
    filled["devices"] = filled["pipeline"] * filled["data"] * filled["tensor"]
    job, run = folder / f"{name}.toml", folder / name
    job.write_text(JOB.format(**filled))
    done = ratrain("train", str(job), "--run", str(run), "--no-calibrate", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    if filled["pipeline"] == filled["tensor"] == 1:
        assert "cannot be recorded" not in done.stdout + done.stderr
    return run


def losses(run: Path) -> list[str]:
    """The bits of each step's loss."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss_bits"] for row in rows if "loss_bits" in row]


def values(run: Path) -> list[float]:
    return [float.fromhex(bits) for bits in losses(run)]


GRID = {"pipeline": 2, "data": 2}


def test_a_run_on_a_gpu_gives_the_same_bits_again(tmp_path: Path) -> None:
    assert losses(trained(tmp_path, "once")) == losses(trained(tmp_path, "again"))


PLAIN = ("--set", "train.graphs=false")
HELD_OUT = ("--set", "data.validation=['held-out.txt']", "--set", "train.validate_every=3")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"schedule": "ratrain"}, ()),
        ({"schedule": "1f1b"}, ()),
        ({"schedule": "ratrain", "dtype": "fp16"}, ()),
        ({"schedule": "ratrain", "dtype": "fp32"}, ()),
        ({"schedule": "ratrain", "data": 2}, ()),
        ({"schedule": "pe-zero", "data": 2}, ()),
        ({"schedule": "ratrain"}, HELD_OUT),
    ],
    ids=["ratrain", "1f1b", "fp16", "fp32", "data", "pe-zero", "validation"],
)
def test_recorded_ops_give_the_bits_of_those_launched_one_by_one(
    tmp_path: Path, said: dict[str, Any], words: tuple[str, ...]
) -> None:
    (tmp_path / "held-out.txt").write_text("bottles " * 2000)
    one_by_one, recorded = (
        trained(tmp_path, name, *words, *graphs, steps=9, **said)
        for name, graphs in (("plain", PLAIN), ("graphs", ()))
    )
    assert losses(recorded) == losses(one_by_one)


def test_a_recorded_run_that_is_resumed_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole", steps=9)
    trained(tmp_path, "parts", "--steps", "6", steps=9)
    job, run = tmp_path / "parts.toml", tmp_path / "parts"
    done = ratrain("train", str(job), "--run", str(run), "--resume", "--steps", "9")
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(run) == losses(whole)


def test_ranks_that_share_a_gpu_give_the_losses_of_one(tmp_path: Path) -> None:
    one, four = trained(tmp_path, "one"), trained(tmp_path, "four", **GRID)
    assert values(four) == pytest.approx(values(one), rel=2e-3)  # bf16, other orders of sums
    assert losses(four) == losses(trained(tmp_path, "four-again", **GRID))


DIRECT = ("--set", "train.share_gpu=false", "--set", "train.network=direct")


def test_a_rank_with_a_communicator_of_its_own_trains_with_the_same_bits(tmp_path: Path) -> None:
    """All of NCCL that one GPU can show: that it is made, and let go."""
    alone = trained(tmp_path, "alone", steps=3)
    assert losses(trained(tmp_path, "direct", *DIRECT, steps=3)) == losses(alone)


@pytest.mark.skipif(gpus_here() < 2, reason="one GPU: a communicator takes each once")
@pytest.mark.parametrize("said", [{"data": 2}, {"pipeline": 2}, {"schedule": "pe-zero", "data": 2}])
def test_nccl_gives_the_bits_of_connections(tmp_path: Path, said: dict[str, Any]) -> None:
    staged = trained(tmp_path, "staged", "--set", "train.share_gpu=false", **said)
    assert losses(trained(tmp_path, "direct", *DIRECT, **said)) == losses(staged)


def test_a_gpu_computes_what_the_cpu_computes_in_fp32(tmp_path: Path) -> None:
    on_gpu = trained(tmp_path, "gpu", dtype="fp32", steps=3)
    on_cpu = trained(tmp_path, "cpu", "--device", "cpu", dtype="fp32", steps=3)
    assert values(on_gpu) == pytest.approx(values(on_cpu), rel=1e-4)


def test_a_gpu_and_a_processor_train_in_one_pipeline(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(OF_TWO_KINDS)
    said: dict[str, Any] = {"cluster": cluster, "pipeline": 2, "dtype": "fp32", "steps": 3}
    both = trained(tmp_path, "both", "--set", "train.device=auto", **said)
    processors = trained(tmp_path, "processors", "--device", "cpu", **said)
    assert values(both) == pytest.approx(values(processors), rel=1e-4)
    ranks = json.loads((both / "report.json").read_text())["memory"]
    assert [row["computes_on"] == "CPU" for row in ranks] == [False, True]


def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole", **GRID)
    trained(tmp_path, "parts", "--steps", "3", **GRID)
    job, run = tmp_path / "parts.toml", tmp_path / "parts"
    done = ratrain("train", str(job), "--run", str(run), "--resume", "--steps", "6")
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(run) == losses(whole)


@pytest.mark.parametrize(
    "said",
    [
        {"schedule": "baseline-1f1b", **GRID},
        {"schedule": "pe-zero", **GRID},
        {"schedule": "ratrain", "pipeline": 2, "tensor": 2},
        {"schedule": "ratrain", "pipeline": 4, "dtype": "fp16"},
        {"schedule": "ratrain"},
        {"schedule": "1f1b"},
        {"schedule": "pe-zero", "data": 2},
    ],
    ids=["1f1b", "pe-zero", "tensor", "fp16", "recorded", "recorded-1f1b", "recorded-pe-zero"],
)
def test_no_more_is_allocated_than_was_proved(tmp_path: Path, said: dict[str, Any]) -> None:
    run = trained(tmp_path, "run", **said)
    for path in (run / "ranks").glob("records-*.json"):
        memory = json.loads(path.read_text())["memory"]
        assert 0 < memory["allocated_peak_bytes"] <= memory["size_bytes"], memory


@pytest.mark.parametrize("schedule", ["ratrain", "1f1b"])
def test_recorded_ops_run_in_no_more_than_was_proved(tmp_path: Path, schedule: str) -> None:
    """The allocator's limit is the budget's, and with it what graphs keep."""
    roomy = trained(tmp_path, "roomy", schedule=schedule)
    body = json.loads((roomy / "report.json").read_text())
    budget = ("--set", f"schedule.memory_budget={body['memory'][0]['bound_bytes']}B")
    assert losses(trained(tmp_path, "tight", *budget, schedule=schedule)) == losses(roomy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_of_gpus_compute_what_torch_computes(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*shape: int) -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(len(shape))
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    def computed() -> list[torch.Tensor]:
        x, weight, grad = drawn(33, 200), drawn(200), drawn(33, 200)
        normed, rstd = norm.rms_norm(x, weight, 1e-5)
        gradients = norm.rms_norm_gradients(grad, x, rstd, weight, x)
        up, gate = drawn(17, 300), drawn(17, 300).neg()
        value = activation.activated("silu", up, gate)
        activation.activation_gradients_("silu", drawn(17, 300), up, gate)
        turns = torch.linspace(0, 3, 11 * 8, device="cuda").view(11, 1, 8)
        turned = positions.rotate_(drawn(2, 11, 3, 16), turns.cos(), turns.sin())
        return [normed, rstd, *gradients, value, up, gate, turned]

    assert kernels.kernels_for(drawn(2, 2)) is not None
    fused = computed()
    monkeypatch.setattr(kernels, "kernels_for", lambda _: None)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for mine, plain in zip(fused, computed(), strict=True):
        torch.testing.assert_close(mine.float(), plain.float(), rtol=tolerance, atol=tolerance * 5)
