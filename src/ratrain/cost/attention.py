"""Attention's products and passes, with the scores stored in memory or kept on chip.

Symbols: b sequences of s tokens, a query heads and d elements a head on one rank.
Stored (Megatron before FlashAttention): the s x s scores of every head go through memory for
the mask and softmax, and for dropout; both products are batched over b a heads and compute the
masked half too. Kept ("flash"): one pass, only the causal half computed (arXiv 2205.14135).
"""

from __future__ import annotations

from ratrain.cost.gemm import Product

FORWARD_SCORE_BYTES = 9
"""Of each score, forward: masked softmax reads and writes 2 bytes; dropout reads 2, writes 2 and
a mask of 1 (2 + 2 + 2 + 2 + 1)."""
BACKWARD_SCORE_BYTES = 11
"""Backward: dropout reads 2 and the mask, writes 2; softmax reads its output and the gradient
and writes 2 (2 + 1 + 2 + 2 + 2 + 2)."""


def score_elements(batch: float, heads: float, sequence: float) -> float:
    """Elements of the stored scores: b a s^2."""
    return batch * heads * sequence**2


def forward_products(
    batch: float, heads: float, head_dim: float, sequence: float
) -> tuple[Product, ...]:
    """Scores (s x d by d x s) and their weighted sum (s x s by s x d), for every head."""
    count = batch * heads
    return (
        Product(sequence, sequence, head_dim, count),
        Product(sequence, head_dim, sequence, count),
    )


def backward_products(
    batch: float, heads: float, head_dim: float, sequence: float
) -> tuple[Product, ...]:
    """Gradients of the scores, of v, of q and of k."""
    scores, weighted = forward_products(batch, heads, head_dim, sequence)
    return scores, weighted, weighted, weighted
