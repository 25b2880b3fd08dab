"""Parameters, FLOPs and element-wise traffic of each block of a model, from its shapes alone.

Symbols: T tokens, S tokens per sequence, h hidden, q = heads x head_dim, kv = kv_heads x
head_dim, f MLP width, V vocabulary. A multiply-add is two FLOPs.
GEMM forward: 2 T x (weights of the matrices). Attention forward: 4 T S q (scores and weighted
sum), half of it where causal. Backward: each GEMM twice, once for the gradient of its input and
once for that of its weight; attention twice its forward, all of it for inputs.
Source: arXiv 2205.05198 appendix A and arXiv 2204.02311 appendix B.
Not modelled: FLOPs of norms, activations, rotations and softmax (they are memory bound).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Literal

from ratrain.describe.held import held_bytes
from ratrain.describe.model import ModelSpec
from ratrain.describe.own import Work, own_cost
from ratrain.describe.trained import EMBEDDING, HEAD, unit_parameters

BlockKind = Literal["embedding", "layer", "head"]
ELEMENT_BYTES = 2  # fp16 or bf16


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor. `tied`: the same values as the embedding, held here as a copy.
    `trained`: it has a gradient, and is updated. `whole`: no tensor group divides it. `held`: in
    what, if not in the dtype of compute."""

    name: str
    shape: tuple[int, ...]
    tied: bool = False
    trained: bool = True
    whole: bool = False
    held: str | None = None

    def view_bytes(self, weight_bytes: int) -> int:
        """Of the weights, where `weight_bytes` are those of an element in the dtype of compute."""
        return held_bytes(self.name, self.shape, self.held, weight_bytes)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def used(self, model: ModelSpec) -> float:
        """Of a matrix, how many a token is multiplied by: of a stack those of the experts that it
        chooses."""
        if len(self.shape) < 2:
            return 0
        experts = model.experts
        return self.elements * (
            experts.chosen / experts.count if experts and len(self.shape) > 2 else 1
        )


@dataclass(frozen=True)
class Flops:
    """Floating-point operations by operator."""

    gemm: float
    attention: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.gemm + self.attention


