"""Bytes of an element by dtype: weights, gradients, optimizer, activations.

fp16 and bf16 are mixed precision: 2-byte weights and gradients, and 12 bytes of fp32 master
weight and two moments a parameter (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1). In
fp32 the weights are their own master, so 8 bytes of moments remain.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """Bytes a parameter (weight, gradient, optimizer) or an activation's element takes."""

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    element_bytes: int


SAVED_BYTES = 12
"""Bytes of a parameter in a checkpoint, whatever the dtype: fp32 master weight and two moments."""

_MIXED = Precision(2, 2, 12, 2)
PRECISIONS = {"fp16": _MIXED, "bf16": _MIXED, "fp32": Precision(4, 4, 8, 4)}


def precision_of(dtype: str) -> Precision:
    """The precision of a dtype; one that is not known here is counted as mixed."""
    return PRECISIONS.get(dtype, _MIXED)
