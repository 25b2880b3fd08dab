"""A token's position: rotary angles and ALiBi slopes.

Tables are computed in fp32 once for each length and device, and shared by all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log, log2, pi

import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec, RopeScaling
from ratrain.models import kernels
from ratrain.models.functions.linear import accumulation_dtype


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: the first `size` dimensions of each head are turned, each with one half of
    them behind it, or in `pairs` of neighbours."""

    size: int
    theta: float
    scaling: RopeScaling | None = None
    pairs: bool = False


def rotary_of(spec: ModelSpec, layer: int) -> Rotary | None:
    """How a layer turns its queries and keys; None: it does not."""
    if spec.position != "rope" or layer in spec.unrotated_layers:
        return None
    size = int(spec.head_dim * spec.rotary_share)
    if spec.local_rope_theta is not None and spec.window_of(layer) is not None:
        return Rotary(size, spec.local_rope_theta)
    return Rotary(size, spec.rope_theta, spec.rope_scaling, spec.rotary_pairs)


@lru_cache(maxsize=8)
def rotary_table(
    length: int, rotary: Rotary, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """(cos, sin, -sin) of position x theta^(-2i/d), each [length, 1, d/2] fp32 (arXiv 2104.09864),
    with the angles stretched, and all multiplied, as the model's scaling says."""
    steps = torch.arange(0, rotary.size, 2, dtype=torch.float32) / rotary.size
    frequencies = stretched(1.0 / rotary.theta**steps, length, rotary)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    factor = 1.0 if rotary.scaling is None else rotary.scaling.attention_factor
    cos, sin = angles.cos().mul_(factor), angles.sin().mul_(factor)
    cos, sin = (part.unsqueeze(1).to(device) for part in (cos, sin))
    return cos, sin, -sin


def stretched(frequencies: Tensor, length: int, rotary: Rotary) -> Tensor:
    """Angles by position of sequences of `length` tokens, one a pair of dimensions."""
    scaling = rotary.scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling)
    if scaling.kind == "yarn":
        return _yarn(frequencies, scaling, rotary)
    long = length > scaling.original_positions
    factors = scaling.long_factors if long else scaling.short_factors
    return frequencies / torch.tensor(factors, dtype=torch.float32)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are stretched, short ones kept, those between are mixed."""
    waves = scaling.original_positions * frequencies / (2 * pi)  # in the original length
    low, high = scaling.low_frequency, scaling.high_frequency
    kept = ((waves - low) / (high - low)).clamp(0, 1)
    return frequencies * kept + frequencies / scaling.factor * (1 - kept)


def _yarn(frequencies: Tensor, scaling: RopeScaling, rotary: Rotary) -> Tensor:
    """The same by the number of turns in the original length (arXiv 2309.00071)."""

    def dimension(turns: float) -> float:
        waves = scaling.original_positions / (turns * 2 * pi)
        return rotary.size * log(waves) / (2 * log(rotary.theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.rounded:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, rotary.size - 1)
    ramp = (torch.arange(len(frequencies), dtype=torch.float32) - low) / ((high - low) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return frequencies / scaling.factor * (1 - kept) + frequencies * kept


def rotate_(x: Tensor, cos: Tensor, sin: Tensor, *, pairs: bool = False) -> Tensor:
    """x [batch, S, heads, d], rotated in place: dimension i turns with i + d/2, as in LLaMA, or in
    `pairs` 2i with 2i + 1. Where cos and sin are of fewer dimensions, the others stay.

    The turn is orthogonal: its gradient is the turn back, with -sin, and needs nothing kept.
    """
    if x.shape[-1] > 2 * cos.shape[-1]:
        rotate_(x[..., : 2 * cos.shape[-1]], cos, sin, pairs=pairs)
        return x
    if not pairs and (c := kernels.kernels_for(x)) and c.rotates(x):
        c.rotate_(x, cos, sin)
        return x
    wide = x.to(accumulation_dtype(x.dtype))  # x itself, unless it has 16 bits
    left, right = (wide[..., ::2], wide[..., 1::2]) if pairs else wide.chunk(2, dim=-1)
    turned = (left * cos).addcmul_(right, sin, value=-1)
    right.mul_(cos).addcmul_(left, sin)
    left.copy_(turned)
    return x if wide is x else x.copy_(wide)


def alibi_slopes(heads: int) -> list[float]:
    """One slope a head: 2^(-8 i/n), i = 1 .. n, for n heads where n is a power of two.

    Otherwise those of the power below, then every second one of the power above
    (arXiv 2108.12409, as in BLOOM and Baichuan).
    """
    power = 2 ** floor(log2(heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    return slopes + between[: heads - power]


@lru_cache(maxsize=8)
def alibi_row(length: int, heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """slope x key position, [1, heads, 1, length].

    ALiBi adds slope x (key - query); softmax forgets what all keys of a query share, so one row
    serves every query and no mask of length^2 is kept.
    """
    slopes = torch.tensor(alibi_slopes(heads), dtype=dtype)
    row = torch.outer(slopes, torch.arange(length, dtype=dtype))
    return row.view(1, heads, 1, length).to(device)
