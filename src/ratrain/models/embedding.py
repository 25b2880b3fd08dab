"""The table of tokens, as a unit: its input is an empty tensor that only carries the graph.

In a tensor group each rank has some of the rows; tokens of others' rows give zeros, so that the
sum of all ranks' outputs, left to the caller, is the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ratrain.errors import SpecError
from ratrain.models.division import Division
from ratrain.models.weights import Weights

TABLE = "embedding.tokens"


@dataclass(frozen=True)
class EmbeddingPlan:
    """Tokens are 0 .. `vocab` - 1; `division` says which rows this rank has."""

    vocab: int
    division: Division


class Embed(Function):
    """apply(empty, weights, tokens [b, S], plan) -> [b, S, h]."""

    @staticmethod
    def forward(
        ctx: Any,
        empty: Tensor,  # noqa: ARG004
        weights: Weights,
        tokens: Tensor,
        plan: EmbeddingPlan,
    ) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.weights, ctx.plan = weights, plan
        table = weights[TABLE]
        if plan.division.degree > 1:
            _check_tokens(tokens, plan.vocab)
            rows, elsewhere = own_rows(tokens, plan.vocab, plan.division)
            vectors = functional.embedding(rows, table)
            return vectors.masked_fill_(elsewhere.unsqueeze(-1), 0)
        try:
            return functional.embedding(tokens, table)
        except IndexError:
            raise _out_of_range(tokens, plan.vocab) from None

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:
        (tokens,) = ctx.saved_tensors
        plan: EmbeddingPlan = ctx.plan
        rows, gradient = tokens.flatten(), grads[0].flatten(0, 1)
        if plan.division.degree > 1:
            rows, elsewhere = own_rows(rows, plan.vocab, plan.division)
            rows, gradient = rows[~elsewhere], gradient[~elsewhere]
        ctx.weights.add_rows(TABLE, rows, gradient)
        return None, None, None, None


def own_rows(tokens: Tensor, vocab: int, division: Division) -> tuple[Tensor, Tensor]:
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
