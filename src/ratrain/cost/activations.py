"""Bytes of the activations that training keeps: no dropout, 2-byte elements, attention's scores
apart. What frameworks keep besides is in validate/frameworks.py.
"""

from __future__ import annotations

from ratrain.cost.blocks import ELEMENT_BYTES
from ratrain.describe.model import Experts, ModelSpec
from ratrain.describe.own import own_cost


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
    Of experts each rank keeps what it would if it had to compute every token's choice, as far as it
    has so many. Of modules of one's own: what autograd keeps.
    """
    if model.own:
        kept = own_cost(model, "layer", sequence, micro_batch).kept_bytes
        return {"input": checkpoint_bytes(model, sequence, micro_batch), "kept": kept}
    whole = tensor if sequence_parallel else 1
    h, q, kv = model.hidden, model.query_hidden, model.kv_hidden
    outside, inside = {"input": h}, {"q": q, "k": kv, "v": kv, "attention_out": q}
    if model.dense_ffn:
        inside |= dict.fromkeys(
            ("gate", "up", "act") if model.gated_mlp else ("up", "act"), model.dense_ffn
        )
    routed = _routed(model.ffn, model.experts, tensor) if model.experts else dict[str, int]()
    if not model.parallel_residual:
        outside["residual"] = h
    if model.norm_places != "after":
        outside |= {"norm1_out": h} if model.shared_norm else {"norm1_out": h, "norm2_out": h}
    if model.norm_places != "before":  # what the norms behind attention and MLP read
        outside |= {"attention_projected": h, "mlp_projected": h}
    if model.qk_norm != "none":
        inside |= {"q_projected": q, "k_projected": kv}
    element = ELEMENT_BYTES * sequence * micro_batch
    return {
        **{name: element * width // whole for name, width in outside.items()},
        **{name: element * width // tensor for name, width in inside.items()},
        **{name: element * width for name, width in routed.items()},
    }


def _routed(width: int, experts: Experts, tensor: int) -> dict[str, int]:
    """2-byte elements of a token, where there are experts: fp32 probabilities, 8-byte numbers of
    those chosen and of their order, and of each of so many what their MLP keeps."""
    pairs = min(experts.chosen, experts.count // tensor)
    router = 2 * experts.count + 2 * 4 * experts.chosen
    made = dict.fromkeys(("expert_gate", "expert_up", "expert_act"), pairs * width)
    return {"router": router, **made}


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
