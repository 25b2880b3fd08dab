"""Text out of a model, one token after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.cached import KeptKeys, layer_onward
from ratrain.models.micro_batch import MicroBatch
from ratrain.models.own.unit import OwnUnit
from ratrain.models.shapes import HEAD, unit_names
from ratrain.models.units import Embedding, Head, Layer, unit_of
from ratrain.models.weights import Weights


class Reader:
    """A model that reads tokens [b, n] and says what may come next; remembers what it read."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Weights], sequence_length: int
    ) -> None:
        self._weights, self._own = weights, spec.own is not None
        self._text: list[Tensor] = []  # of a model of one's own, which reads all of it each time
        self._units = {
            name: unit_of(spec, name, sequence_length=sequence_length) for name in unit_names(spec)
        }
        self._kept: dict[str, KeptKeys] = {}

    @property
    def length(self) -> int:
        """Tokens read since the last `forget`."""
        if self._own:
            return sum(tokens.shape[1] for tokens in self._text)
        return self._kept["0"].length if self._kept else 0

    def forget(self) -> None:
        """Begins a new text."""
        self._kept, self._text = {}, []

    def read(self, tokens: Tensor) -> Tensor:
        """Logits [b, V] of the token after the last; one token at a time after the first call."""
        if self._own:
            return self._read_all(tokens)
        x, first = torch.empty(0), self.length
        with torch.no_grad():
            for name, unit in self._units.items():
                weights = self._weights[name]
                if isinstance(unit, Head):
                    return unit.logits(weights, x[:, -1:])[:, 0]
                if isinstance(unit, Layer):
                    if name not in self._kept:
                        self._kept[name] = KeptKeys(unit.plan, x)
                    x = layer_onward(unit, weights, x, self._kept[name])
                elif isinstance(unit, Embedding):
                    x = unit.onward(weights, x, tokens, first)
        raise AssertionError("a model ends with a head")

    def _read_all(self, tokens: Tensor) -> Tensor:
        """The same by modules that keep nothing of what they have read."""
        self._text.append(tokens)
        batch, x = MicroBatch(whole := torch.cat(self._text, 1), whole), torch.empty(0)
        with torch.no_grad():
            for name, unit in self._units.items():
                if name == HEAD:
                    assert isinstance(unit, OwnUnit)
                    return unit.logits(self._weights[name], x[:, -1:])[:, 0]
                x = unit.forward(self._weights[name], x, batch)
        raise AssertionError("a model ends with a last unit")


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

    Of `ids`, only tokens below it are chosen: a vocabulary may be larger than its tokenizer.
    Keys and values are kept. The model reads at most the last `sequence_length` tokens of the
    prompt; whenever that many are read, it begins again with the last half of them.
    """
    if not prompt:
        raise SpecError("the prompt is empty", place="prompt", fix="give at least one token")
    if not (isfinite(temperature) and temperature >= 0):
        raise SpecError(
            f"{temperature} is not a temperature", place="temperature", fix="use 0 to 2"
        )
    # Room for no more keys than will be read: a context may be far longer than the text.
    sequence_length = min(sequence_length, len(prompt) + count)
    reader = Reader(spec, weights, sequence_length)
    device = next(flat.device for flat in weights[HEAD].flats if flat is not None)
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt)
    unread = text[-sequence_length:]
    for _ in range(count):
        scores = reader.read(torch.tensor([unread], device=device))[0, :ids]
        text.append(_choose(scores.float().cpu(), temperature, generator))
        yield text[-1]
        unread = text[-1:]
        if reader.length == sequence_length:
            reader.forget()
            unread = text[-max(1, sequence_length // 2) :]


def next_logits(
    spec: ModelSpec, weights: Mapping[str, Weights], tokens: Tensor, sequence_length: int
) -> Tensor:
    """Logits [b, V] of the token after each row of `tokens` [b, S]."""
    return Reader(spec, weights, sequence_length).read(tokens)


def _choose(scores: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(scores.argmax())
    chances = torch.softmax(scores / temperature, dim=-1)
    return int(torch.multinomial(chances, 1, generator=generator))
