"""Bytes of the activations that training keeps: RATrain's reading and Korthikanti's.

RATrain's: attention without stored scores, no dropout, fp16. Korthikanti's (arXiv 2205.05198,
section 4): GPT with dropout masks and, without recomputation, stored attention scores.
"""

from __future__ import annotations

from typing import Literal

from ratrain.cost.blocks import ELEMENT_BYTES
from ratrain.describe.model import ModelSpec

Recompute = Literal["none", "selective", "full"]
ADAM_BYTES_PER_PARAM = 18  # fp16 weight, fp32 gradient + master + m + v: 2 + 4 + 4 + 4 + 4


def layer_activations(
    model: ModelSpec,
    sequence: int,
    micro_batch: int = 1,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
) -> dict[str, int]:
    """Bytes by name of what the backward pass of one layer needs, on one of `tensor` ranks.

    Gated MLP, tensor = 1: 2 S b (6h + 2 kv + 3f), where q = h. Tensor parallelism divides what
    lies between its two GEMMs; sequence parallelism divides the rest too.
    """
    whole = tensor if sequence_parallel else 1
    h, q, kv, f = model.hidden, model.query_hidden, model.kv_hidden, model.ffn
    mlp = {"gate": f, "up": f, "act": f} if model.gated_mlp else {"up": f, "act": f}
    outside = {"input": h, "norm1_out": h, "residual": h, "norm2_out": h}
    inside = {"q": q, "k": kv, "v": kv, "attention_out": q, **mlp}
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


def checkpoint_bytes(model: ModelSpec, sequence: int, micro_batch: int = 1) -> int:
    """Bytes of one layer's (or stage boundary's) input: 2 S b h."""
    return ELEMENT_BYTES * sequence * micro_batch * model.hidden


def logits_bytes(model: ModelSpec, sequence: int, micro_batch: int = 1) -> int:
    """Bytes of the logits in fp16 and of their fp32 copy for the loss: S b V (2 + 4)."""
    return sequence * micro_batch * model.vocab * (2 + 4)


def loss_peak_bytes(model: ModelSpec, sequence: int, micro_batch: int, tensor: int) -> float:
    """Bytes at the loss's highest point: logits in 16 bits, their fp32 copy, and the gradient
    in 16 bits that backward makes from it: S b V/t (2 + 4 + 2)."""
    return sequence * micro_batch * model.vocab / tensor * (2 + 4 + 2)


def gpt_layer_activation_bytes(
    model: ModelSpec,
    sequence: int,
    micro_batch: int,
    tensor: int,
    *,
    recompute: Recompute = "none",
    sequence_parallel: bool = False,
) -> float:
    """Korthikanti's bytes of one layer on one rank (arXiv 2205.05198, table 2).

    none: sbh (10 + 24/t + 5as/(ht)); with sequence parallelism sbh/t (34 + 5as/h);
    selective: the same without the 5as term; full: 2 sbh, not divided.
    """
    sbh = sequence * micro_batch * model.hidden
    if recompute == "full":
        return 2 * sbh
    outside = 10 / tensor if sequence_parallel else 10
    scores = 5 * model.heads * sequence / model.hidden if recompute == "none" else 0
    return sbh * (outside + (24 + scores) / tensor)


def gpt_first_stage_bytes(
    layer_bytes: float, layers: int, pipeline: int, virtual: int = 1
) -> float:
    """Bytes of the first stage: `layers` layers in flight, interleaving adds (p - 1) / (p v).

    Source: arXiv 2205.05198, section 4.2.3. Embedding dropout and output layer are not counted:
    the published figure 1 leaves them out.
    """
    return layer_bytes * layers * (1 + (pipeline - 1) / (pipeline * virtual) if virtual > 1 else 1)


def gpt_output_extras_bytes(
    model: ModelSpec, sequence: int, micro_batch: int, tensor: int, pipeline: int
) -> float:
    """Bytes outside the layers: embedding dropout sbh p/t and, where pipeline = 1, the final norm
    and the fp32 logits, 4 sbh/t (1 + V/h) (arXiv 2205.05198, section 4.3)."""
    sbh = sequence * micro_batch * model.hidden
    head = 4 * sbh / tensor * (1 + model.vocab / model.hidden) if pipeline == 1 else 0
    return sbh * pipeline / tensor + head


def gpt_parameter_optimizer_bytes(model: ModelSpec, tensor: int, pipeline: int) -> float:
    """18 bytes for each weight of the layers' matrices, 12 h^2 L / (t p).

    The reading that meets figure 1 of arXiv 2205.05198; embeddings, biases and norms left out.
    """
    return ADAM_BYTES_PER_PARAM * 12 * model.hidden**2 * model.layers / (tensor * pipeline)
