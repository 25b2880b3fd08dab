"""Products and attention of the emulated MT-3000, as torch's operators meet them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ratrain.devices.mt3000 import answer, product
from ratrain.devices.operators import Intercepting


def farthest(ours: Tensor, exact: Tensor) -> float:
    """In units in the last place of the largest element."""
    unit = torch.finfo(ours.dtype).eps * exact.abs().max()
    return float((ours.double() - exact).abs().max() / unit)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_products_are_those_of_the_tile_programs_whatever_the_operator(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randn(s, generator=draw).to(dtype) for s in ((30, 70), (70, 40)))
    onto = torch.randn(30, 40, generator=draw).to(dtype)
    wanted = product(a, b)
    assert farthest(wanted, a.double() @ b.double()) < 8
    with Intercepting(answer):
        assert torch.equal(a @ b, wanted)
        assert torch.equal(b.t() @ a.t(), product(b.t(), a.t()))
        assert torch.equal(torch.addmm(onto, a, b), onto + wanted)
        assert torch.equal(onto.clone().addmm_(a, b), onto + wanted)
        assert torch.equal(torch.addmm(onto, a, b, out=torch.empty_like(onto)), onto + wanted)
    assert not torch.equal(a @ b, wanted) or dtype == torch.float32


def test_attention_and_its_gradients_are_near_those_of_fp64() -> None:
    draw = torch.Generator().manual_seed(2)
    made = [torch.randn(2, 3, 40, 16, generator=draw).half() for _ in range(4)]

    def attended(tensors: list[Tensor]) -> list[Tensor]:
        q, k, v, grad = (tensor.clone().requires_grad_() for tensor in tensors)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad.detach())]

    exact = attended([tensor.double() for tensor in made])
    with Intercepting(answer):
        ours = attended(made)
    for tensor, wanted in zip(ours, exact, strict=True):
        assert tensor.dtype == torch.float16
        assert farthest(tensor, wanted) < 32


def test_what_no_kernel_is_for_stays_torch_s() -> None:
    a = torch.randn(4, 4, dtype=torch.float64)
    with Intercepting(answer):
        assert torch.equal(a @ a, torch.mm(a, a))
        assert torch.equal(a.exp(), torch.exp(a))


JOB = """
[model]
name = "tiny-llama"
sequence_length = 32
[cluster]
name = "cpu-lab"
devices = 1
[batch]
sequences = 2
[layout]
pipeline = 1
[schedule]
skeleton = "1f1b"
dtype = "fp16"
[data]
files = ["text.txt"]
[train]
steps = 2
"""


@pytest.mark.slow
def test_a_small_model_trains_on_it_and_its_losses_are_near_the_cpu_s(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "text.txt").write_text("".join(f"{n} and {n} is {2 * n}.\n" for n in range(300)))
    losses: dict[str, list[float]] = {}
    for device in ("cpu", "mt3000"):
        words = ("train", "job.toml", "--run", device, "--device", device, "--no-calibrate")
        subprocess.run([sys.executable, "-m", "ratrain", *words], cwd=tmp_path, check=True)
        lines = (tmp_path / device / "metrics.jsonl").read_text().splitlines()
        losses[device] = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    assert len(losses["mt3000"]) == 2
    assert losses["mt3000"] != losses["cpu"]
    assert losses["mt3000"] == pytest.approx(losses["cpu"], rel=1e-3)
