"""A call's results against the exact ones, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from ratrain.check import layer_bounds  # noqa: F401 - declares its rules
from ratrain.check.bounds import exact_results, limits
from ratrain.check.call import Call

MOST = 1e9
"""What is farther off than this many times what is allowed counts as this far."""


@dataclass(frozen=True)
class Difference:
    """How far results are off. `times`: the largest ratio of a difference to what is allowed; above
    1 it is wrong. `cosine`: of all results as one vector, for information."""

    times: float
    largest: float
    cosine: float

    @property
    def wrong(self) -> bool:
        return self.times > 1


RIGHT = Difference(0.0, 0.0, 1.0)


def compare(call: Call, results: list[Tensor]) -> Difference | None:
    """A call's results, in host memory, against those of fp64; None: torch has it for no tensors of
    fp64."""
    try:
        exact = exact_results(call)
    except (NotImplementedError, RuntimeError):
        return None
    allowed = limits(call, exact, [result.dtype for result in results])
    return differences(results, exact, allowed)


def differences(results: list[Tensor], exact: list[Tensor], allowed: list[Tensor]) -> Difference:
    """Results against exact ones, each element within what is allowed."""
    if any(a.shape != b.shape for a, b in zip(results, exact, strict=True)):
        return Difference(MOST, MOST, 0.0)
    parts = list(map(_of_one, results, exact, allowed))
    times = max((part.times for part in parts), default=0.0)
    largest = max((part.largest for part in parts), default=0.0)
    return Difference(times, largest, min((part.cosine for part in parts), default=1.0))


def _of_one(result: Tensor, exact: Tensor, allowed: Tensor) -> Difference:
    if not result.numel():
        return RIGHT
    if not result.is_floating_point():
        same = bool((result == exact.to(result.dtype)).all())
        return RIGHT if same else Difference(MOST, 1.0, 0.0)
    wide, exact = result.double(), exact.double()
    most = torch.finfo(result.dtype).max
    same = (wide == exact) | (wide.isnan() & exact.isnan())
    # What rounding may take beyond the largest number may be infinite.
    same |= wide.isinf() & (exact.abs() + allowed >= most) & (wide.sign() == exact.sign())
    off = (wide - exact).abs().masked_fill(same, 0).nan_to_num(torch.inf, torch.inf)
    # 0 of 0 is right; anything of 0 is infinitely wrong.
    times = torch.where(off == 0, 0.0, off / allowed).nan_to_num(torch.inf)
    return Difference(
        min(float(times.max()), MOST), min(float(off.max()), MOST), cosine(wide, exact)
    )


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two tensors; 0 where one is not finite."""
    a, b = a.flatten(), b.flatten()
    length = float(a.norm() * b.norm())
    if length == 0:
        return 1.0 if bool((a == b).all()) else 0.0
    value = float(a @ b) / length
    return value if value == value and abs(value) < torch.inf else 0.0


def unchanged(before: list[Tensor], after: list[Tensor], writes: list[bool]) -> bool:
    """Whether arguments that a call must not write are what they were, bit for bit."""
    for old, new, written in zip(before, after, writes or repeat(False), strict=False):
        if not written and not torch.equal(_bits(old), _bits(new)):
            return False
    return True


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().flatten().view(torch.uint8) if x.numel() else x.flatten()
