"""Text out of a model: one token after another, each from the whole text so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.shapes import HEAD, unit_names
from ratrain.models.units import Head, MicroBatch, unit_of
from ratrain.models.weights import Weights


def sample(
    spec: ModelSpec,
    weights: Mapping[str, Weights],
    prompt: Sequence[int],
    count: int,
    *,
    sequence_length: int,
    temperature: float = 0.0,
    seed: int = 0,
    ids: int | None = None,
) -> Iterator[int]:
    """`count` tokens that follow `prompt`, one by one; temperature 0: always the likeliest.

    Of `ids`, only tokens below it are chosen: a vocabulary may be larger than its tokenizer. The
    model sees the last `sequence_length` tokens. Keys and values are not kept: each token
    costs a forward pass over all that it sees.
    """
    if not prompt:
        raise SpecError("the prompt is empty", place="prompt", fix="give at least one token")
    if not 0 <= temperature < float("inf"):
        raise SpecError(f"{temperature} is no temperature", place="temperature", fix="use 0 to 2")
    device = weights[HEAD]["head.logits"].device
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt)
    for _ in range(count):
        tokens = torch.tensor([text[-sequence_length:]], device=device)
        scores = next_logits(spec, weights, tokens, sequence_length)[0, :ids]
        text.append(_choose(scores.float().cpu(), temperature, generator))
        yield text[-1]


def next_logits(
    spec: ModelSpec, weights: Mapping[str, Weights], tokens: Tensor, sequence_length: int
) -> Tensor:
    """Logits [b, V] of the token after each row of `tokens` [b, S]."""
    batch = MicroBatch(tokens, tokens)
    x = torch.empty(0)
    with torch.no_grad():
        for name in unit_names(spec):
            unit = unit_of(spec, name, sequence_length=sequence_length)
            if isinstance(unit, Head):
                return unit.logits(weights[name], x[:, -1:])[:, 0]
            x = unit.forward(weights[name], x, batch)
    raise AssertionError("a model ends with a head")


def _choose(scores: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(scores.argmax())
    chances = torch.softmax(scores / temperature, dim=-1)
    return int(torch.multinomial(chances, 1, generator=generator))
