"""What a layer does on a GPU, computed by Triton's interpreter on a CPU: the kernels' formulas, not
their speed. `tests/devices/test_gpu.py` runs them on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

triton: Any = pytest.importorskip("triton")
if not triton.knobs.runtime.interpret:  # tests/conftest.py
    pytest.skip("Triton compiles for the GPU that is here", allow_module_level=True)

from ratrain.models.gpu import attention as gpu_attention  # noqa: E402
from ratrain.models.gpu import kernels as gpu_kernels  # noqa: E402


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-4, atol=2e-5)


def of_heads(sequences: int, heads: int, length: int, width: int) -> Tensor:
    """As the blocks make them: token-major."""
    return drawn(sequences, length, heads, width).transpose(1, 2)


ATTENTION = [
    # heads, key heads, length, width of a head, ALiBi, soft cap, window
    pytest.param(2, 1, 64, 16, False, None, None, id="fewer key heads"),
    pytest.param(4, 2, 90, 24, False, None, None, id="no power of two"),
    pytest.param(2, 2, 70, 16, True, None, None, id="ALiBi"),
    pytest.param(2, 1, 70, 16, False, 5.0, 33, id="soft cap and window"),
    pytest.param(2, 2, 130, 16, False, None, 9, id="window within a tile"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "key_heads", "length", "width", "alibi", "cap", "window"), ATTENTION
)
def test_attention_and_its_gradients_are_those_of_the_formula(
    heads: int,
    key_heads: int,
    length: int,
    width: int,
    alibi: bool,
    cap: float | None,
    window: int | None,
) -> None:
    kernels: Any = gpu_attention
    q, k, v = (of_heads(2, count, length, width) for count in (heads, key_heads, key_heads))
    row = -drawn(1, heads, 1, 1).abs() * torch.arange(length).flip(0) if alibi else None
    said: dict[str, Any] = {"row": row, "scale": None, "softcap": cap, "window": window}
    output, sums = kernels.forward(q, k, v, tiles=kernels.Tiles(32, 16, 4, 2), **said)
    inputs = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = formula(inputs, row, cap, window)
    grad = torch.cos(wanted.detach()).float()
    tiles = kernels.Tiles(16, 32, 4, 2), kernels.Tiles(32, 16, 4, 2)
    gradients = kernels.gradients(grad, q, k, v, output, sums, tiles=tiles, **said)
    close(output, wanted)
    for got, of_formula in zip(
        gradients, torch.autograd.grad(wanted, inputs, grad.double()), strict=True
    ):
        close(got, of_formula)


def formula(
    inputs: list[Tensor], row: Tensor | None, cap: float | None, window: int | None
) -> Tensor:
    q, k, v = inputs
    group, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if row is not None:
        scores = scores + row.double()
    behind = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    read = (behind >= 0) & (behind < (window or length))
    return torch.softmax(scores.masked_fill(~read, -torch.inf), -1) @ v


@pytest.mark.parametrize("cap", [None, 3.0])
def test_losses_of_rows_and_their_gradients_are_torchs(cap: float | None) -> None:
    kernels: Any = gpu_kernels.GpuKernels()
    logits, columns = drawn(5, 4300) * 3, torch.tensor([0, 4299, 17, 4096, 2])
    leaf = logits.clone().requires_grad_()
    used = leaf if cap is None else cap * torch.tanh(leaf / cap)
    given = used.detach().clone()
    losses = functional.cross_entropy(used, columns, reduction="none")
    scale = drawn(5)
    close(kernels.losses(given, columns), losses.detach())
    kernels.losses_gradient_(given, columns, scale, cap)
    close(given, torch.autograd.grad(losses, leaf, scale)[0])


def test_gates_beside_each_other_in_one_matrix_are_read_and_written_in_place() -> None:
    kernels: Any = gpu_kernels.GpuKernels()
    both = drawn(6, 200)
    gate, up = both.split(100, 1)
    leaves = [part.clone().requires_grad_() for part in (gate, up)]
    wanted = functional.silu(leaves[0]) * leaves[1]
    close(kernels.gated(gate, up), wanted)
    grad = drawn(6, 100)
    gradients = torch.autograd.grad(wanted, leaves, grad)
    kernels.gated_gradients_(grad, gate, up)
    close(both, torch.cat(gradients, 1))


def test_norms_and_turns_are_torchs() -> None:
    kernels: Any = gpu_kernels.GpuKernels()
    x, weight, grad = drawn(7, 90), drawn(90), drawn(7, 90)
    leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    wanted = functional.rms_norm(leaves[0], (90,), leaves[1], 1e-6)
    out, rstd = kernels.rms_norm(x, weight, 1e-6)
    close(out, wanted)
    dx, dw = kernels.rms_norm_gradients(grad, x, rstd, weight, None)
    for got, of_torch in zip((dx, dw), torch.autograd.grad(wanted, leaves, grad), strict=True):
        close(got, of_torch)
    angles = drawn(5, 1, 8)
    turned = drawn(2, 5, 3, 16)
    left, right = turned.split(8, -1)
    cos, sin = angles.cos(), angles.sin()
    rotated = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
    kernels.rotate_(turned, cos, sin)
    close(turned, rotated)
