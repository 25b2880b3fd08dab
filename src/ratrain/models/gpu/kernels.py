"""What a layer does between its products, on a GPU: each in one pass, in Triton.

The functions of `kernels.Kernels`, in fp32 whatever their inputs. Sums over rows are made
program by program and then of the programs, in one order: the same bits each time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 1024
"""Programs that share the rows of a norm's gradients; each sums those of its own."""
_ELEMENTS = 1024
"""Of a program that takes elements one by one."""
_WORDS = 4096
"""Logits at once, of a row."""


class GpuKernels:
    """Functions of tensors on a GPU."""

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """(w x r, r) with r = 1 / sqrt(mean(x^2) + epsilon), one a row."""
        x = x.contiguous()
        rows, width = x.shape
        out, rstd = torch.empty_like(x), x.new_empty((rows, 1), dtype=torch.float32)
        _norm[(rows,)](
            x, weight, out, rstd, width, epsilon,
            rounds=weight.dtype == x.dtype, block=_power(width), num_warps=_warps(width),
        )  # fmt: skip
        return out, rstd

    def rms_norm_gradients(
        self, grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual_grad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(gradient of x, plus `residual_grad`; gradient of w)."""
        grad, x, rstd = grad.contiguous(), x.contiguous(), rstd.contiguous()
        residual = grad if residual_grad is None else residual_grad.contiguous()
        rows, width = x.shape
        programs = min(rows, _PROGRAMS)
        dx = torch.empty_like(x)
        parts = x.new_empty((programs, width), dtype=torch.float32)
        _norm_gradients[(programs,)](
            grad, x, rstd, weight, residual, dx, parts, rows, width,
            adds=residual_grad is not None, block=_power(width), num_warps=_warps(width),
        )  # fmt: skip
        return dx, parts.sum(0)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) up."""
        rows, width = gate.shape
        out = gate.new_empty(rows, width)
        strides = gate.stride(0), up.stride(0)
        _gate[(rows, triton.cdiv(width, _ELEMENTS))](
            gate, up, out, width, *strides, block=_ELEMENTS
        )
        return out

    def gated_gradients_(self, grad: Tensor, gate: Tensor, up: Tensor) -> None:
        """The gradients of gate and up by that of silu(gate) up, written over gate and up."""
        rows, width = gate.shape
        strides = gate.stride(0), up.stride(0)
        _gate_gradients[(rows, triton.cdiv(width, _ELEMENTS))](
            grad.contiguous(), gate, up, width, *strides, block=_ELEMENTS
        )

    def losses(self, logits: Tensor, columns: Tensor) -> Tensor:
        """The cross entropy of each row and its column."""
        rows, width = logits.shape
        out = logits.new_empty(rows, dtype=torch.float32)
        _losses[(rows,)](logits, columns, out, width, block=_WORDS, num_warps=8)
        return out

    def losses_gradient_(
        self, logits: Tensor, columns: Tensor, scale: Tensor, softcap: float | None
    ) -> None:
        """The gradient of the sum of each row's loss times its scale, written over the logits; with
        a soft cap c, times 1 - (logit / c)^2."""
        rows, width = logits.shape
        _losses_gradient[(rows,)](
            logits, columns, scale, width, softcap or 1.0,
            capped=softcap is not None, block=_WORDS, num_warps=8,
        )  # fmt: skip

    def rotates(self, x: Tensor) -> bool:
        """Any strides, where a head's numbers lie side by side."""
        return x.stride(-1) == 1

    def rotate_(self, x: Tensor, cosines: Tensor, sines: Tensor) -> None:
        """x [batch, S, heads, d] turned in place by angles [S, 1, d/2]: i with i + d/2."""
        batch, length, heads, size = x.shape
        cosines, sines = cosines.contiguous(), sines.contiguous()
        _rotate[(batch * length,)](
            x, cosines, sines, length, heads, size // 2, *x.stride()[:3],
            many=_power(heads), block=_power(size // 2),
        )  # fmt: skip


def _power(count: int) -> int:
    """The power of two that is at least as large."""
    return triton.next_power_of_2(count)


def _warps(width: int) -> int:
    return min(max(_power(width) // 256, 1), 16)


@triton.jit
def _norm(x, weight, out, rstd, width, epsilon, rounds: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / width + epsilon)
    normed = values * r
    if rounds:
        normed = normed.to(out.dtype.element_ty).to(tl.float32)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (normed * scale).to(out.dtype.element_ty), mask=inside)
    tl.store(rstd + row, r)


@triton.jit
def _norm_gradients(
    grad, x, rstd, weight, residual, dx, parts, rows, width,
    adds: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < width
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((block,), dtype=tl.float32)
    for number in range(program, rows, tl.num_programs(0)):
        begin = tl.cast(number, tl.int64) * width
        values = tl.load(x + begin + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + begin + at, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(rstd + number)
        scaled = values * r * g
        total += scaled
        mean = tl.sum(scaled * scale, axis=0) / width
        result = g * scale * r - values * (mean * r * r)
        if adds:
            result += tl.load(residual + begin + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + begin + at, result.to(dx.dtype.element_ty), mask=inside)
    tl.store(parts + program.to(tl.int64) * width + at, total, mask=inside)


@triton.jit
def _gate(gate, up, out, width, of_gate, of_up, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    g = tl.load(gate + row * of_gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * of_up + at, mask=inside, other=0.0).to(tl.float32)
    made = (g * tl.sigmoid(g) * u).to(out.dtype.element_ty)
    tl.store(out + row * width + at, made, mask=inside)


@triton.jit
def _gate_gradients(grad, gate, up, width, of_gate, of_up, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    gate, up = gate + row * of_gate, up + row * of_up
    d = tl.load(grad + row * width + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    dg = d * u * s * (1.0 + g * (1.0 - s))
    tl.store(gate + at, dg.to(gate.dtype.element_ty), mask=inside)
    tl.store(up + at, (d * g * s).to(up.dtype.element_ty), mask=inside)


@triton.jit
def _log_sum(logits, width, block: tl.constexpr):
    """The log of the sum of exponents of a row."""
    most = tl.full((block,), -float("inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    for begin in range(0, width, block):
        at = begin + tl.arange(0, block)
        values = tl.load(logits + at, mask=at < width, other=-float("inf")).to(tl.float32)
        above = tl.maximum(most, values)
        base = tl.where(above == -float("inf"), 0.0, above)
        total = total * tl.exp(most - base) + tl.exp(values - base)
        most = above
    largest = tl.max(most, 0)
    return largest + tl.log(tl.sum(total * tl.exp(most - largest), 0))


@triton.jit
def _losses(logits, columns, out, width, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * width
    wanted = tl.load(logits + tl.load(columns + row)).to(tl.float32)
    tl.store(out + row, _log_sum(logits, width, block) - wanted)


@triton.jit
def _losses_gradient(
    logits, columns, scale, width, cap, capped: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    logits += row.to(tl.int64) * width
    column, times = tl.load(columns + row), tl.load(scale + row)
    log_sum = _log_sum(logits, width, block)
    for begin in range(0, width, block):
        at = begin + tl.arange(0, block)
        values = tl.load(logits + at, mask=at < width, other=0.0).to(tl.float32)
        gradient = (tl.exp(values - log_sum) - tl.where(at == column, 1.0, 0.0)) * times
        if capped:
            gradient *= 1.0 - (values / cap) * (values / cap)
        tl.store(logits + at, gradient.to(logits.dtype.element_ty), mask=at < width)


@triton.jit
def _rotate(
    x, cosines, sines, length, heads, half, of_batch, of_token, of_head,
    many: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    batch, place = token // length, token % length
    head, at = tl.arange(0, many)[:, None], tl.arange(0, block)[None, :]
    inside = (head < heads) & (at < half)
    turn = at < half
    cos = tl.load(cosines + place * half + at, mask=turn, other=0.0)
    sin = tl.load(sines + place * half + at, mask=turn, other=0.0)
    first = x + batch.to(tl.int64) * of_batch + place.to(tl.int64) * of_token + head * of_head + at
    left = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(first + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, (left * cos - right * sin).to(x.dtype.element_ty), mask=inside)
    tl.store(first + half, (right * cos + left * sin).to(x.dtype.element_ty), mask=inside)