@dataclass(frozen=True)
class Block:
    """An embedding, a layer or a head: the smallest piece that a stage may hold."""

    kind: BlockKind
    index: int  # of the layer; 0 for embedding and head
    tensors: tuple[Tensor, ...]
    model: ModelSpec

    @cached_property
    def params(self) -> int:
        """Parameters that the block holds, a tied copy counted."""
        return sum(tensor.elements for tensor in self.tensors)

    @cached_property
    def trained(self) -> tuple[Tensor, ...]:
        """The tensors that are trained."""
        return tuple(tensor for tensor in self.tensors if tensor.trained)

    def forward_flops(self, tokens: int, sequence: int, *, causal: bool = True) -> Flops:
        """FLOPs of the forward pass over `tokens` tokens in sequences of `sequence`."""
        if self.model.own:
            return _flops(self.own_work(tokens, sequence)[0])
        if self.kind == "embedding":
            return Flops(0, 0)
        weights = sum(t.used(self.model) for t in self.tensors)
        if self.kind == "head":
            return Flops(2 * tokens * weights, 0)
        full = 4 * tokens * sequence * self.model.query_hidden
        return Flops(2 * tokens * weights, full / 2 if causal else full)

    def input_gradient_flops(self, tokens: int, sequence: int, *, causal: bool = True) -> Flops:
        """FLOPs of the backward pass towards the block's input (Zero Bubble's B). Modules of one's
        own compute their weights' gradients in it too."""
        if self.model.own:
            return _flops(self.own_work(tokens, sequence)[1])
        forward = self.forward_flops(tokens, sequence, causal=causal)
        return Flops(forward.gemm, 2 * forward.attention)

    def weight_gradient_flops(self, tokens: int, sequence: int) -> Flops:
        """FLOPs of the backward pass towards the block's weights (Zero Bubble's W)."""
        if self.kind == "embedding" or self.model.own:
            return Flops(0, 0)
        return Flops(2 * tokens * sum(t.used(self.model) for t in self.trained), 0)

    def own_work(self, tokens: int, sequence: int) -> tuple[Work, Work]:
        """Forward and backward of a user's own module, in proportion to one sequence's."""
        cost, times = own_cost(self.model, self.kind, sequence), tokens / sequence
        return cost.forward.times(times), cost.backward.times(times)

    @property
    def sort(self) -> tuple[object, ...]:
        """What blocks of equal costs have in common."""
        return self.kind, self.trained

    def trained_share(self, *, of_matrices: bool = False) -> float:
        """How much of its parameters, or of its matrices' alone, is trained."""
        counted = [t for t in self.tensors if len(t.shape) > 1 or not of_matrices]
        every = sum(t.elements for t in counted)
        return sum(t.elements for t in counted if t.trained) / every if every else 1.0

    def backward_flops(self, tokens: int, sequence: int, *, causal: bool = True) -> Flops:
        """Both halves of the backward pass: twice the forward, where all is trained."""
        inputs = self.input_gradient_flops(tokens, sequence, causal=causal)
        return Flops(
            inputs.gemm + self.weight_gradient_flops(tokens, sequence).gemm, inputs.attention
        )

    def elementwise_bytes(self, tokens: int, sequence: int) -> int:
        """Bytes that the forward's element-wise passes read and write, each pass fused.

        Layer: two norms (read, write: 2h each; four where there are some before and after, one that
        is shared; those of queries and keys alike), two residual sums (two reads, write: 3h each),
        gated MLP (two reads, write: 3f) or plain activation (read, write: 2f); where there are
        experts, of each choice 3f, its row read and written (2h) and added (3h). Biases and rotary
        positions are fused into the GEMMs' and attention's own passes and not counted.
        Embedding: read and write h. Head: norm 2h, and cross-entropy, which reads the fp16
        logits and writes the fp32 probabilities (6 bytes x V).
        """
        if self.model.own:
            return int(self.own_work(tokens, sequence)[0].moved_bytes)
        h = self.model.hidden
        if self.kind == "embedding":
            return ELEMENT_BYTES * tokens * 2 * h
        if self.kind == "head":
            return tokens * (ELEMENT_BYTES * 2 * h + 6 * self.model.vocab)
        mlp = _inside(self.model, 3 if self.model.gated_mlp else 2, rows=5)
        return ELEMENT_BYTES * tokens * (6 * h + 2 * _normalised(self.model) + mlp)

    def elementwise_backward_bytes(self, tokens: int, sequence: int) -> int:
        """Bytes of the backward's element-wise passes.

        Layer: two norms and two sums of gradients (two reads, write: 3h each), gated MLP (three
        reads, two writes: 5f) or plain activation (3f); of each choice of experts 5f, four rows
        read and written (8h: two of the gradient, and of the input twice) and one added (3h).
        Embedding: read the gradient, read and write the rows (3h). Head: norm 3h, and fp32
        probabilities to fp16 gradients (6 V).
        """
        if self.model.own:
            return int(self.own_work(tokens, sequence)[1].moved_bytes)
        h = self.model.hidden
        if self.kind == "embedding":
            return ELEMENT_BYTES * tokens * 3 * h
        if self.kind == "head":
            return tokens * (ELEMENT_BYTES * 3 * h + 6 * self.model.vocab)
        mlp = _inside(self.model, 5 if self.model.gated_mlp else 3, rows=11)
        return ELEMENT_BYTES * tokens * (6 * h + 3 * _normalised(self.model) + mlp)


def _flops(work: Work) -> Flops:
    return Flops(work.gemm_flops, work.attention_flops)


def _inside(model: ModelSpec, passes: int, *, rows: int) -> int:
    """Elements of a token that an MLP's passes move; `rows`: of h, of each choice of experts."""
    dense = passes * model.dense_ffn
    if model.experts is None:
        return dense
    return dense + model.experts.chosen * (passes * model.ffn + rows * model.hidden)


def _normalised(model: ModelSpec) -> int:
    """Elements of a token that a layer's norms read."""
    norms = 4 if model.norm_places == "both" else 1 if model.shared_norm else 2
    width = 0 if model.qk_norm == "none" else model.query_hidden + model.kv_hidden
    return norms * model.hidden + width


@lru_cache(maxsize=16)  # a job's are asked for by everything that has a cost
def blocks(model: ModelSpec) -> tuple[Block, ...]:
    """The embedding, every layer, and the head, in the order of the forward pass."""
    tied = "head.logits" if model.tied_embeddings else ""
    return (
        Block("embedding", 0, _tensors(model, EMBEDDING), model),
        *(Block("layer", i, _tensors(model, str(i)), model) for i in range(model.layers)),
        Block("head", 0, _tensors(model, HEAD, tied), model),
    )


def total_params(model: ModelSpec) -> int:
    """Parameters of the model, tied ones counted once.

    A pipeline keeps a tied embedding twice, on its first and its last stage; the sum over blocks
    of `params` counts both.
    """
    held = [tensor for block in blocks(model) for tensor in block.tensors]
    return sum(tensor.elements for tensor in held if not tensor.tied)


def _tensors(model: ModelSpec, unit: str, tied: str = "") -> tuple[Tensor, ...]:
    if model.tuning is None and unit.isdecimal():
        unit = "0"  # all layers are alike
    return tuple(
        Tensor(each.name, each.shape, each.name == tied, each.trained, each.whole, each.held)
        for each in unit_parameters(model, unit)
    )
