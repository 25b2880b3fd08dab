"""How far rounding alone may take a result: unit roundoffs, sums, the last place of a dtype.

A sum of n products, in any order, is off by at most gamma(n) times the sum of their absolute
values, gamma(n) = n u / (1 - n u) with u the unit roundoff of the dtype that adds (Higham, Accuracy
and Stability of Numerical Algorithms, 2002, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FUNCTION_ULPS = 20
"""How many units in the last place exp, tanh, erf and the like may be off. OpenCL allows 16 (of
pow and erf; the others less), torch's own exp in attention on the CPU 20."""


def unit_of(dtype: torch.dtype) -> float:
    """The unit roundoff: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def adds_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums over tensors of `dtype` are made in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def last_place(values: Tensor, dtype: torch.dtype) -> Tensor:
    """A unit in the last place of each of these fp64 values, in `dtype`."""
    return values.abs() * torch.finfo(dtype).eps + least_of(dtype)


def least_of(dtype: torch.dtype) -> float:
    """The smallest number above 0."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


@dataclass(frozen=True)
class Arithmetic:
    """How a device computes with tensors of a dtype. `narrow_terms`: how many terms of a sum over
    fp16 it adds in fp16 before it adds that to an fp32 sum; 0: it adds all of them in fp32."""

    dtype: torch.dtype
    narrow_terms: int = 0

    @property
    def unit(self) -> float:
        """The unit roundoff of what is computed between a 16-bit input and a 16-bit result."""
        return unit_of(adds_in(self.dtype))

    def gamma(self, terms: int) -> float:
        """The factor of a sum of so many products."""
        narrow = 0
        if self.narrow_terms and self.dtype == torch.float16:
            narrow = min(self.narrow_terms, terms)
        blocks = -(-terms // narrow) if narrow else terms
        return _gamma(blocks + 1, self.unit) + (_gamma(narrow, unit_of(torch.float16)))

    def of_sum(self, terms: int, size: Tensor) -> Tensor:
        """By how much a sum of so many products is off, by the sum of their absolute values; some
        products may be below the smallest number of the dtype that adds."""
        adds = self.dtype if self.narrow_terms else adds_in(self.dtype)
        return self.gamma(terms) * size + terms * least_of(adds)


def _gamma(terms: int, unit: float) -> float:
    return terms * unit / max(1 - terms * unit, 0.5)
