"""Bytes of an element by dtype: weights, gradients, optimizer, activations, what is sent.

fp16 and bf16 are mixed precision: 2-byte weights, and 4 bytes of fp32 master weight a parameter
beside what the optimizer keeps (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1). In fp32
the weights are their own master.

A step's micro-batches add up in fp32 unless a job asks for the 16 bits of its dtype: 4 bytes or 2
for a gradient. Published systems differ, so what reproduces one says which: Rajbhandari et al.
count 2 (the RATrain paper's memory rows fit 2 and not 4), Megatron-LM with bf16 keeps 4.

What gradients and boundary tensors (activations between stages, and their gradients) are sent in
is their wire type: the run's dtype, or bf16 where an fp32 job asks for it. It changes what links
carry, and no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """Bytes that a parameter takes as weight, gradient and master weight, and that an activation's
    element takes."""

    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    element_bytes: int


FP32 = "fp32"
RESIDUAL_BYTES = 4
"""Bytes of a parameter's residual (error feedback), in memory and in a checkpoint: gradients that
are sent narrower than they add up add up in fp32."""


def precision_words(dtype: str, gradient_dtype: str, travel: str = "") -> str:
    """The numbers of a run for people: "bf16, gradients in fp32". `travel`: `travel_words`."""
    numbers = dtype if dtype == FP32 else f"{dtype}, gradients in {gradient_dtype}"
    return f"{numbers}, {travel}" if travel else numbers


def travel_words(
    dtype: str, gradient_wire: str, boundary_wire: str, *, error_feedback: bool = False
) -> str:
    """What is sent narrower than the run's dtype, for people: "gradients travel in bf16", and
    whether rounding errors are fed back; "" where there is nothing to say."""
    narrow = _narrow_words(dtype, gradient_wire, boundary_wire)
    return ", ".join(filter(None, (narrow, "error feedback" if error_feedback else "")))


def dtype_words(dtypes: Mapping[str, str], dtype: str) -> str:
    """Which kinds of device compute in another dtype than a job's, for people; "" where none."""
    if not dtypes:
        return ""
    kinds = ", ".join(f"{kind} computes in {of_kind}" for kind, of_kind in dtypes.items())
    return f"{kinds}, the rest in {dtype}, in which all send"


def _narrow_words(dtype: str, gradient_wire: str, boundary_wire: str) -> str:
    wires = {"gradients": gradient_wire, "boundary tensors": boundary_wire}
    narrower = {name: wire for name, wire in wires.items() if wire != dtype}
    if len(set(narrower.values())) == 1:
        return f"{' and '.join(narrower)} travel in {next(iter(narrower.values()))}"
    return ", ".join(f"{name} travel in {wire}" for name, wire in narrower.items())


def wire_bytes(wire: str) -> int:
    """Bytes of an element on a link."""
    return precision_of(wire).element_bytes


def precision_of(dtype: str, gradient_dtype: str = FP32) -> Precision:
    """The precision of a dtype whose gradients add up in another; a dtype that is not known here
    is counted as 16 bits."""
    if dtype == FP32:
        return Precision(4, 4, 0, 4)
    return Precision(2, 4 if gradient_dtype == FP32 else 2, 4, 2)
