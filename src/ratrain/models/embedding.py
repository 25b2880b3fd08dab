"""The table of tokens, as a unit: its input is an empty tensor that only carries the graph. Some
families scale what they look up (Gemma, Granite), or add a vector for each position (GPT-2).

In a tensor group each rank has some of the words; tokens of others' words give zeros, so that the
sum of all ranks' outputs, left to the caller, is the embedding. Rank 0's has the positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.division import Division
from ratrain.models.functions.linear import accumulation_dtype
from ratrain.models.functions.rows import Rows, by_rank, own_rows
from ratrain.models.tensor_group import TensorGroup, division_of, leads
from ratrain.models.weights import Weights

TABLE, POSITIONS = "embedding.tokens", "embedding.positions"


@dataclass(frozen=True)
class EmbeddingPlan:
    """Tokens are 0 .. `vocab` - 1; a rank of a group has some of the table's rows."""

    vocab: int
    scale: float | None = None
    learned: bool = False  # a vector for each position
    offset: int = 0  # of the first one
    group: TensorGroup | None = None

    @property
    def division(self) -> Division:
        return division_of(self.group)


def embedding_plan(spec: ModelSpec, group: TensorGroup | None) -> EmbeddingPlan:
    """The plan of a model's embedding."""
    learned = spec.position == "learned"
    return EmbeddingPlan(spec.vocab, spec.embedding_scale, learned, spec.position_offset, group)


class Embed(Function):
    """apply(empty, weights, tokens [b, S], plan, first) -> [b, S, h], of tokens the first of which
    have position `first`; where the group divides rows, this rank's part of all [t, rows, h]."""

    @staticmethod
    def forward(
        ctx: Any,
        empty: Tensor,  # noqa: ARG004
        weights: Weights,
        tokens: Tensor,
        plan: EmbeddingPlan,
        first: int = 0,
    ) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.weights, ctx.plan = weights, plan
        vectors = _looked_up(weights[TABLE], tokens, plan)
        if plan.scale is not None:
            vectors.mul_(rounded(plan.scale, vectors.dtype))
        if plan.learned and leads(plan.group):
            at = plan.offset + first
            vectors.add_(weights[POSITIONS][at : at + tokens.shape[1]])
        return by_rank(vectors, plan.group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None, None]:
        (tokens,) = ctx.saved_tensors
        weights: Weights = ctx.weights
        plan: EmbeddingPlan = ctx.plan
        gradient = Rows(own_rows(grads[0], plan.group), plan.group)

        def add() -> None:
            words, rows = tokens.flatten(), gradient.all()
            if plan.learned:
                positions = torch.arange(tokens.shape[1], device=tokens.device) + plan.offset
                by_position = rows.view(*tokens.shape, -1)
                wide = accumulation_dtype(rows.dtype)
                weights.add_rows(POSITIONS, positions, by_position.sum(0, dtype=wide))
            if plan.scale is not None:
                rows = rows * rounded(plan.scale, rows.dtype)
            if plan.division.degree > 1:
                words, elsewhere = own_words(words, plan.vocab, plan.division)
                words, rows = words[~elsewhere], rows[~elsewhere]
            gradient.let_go()
            weights.add_rows(TABLE, words, rows)

        if any(each.trained for each in weights.layout.every):
            weights.now_or_later(add)
        return None, None, None, None, None


@lru_cache(maxsize=8)
def rounded(scale: float, dtype: torch.dtype) -> float:
    """A factor as Transformers has it: in the dtype of what it multiplies."""
    return float(torch.tensor(scale, dtype=dtype))


def _looked_up(table: Tensor, tokens: Tensor, plan: EmbeddingPlan) -> Tensor:
    """The rows of tokens, [b, S, h]; zeros for those whose rows other ranks hold."""
    if plan.division.degree > 1:
        _check_tokens(tokens, plan.vocab)
        words, elsewhere = own_words(tokens, plan.vocab, plan.division)
        vectors = functional.embedding(words, table)
        return vectors.masked_fill_(elsewhere.unsqueeze(-1), 0)
    try:
        return functional.embedding(tokens, table)
    except IndexError:
        raise _out_of_range(tokens, plan.vocab) from None


def own_words(tokens: Tensor, vocab: int, division: Division) -> tuple[Tensor, Tensor]:
    """(row of this rank's part for each token, 0 where another rank has it; where that is so)."""
    rows = division.of(vocab)
    elsewhere = (tokens < rows.start) | (tokens >= rows.stop)
    return (tokens - rows.start).masked_fill_(elsewhere, 0), elsewhere


def _check_tokens(tokens: Tensor, vocab: int) -> None:
    least, largest = tokens.aminmax()
    if int(least) < 0 or int(largest) >= vocab:
        raise _out_of_range(tokens, vocab)


def _out_of_range(tokens: Tensor, vocab: int) -> SpecError:
    largest, least = int(tokens.max()), int(tokens.min())
    return SpecError(
        f"the data contain token {largest if largest >= vocab else least}, "
        f"but the model has tokens 0 to {vocab - 1}",
        place="embedding",
        fix="use the model's tokenizer, or a model with a larger vocabulary",
    )
