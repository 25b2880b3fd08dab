"""Bytes that one op needs beside its states: what the runtime's own functions hold for a moment.

Read off the functions in `models/` and `runtime/`, and held to what an allocator counts by tests.
Jobs that are only planned and simulated, for machines with kernels of their own, count none.
"""

from __future__ import annotations

from ratrain.describe.model import ModelSpec

CHUNK_BYTES = 1 << 20
"""Reductions go in pieces of this size."""

UPDATE_ELEMENTS = 1 << 18
"""The optimizer takes this many elements at once; 2-byte gradients are widened to fp32 first."""

SMALL_THINGS_BYTES = 2 << 20
"""Two steps' tokens, the network library's own buffers, what control rounds and records take."""


def compute_scratch_bytes(
    model: ModelSpec,
    kind: str,
    sequence: int,
    micro_batch: int,
    element_bytes: int,
    tensor: int = 1,
) -> int:
    """The largest moment of a unit's forward or backward, on one of `tensor` ranks.

    layer: the gradients of gate, up and their product (3 S b f); head: the logits' gradient in
    fp32 (4 S b V) beside their own place. In a tensor group there are two more tensors of width h:
    a sum in the middle of a layer and what it is made from.
    """
    rows = sequence * micro_batch
    if tensor > 1 and kind == "layer":
        return rows * (3 * model.ffn // tensor + 2 * model.hidden) * element_bytes
    if kind == "layer":
        return rows * 3 * model.ffn * element_bytes
    if kind == "head":
        return rows * model.vocab * 4 // tensor
    return 0


def lanes_scratch_bytes(data: int, tensor: int = 1, *, tied: bool = False) -> int:
    """What the lanes beside compute hold: two pieces from each peer of a reduction and the piece's
    sum (on the same lane, at another time: two pieces of a tied matrix' other copy), and the
    optimizer's widened gradient, scaled; and what the sums of a tensor group hold, inside compute
    and beside it: a piece from each peer, and the piece's sum in fp32."""
    reduction = 2 * (data - 1) + 1 if data > 1 else 0
    sums = 2 * (tensor - 1 + 2) if tensor > 1 else 0
    pieces = max(reduction, 2 if tied else 0) + sums
    return pieces * CHUNK_BYTES + 2 * 4 * UPDATE_ELEMENTS + SMALL_THINGS_BYTES
