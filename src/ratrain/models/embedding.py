"""The table of tokens, as a unit: its input is an empty tensor that only carries the graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from ratrain.errors import SpecError
from ratrain.models.weights import Weights

TABLE = "embedding.tokens"


class Embed(Function):
    """apply(empty, weights, tokens [b, S]) -> [b, S, h]."""

    @staticmethod
    def forward(ctx: Any, empty: Tensor, weights: Weights, tokens: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(tokens)
        ctx.weights = weights
        table = weights[TABLE]
        try:
            return functional.embedding(tokens, table)
        except IndexError:
            largest, least = int(tokens.max()), int(tokens.min())
            raise SpecError(
                f"the data hold token {largest if largest >= table.shape[0] else least}, "
                f"the model knows 0 to {table.shape[0] - 1}",
                place="embedding",
                fix="use the model's tokenizer, or a model with a larger vocabulary",
            ) from None

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        (tokens,) = ctx.saved_tensors
        ctx.weights.add_rows(TABLE, tokens.flatten(), grads[0].flatten(0, 1))
        return None, None, None
