"""A token's position: rotary angles and ALiBi slopes.

Tables are computed in fp32 once for each length and device, and shared by all layers.
"""

from __future__ import annotations

from functools import lru_cache
from math import floor, log2

import torch
from torch import Tensor

from ratrain.models import kernels
from ratrain.models.linear import accumulation_dtype


@lru_cache(maxsize=8)
def rotary_table(
    length: int, head_dim: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(cos, sin) of position x theta^(-2i/d), each [length, 1, d/2] fp32 (arXiv 2104.09864)."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), 1.0 / theta**steps)
    return angles.cos().unsqueeze(1).to(device), angles.sin().unsqueeze(1).to(device)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, S, heads, d], rotated in place: dimension i turns with i + d/2, as in LLaMA.

    The turn is orthogonal: its gradient is the turn back, with -sin, and needs nothing kept.
    """
    if x.is_contiguous() and (c := kernels.kernels_for(x)):
        kernels.rotate_(c, x, cos, sin)
        return x
    wide = x.to(accumulation_dtype(x.dtype))  # x itself, unless it has 16 bits
    left, right = wide.chunk(2, dim=-1)
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
