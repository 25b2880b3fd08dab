"""The units of a model: an embedding, layers, a head, each a differentiable map of its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.attention_block import AttentionBlock, AttentionPlan, attention_plan
from ratrain.models.embedding import Embed, EmbeddingPlan, embedding_plan
from ratrain.models.expert_load import ExpertLoad
from ratrain.models.experts import Balance
from ratrain.models.functions.attention import FLASH, AttentionCore
from ratrain.models.functions.differentiable import differentiable, differentiables
from ratrain.models.functions.dropout import Within, dropped
from ratrain.models.head import HeadLoss, HeadPlan, head_logits, head_plan, likeliest
from ratrain.models.micro_batch import MicroBatch
from ratrain.models.mlp_block import MlpBlock, MlpPlan, mlp_plan
from ratrain.models.own.unit import own_unit
from ratrain.models.parameters import UnitParameters
from ratrain.models.shapes import EMBEDDING, HEAD, unit_layout
from ratrain.models.tensor_group import TensorGroup, divides_rows, division_of
from ratrain.models.weights import Weights

__all__ = ["MicroBatch"]


class Unit(Protocol):
    """A piece of the model. Its output depends differentiably on `x`; gradients of its weights
    go to the `Weights` in backward, which may run once.

    In a tensor group `x` and the gradient of the output are complete and the same on all ranks;
    the output (but for the head's) and the gradient of `x` are parts, for the caller to sum. Where
    the group divides rows, `x` and the gradient of the output are this rank's own rows (as
    `rows.spread` makes them), and the sum of the parts is of its own rows too (`rows.summed`).
    """

    @property
    def layout(self) -> UnitParameters: ...

    def forward(self, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor: ...


@dataclass(frozen=True)
class Embedding:
    """Tokens to [b, S, h]. `x` is an empty tensor that requires grad: it carries the graph."""

    layout: UnitParameters
    plan: EmbeddingPlan

    def forward(self, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor:
        vectors = self.onward(weights, x, batch.tokens, 0)
        within = Within(len(batch.tokens), self.plan.group, part=True)
        return dropped(vectors, batch.drawn, EMBEDDING, 0, within=within)

    def onward(self, weights: Weights, x: Tensor, tokens: Tensor, first: int) -> Tensor:
        """The same for tokens [b, n] of which the first of each sequence has position `first`."""
        return differentiable(Embed, x, weights, tokens, self.plan, first)


@dataclass(frozen=True)
class Layer:
    """[b, S, h] to [b, S, h]: attention, then MLP, each onto its input; or both of one input, or of
    one norm of it."""

    layout: UnitParameters
    plan: AttentionPlan
    mlp: MlpPlan
    parallel: bool = False
    name: str = "0"

    def forward(self, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor:
        sequences, length = batch.tokens.shape
        if length > self.plan.length:
            raise SpecError(
                f"a sequence of {length} tokens, where {self.plan.length} were announced",
                place="layer",
                fix="raise the sequence length, or shorten the sequences",
            )
        given, read = (x, weights, self.plan, (sequences, length)), x
        if self.plan.shares_norm:
            between, read = differentiables(AttentionBlock, *given)
        else:
            between = differentiable(AttentionBlock, *given)
        group, drawn = self.plan.group, batch.drawn
        own = x[division_of(group).rank] if divides_rows(group) else x
        between = dropped(between, drawn, self.name, 0, own, Within(sequences, group))
        balance = self.mlp.inside.balance(batch.targets, batch.loss_weight)
        output = self.second_half(weights, read, between, balance)
        return dropped(output, drawn, self.name, 1, between, Within(sequences, group, part=True))

    def second_half(
        self, weights: Weights, x: Tensor, between: Tensor, balance: Balance | None = None
    ) -> Tensor:
        """The layer's output, of its input (or that of attention's norm, where both read it) and of
        attention's output onto it."""
        given = (x, between) if self.parallel else (between, None)
        return differentiable(MlpBlock, *given, weights, self.mlp, balance)


@dataclass(frozen=True)
class Head:
    """[b, S, h] to the sum of the tokens' losses, a fp32 scalar."""

    layout: UnitParameters
    plan: HeadPlan

    def forward(self, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor:
        return differentiable(HeadLoss, x, weights, batch.targets, self.plan)

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        """[b, S, V], not differentiable."""
        return head_logits(x, weights, self.plan)

    def likeliest(self, weights: Weights, x: Tensor, rows: Tensor, below: int) -> Tensor:
        """The likeliest word behind each of some rows of [b x S, h], of words below a number."""
        return likeliest(x, weights, self.plan, rows, below)


def unit_of(
    spec: ModelSpec,
    name: str,
    *,
    sequence_length: int,
    group: TensorGroup | None = None,
    core: AttentionCore = FLASH,
) -> Unit:
    """Unit "e", "0" .. "L-1" or "h" for sequences of at most `sequence_length` tokens, or this
    rank's part of it; `core`: how a layer's attention is computed."""
    division = division_of(group)
    layout = unit_layout(spec, name, division)
    if spec.own:
        return own_unit(spec, name, layout)
    if name == EMBEDDING:
        return Embedding(layout, embedding_plan(spec, group))
    if name == HEAD:
        return Head(layout, head_plan(spec, group))
    attention = attention_plan(spec, int(name), sequence_length, group, core)
    return Layer(layout, attention, mlp_plan(spec, group), spec.parallel_residual, name)


def expert_load(unit: Unit) -> ExpertLoad | None:
    """What a layer counts of its experts; None where it has none."""
    return unit.mlp.inside.load if isinstance(unit, Layer) else None
