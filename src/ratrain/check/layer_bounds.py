"""The rules of norms and attention, and what `models.kernels` computes, in fp64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratrain.check.arithmetic import FUNCTION_ULPS, least_of, unit_of
from ratrain.check.bounds import OWN, bound
from ratrain.check.call import Call

# ---- norms ----------------------------------------------------------------------------------


@bound("aten.native_layer_norm")
def _layer_norm(call: Call, exact: list[Tensor]) -> list[Tensor]:
    """Mean, deviation, and what becomes of the difference of a value and the mean."""
    x = call.exact["input"]
    dims = list(range(-len(call.named["normalized_shape"]), 0))
    terms = 1
    for dim in dims:
        terms *= x.shape[dim]
    _, mean, rstd = exact
    unit, gamma = call.arithmetic.unit, call.arithmetic.gamma(terms + 4)
    of_mean = gamma * x.abs().mean(dims, keepdim=True)
    # One pass may sum the squares and take the mean's off: a share of those.
    of_rstd = gamma * x.square().mean(dims, keepdim=True) * rstd.square() + 2 * unit
    off = of_mean + 2 * unit * (x.abs() + mean.abs())
    centred = (x - mean).abs()
    made = rstd * (off + centred * of_rstd)
    if call.exact.get("weight") is not None:
        made = made * call.exact["weight"].abs()
    if call.exact.get("bias") is not None:
        made = made + 2 * unit * call.exact["bias"].abs()
    return [made + 2 * unit * exact[0].abs(), of_mean, rstd * of_rstd]


@bound("aten.native_layer_norm_backward")
def _layer_norm_gradients(call: Call, exact: list[Tensor]) -> list[Tensor]:
    x, grad = call.exact["input"], call.exact["grad_out"].abs()
    mean, rstd = call.exact["mean"], call.exact["rstd"]
    dims = list(range(-len(call.named["normalized_shape"]), 0))
    terms = x[0].numel() if x.dim() > 1 else x.numel()
    rows = max(1, x.numel() // max(1, terms))
    weight = call.exact.get("weight")
    scaled = grad if weight is None else grad * weight.abs()
    normed = (x.abs() + mean.abs()) * rstd
    over = scaled.mean(dims, keepdim=True) + normed * (scaled * normed).mean(dims, keepdim=True)
    widths = list(range(x.dim() - len(dims)))
    bounds = [
        call.arithmetic.of_sum(terms + 8, rstd * (scaled + over)),
        call.arithmetic.of_sum(rows + 6, (grad * normed).sum(widths)),
        call.arithmetic.of_sum(rows + 2, grad.sum(widths)),
    ]
    return bounds[: len(exact)]


def _rms(call: Call) -> list[Tensor]:
    x = call.exact["x"]
    rstd = (x.square().mean(-1, keepdim=True) + call.named["epsilon"]).rsqrt()
    return [x * rstd * call.exact["weight"], rstd]


OWN["ratrain.rms_norm"] = _rms


@bound("ratrain.rms_norm")
def _rms_norm(call: Call, exact: list[Tensor]) -> list[Tensor]:
    gamma = call.arithmetic.gamma(call.exact["x"].shape[-1] + 8)
    return [gamma * x.abs() for x in exact]


def _rms_terms(call: Call, sign: int) -> list[Tensor]:
    """dx = r (w g - x r^2 mean(w g x)) and dw; with sign 1 of magnitudes."""
    names = "grad", "x", "rstd", "weight", "residual_grad"
    grad, x, rstd, weight, residual = (call.exact.get(name) for name in names)
    assert grad is not None and x is not None and rstd is not None and weight is not None
    if sign > 0:
        grad, x, weight = grad.abs(), x.abs(), weight.abs()
    scaled = weight * grad
    mean = (scaled * x).mean(-1, keepdim=True)
    dx = rstd * (scaled + sign * x * rstd.square() * mean)
    if residual is not None:
        dx = dx + (residual.abs() if sign > 0 else residual)
    return [dx, (grad * x * rstd).sum(0)]


OWN["ratrain.rms_norm_gradients"] = lambda call: _rms_terms(call, -1)


@bound("ratrain.rms_norm_gradients")
def _rms_norm_gradients(call: Call, _: list[Tensor]) -> list[Tensor]:
    rows, width = call.exact["x"].shape
    dx, dw = _rms_terms(call, 1)
    return [call.arithmetic.of_sum(width + 8, dx), call.arithmetic.of_sum(rows + 4, dw)]


# ---- gates and rotary -----------------------------------------------------------------------

OWN["ratrain.gated"] = lambda call: [
    torch.nn.functional.silu(call.exact["gate"]) * call.exact["up"]
]


@bound("ratrain.gated")
def _gated(call: Call, exact: list[Tensor]) -> list[Tensor]:
    share = FUNCTION_ULPS + call.exact["gate"].abs()
    return [call.arithmetic.unit * share * x.abs() for x in exact]


def _gates(call: Call) -> list[Tensor]:
    grad, gate, up = (call.exact[name] for name in ("grad", "gate", "up"))
    sigmoid = gate.sigmoid()
    return [grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid]


OWN["ratrain.gated_gradients"] = _gates


@bound("ratrain.gated_gradients")
def _gated_gradients(call: Call, _: list[Tensor]) -> list[Tensor]:
    grad, gate, up = (call.exact[name].abs() for name in ("grad", "gate", "up"))
    share = call.arithmetic.unit * (FUNCTION_ULPS + gate) * grad
    return [share * up * (1 + gate), share * gate]


def _turned(call: Call) -> list[Tensor]:
    left, right = call.exact["x"].chunk(2, -1)
    cos, sin = call.exact["cosines"], call.exact["sines"]
    return [torch.cat((left * cos - right * sin, right * cos + left * sin), -1)]


OWN["ratrain.rotate"] = _turned


@bound("ratrain.rotate")
def _rotate(call: Call, _: list[Tensor]) -> list[Tensor]:
    left, right = call.exact["x"].abs().chunk(2, -1)
    cos, sin = call.exact["cosines"].abs(), call.exact["sines"].abs()
    made = torch.cat((left * cos + right * sin, right * cos + left * sin), -1)
    return [4 * call.arithmetic.unit * made]


# ---- attention ------------------------------------------------------------------------------


class _Scores:
    """What attention makes of queries and keys, in fp64, and how far off it may be. 16-bit kernels
    round probabilities, and gradients of scores, before they multiply with them."""

    def __init__(self, call: Call) -> None:
        q, k, v = (call.exact[name] for name in ("query", "key", "value"))
        self.groups = q.shape[1] // k.shape[1]
        self.q, self.k, self.v = q, *(x.repeat_interleave(self.groups, 1) for x in (k, v))
        given: Any = call.exact.get("scale")
        self.scale = q.shape[-1] ** -0.5 if given is None else given
        arithmetic = call.arithmetic
        self.gamma, self.length = arithmetic.gamma, k.shape[2]
        narrow = 2 * unit_of(arithmetic.dtype) if arithmetic.dtype.itemsize < 4 else 0.0
        self.rounding = narrow + 2 * FUNCTION_ULPS * arithmetic.unit
        self.least = least_of(arithmetic.dtype)
        scores = self.q @ self.k.transpose(2, 3) * self.scale
        size = self.q.abs() @ self.k.abs().transpose(2, 3) * abs(self.scale)
        mask = call.exact.get("attn_mask")
        if mask is not None:
            scores = scores + mask
            size = size + mask.abs().nan_to_num(0, 0, 0)
        if call.named.get("is_causal", False):
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(ahead, -torch.inf)
        self.logsumexp = scores.logsumexp(-1, keepdim=True)
        self.weights = (scores - self.logsumexp).exp()
        read = torch.isfinite(scores)
        self.read = read.double()
        off = arithmetic.gamma(q.shape[-1] + 2) * size
        off = off + arithmetic.unit * (scores.abs() + self.logsumexp.abs()).nan_to_num(0, 0, 0)
        self.off = off.masked_fill(~read, 0)
        over = (self.weights * self.off).sum(-1, keepdim=True)
        self.share = self.off + over + arithmetic.unit * (self.length + 2 * FUNCTION_ULPS)

    def by_key_head(self, x: Tensor) -> Tensor:
        """Summed over the query heads that share a key head."""
        return x.unflatten(1, (-1, self.groups)).sum(2)


_FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"


@bound(_FLASH)
def _attention(call: Call, exact: list[Tensor]) -> list[Tensor]:
    at = _Scores(call)
    size = at.v.abs()
    share = at.share + at.rounding + at.gamma(at.length + 4)
    made = (at.weights * share) @ size + at.least * (at.read @ size)
    # Of 16 bits torch's kernel takes a quick exp, good to some 2^-14: for fp16 that would do.
    over = (at.weights * at.off).sum(-1) + at.rounding
    over = over + call.arithmetic.unit * (at.length + at.logsumexp.squeeze(-1).abs())
    return [made, over.broadcast_to(exact[1].shape)]


@bound(f"{_FLASH}_backward")
def _attention_gradients(call: Call, _: list[Tensor]) -> list[Tensor]:
    at = _Scores(call)
    grad, out = call.exact["grad_out"].abs(), call.exact["out"].abs()
    over = (grad * out).sum(-1, keepdim=True)
    size = at.weights * (grad @ at.v.abs().transpose(2, 3) + over)  # of the scores' gradient
    terms = at.q.shape[-1] + at.length + 8
    share = at.share + at.rounding + 2 * at.gamma(terms)
    d_scores = (size * share + at.least * at.read) * abs(at.scale)
    probabilities = at.weights * share + at.least * at.read
    return [
        d_scores @ at.k.abs(),
        at.by_key_head(d_scores.transpose(2, 3) @ at.q.abs()),
        at.by_key_head(probabilities.transpose(2, 3) @ grad),
    ]
