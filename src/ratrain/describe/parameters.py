"""The parameters of an embedding, a layer and a head: names and shapes, from a model's choices.

Matrices are (outputs, inputs). Formulas count these, and training allocates them.
"""

from __future__ import annotations

from ratrain.describe.model import Experts, ModelSpec

Shapes = list[tuple[str, tuple[int, ...]]]
LOGITS = "head.logits"
ROUTER = "mlp.router"
SHARE = "mlp.share"
"""Says by how much the MLP counts that stands beside experts."""
CHOOSING = (ROUTER, SHARE)
EXPERTS = ("experts.gate", "experts.up", "experts.down")
"""Each one a stack of matrices, (experts, outputs, inputs)."""


def embedding_parameters(model: ModelSpec) -> Shapes:
    """Those of the embedding."""
    tokens = ("embedding.tokens", (model.vocab, model.hidden))
    if model.position != "learned":
        return [tokens]
    rows = model.max_positions + model.position_offset
    return [tokens, ("embedding.positions", (rows, model.hidden))]


def head_parameters(model: ModelSpec) -> Shapes:
    """Those of the head, of which the last is the matrix that a tied model shares."""
    bias = [(f"{LOGITS}.bias", (model.vocab,))] if model.head_bias else []
    return [*_norm("head.norm", model), *bias, (LOGITS, (model.vocab, model.hidden))]


def layer_parameters(model: ModelSpec) -> Shapes:
    """Those of each layer."""
    h, q, kv = model.hidden, model.query_hidden, model.kv_hidden
    before, after = model.norm_places != "after", model.norm_places != "before"
    return [
        *(_norm("norm1", model) if before else []),
        *_linear("attention.q", q, h, model.qkv_bias),
        *_linear("attention.k", kv, h, model.qkv_bias),
        *_linear("attention.v", kv, h, model.qkv_bias),
        *_qk_norms(model),
        *_linear("attention.output", h, q, model.output_bias),
        *(_norm("attention.norm", model) if after else []),
        *(_norm("norm2", model) if before and not model.shared_norm else []),
        *(_mlp(model) if model.dense_ffn else []),
        *([(f"{SHARE}.weight", (1, h))] if model.shared_expert_gate else []),
        *(_experts(h, model.ffn, model.experts) if model.experts else []),
        *(_norm("mlp.norm", model) if after else []),
    ]


def _mlp(model: ModelSpec) -> Shapes:
    h, f, bias = model.hidden, model.dense_ffn, model.mlp_bias
    gate = _linear("mlp.gate", f, h, bias) if model.gated_mlp else []
    return [*gate, *_linear("mlp.up", f, h, bias), *_linear("mlp.down", h, f, bias)]


def _experts(h: int, f: int, experts: Experts) -> Shapes:
    count = experts.count
    shapes = ((count, f, h), (count, f, h), (count, h, f))
    stacks = [(f"{name}.weight", shape) for name, shape in zip(EXPERTS, shapes, strict=True)]
    return [(f"{ROUTER}.weight", (count, h)), *stacks]


def _qk_norms(model: ModelSpec) -> Shapes:
    if model.qk_norm == "none":
        return []
    whole = model.qk_norm == "width"
    return [
        ("attention.q_norm.weight", (model.query_hidden if whole else model.head_dim,)),
        ("attention.k_norm.weight", (model.kv_hidden if whole else model.head_dim,)),
    ]


def _linear(name: str, out: int, into: int, bias: bool) -> Shapes:
    weight = (f"{name}.weight", (out, into))
    return [weight, (f"{name}.bias", (out,))] if bias else [weight]


def _norm(name: str, model: ModelSpec) -> Shapes:
    kinds = {"weight": model.norm_weight, "bias": model.norm == "layer" and model.norm_bias}
    return [(f"{name}.{kind}", (model.hidden,)) for kind, there in kinds.items() if there]
