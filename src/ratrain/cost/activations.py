"""Bytes of the activations that training keeps: no dropout, 2-byte elements, attention's scores
apart. What frameworks keep besides is in validate/frameworks.py.
"""

from __future__ import annotations

from ratrain.cost.blocks import ELEMENT_BYTES
from ratrain.describe.model import ModelSpec


def layer_activations(
    model: ModelSpec,
    sequence: int,
    micro_batch: int = 1,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
) -> dict[str, int]:
    """Bytes by name of what the backward pass of one layer needs, on one of `tensor` ranks.

    Norms before attention and a gated MLP, tensor = 1: 2 S b (6h + 2 kv + 3f), where q = h. Tensor
    parallelism divides what is between its two GEMMs; sequence parallelism divides the rest too.
    """
    whole = tensor if sequence_parallel else 1
    h, q, kv, f = model.hidden, model.query_hidden, model.kv_hidden, model.ffn
    mlp = {"gate": f, "up": f, "act": f} if model.gated_mlp else {"up": f, "act": f}
    outside, inside = {"input": h}, {"q": q, "k": kv, "v": kv, "attention_out": q, **mlp}
    if not model.parallel_residual:
        outside["residual"] = h
    if model.norm_places != "after":
        outside |= {"norm1_out": h, "norm2_out": h}
    if model.norm_places != "before":  # what the norms behind attention and MLP read
        outside |= {"attention_projected": h, "mlp_projected": h}
    if model.qk_norm != "none":
        inside |= {"q_projected": q, "k_projected": kv}
    element = ELEMENT_BYTES * sequence * micro_batch
    return {
        **{name: element * width // whole for name, width in outside.items()},
        **{name: element * width // tensor for name, width in inside.items()},
    }


def layer_activation_bytes(
    model: ModelSpec,
    sequence: int,
    micro_batch: int = 1,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """Sum of `layer_activations`, bytes."""
    items = layer_activations(
        model, sequence, micro_batch, tensor=tensor, sequence_parallel=sequence_parallel
    )
    return sum(items.values())


def stored_scores_bytes(
    model: ModelSpec, sequence: int, micro_batch: int = 1, tensor: int = 1
) -> int:
    """Bytes of a layer's attention scores, where they are kept: the softmax (2), dropout's mask
    (1) and result (2) of each of b a/t s^2: 5 b a s^2 / t (arXiv 2205.05198, section 4.1)."""
    return 5 * micro_batch * (model.heads // tensor) * sequence**2


def probabilities_bytes(
    model: ModelSpec, sequence: int, micro_batch: int = 1, tensor: int = 1, *, element_bytes: int
) -> int:
    """Bytes of the same where training has no dropout: the softmax alone, b a s^2 / t elements."""
    return element_bytes * micro_batch * (model.heads // tensor) * sequence**2


def checkpoint_bytes(model: ModelSpec, sequence: int, micro_batch: int = 1) -> int:
    """Bytes of one layer's (or stage boundary's) input: 2 S b h."""
    return ELEMENT_BYTES * sequence * micro_batch * model.hidden


def logits_bytes(model: ModelSpec, sequence: int, micro_batch: int = 1) -> int:
    """Bytes of the logits in fp16 and of their fp32 copy for the loss: S b V (2 + 4)."""
    return sequence * micro_batch * model.vocab * (2 + 4)
