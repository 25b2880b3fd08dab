"""Samples: the model goes on with a few prompts between two steps of its training, by the forwards
of one micro-batch of the run's own program, a pass through all stages for each token. So it works
in every layout, within the memory that is proved, and costs that many forwards.

The likeliest word is taken each time. Every replica computes the same prompts; where their weights
differ, the first one's words count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.corpus.prompts import Prompt
from ratrain.describe.train import TrainSpec
from ratrain.models.functions.dropout import Drawn
from ratrain.models.functions.rows import spread
from ratrain.models.head import IGNORED
from ratrain.models.micro_batch import MicroBatch
from ratrain.models.units import Head
from ratrain.program.kind import Lane
from ratrain.program.passes.forward_only import first_forwards
from ratrain.program.program import Program
from ratrain.runtime.rank.forwards import Forwards, Shared
from ratrain.runtime.step.network.broadcast import summed_columns
from ratrain.runtime.step.ops import INPUTS, RankOps
from ratrain.runtime.step.schedule import LocalOp


@dataclass(frozen=True)
class Sampled:
    """The tokens that follow each prompt, and how long they took."""

    tokens: tuple[tuple[int, ...], ...]
    took_s: float


@dataclass(frozen=True)
class Prompts:
    """What is gone on with. `rows`: prompts at once, as many as every replica's micro-batch has;
    `words`: only words below it are taken; `length`: of the model's sequences."""

    prompts: tuple[Prompt, ...]
    count: int
    rows: int
    words: int
    length: int


class Texts:
    """A few texts as the only micro-batch, filled up behind their ends."""

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self._tokens = torch.zeros(rows, length, dtype=torch.int64, device=device)
        self._targets = torch.full_like(self._tokens, IGNORED)
        self.rows: list[int] = []  # of the last token of each

    def show(self, texts: Sequence[Sequence[int]]) -> None:
        self._tokens.zero_()
        for row, text in zip(self._tokens, texts, strict=False):
            row[: len(text)] = torch.tensor(text)
        length = self._tokens.shape[1]
        self.rows = [number * length + len(text) - 1 for number, text in enumerate(texts)]

    def micro_batch(self, step: int, micro_batch: int, joined: int = 1) -> MicroBatch:
        return MicroBatch(self._tokens.repeat(joined, 1), self._targets.repeat(joined, 1))

    def drawn(self, step: int, micro_batch: int, train: TrainSpec) -> Drawn | None:
        return None


class _SampleOps(RankOps):
    """Ops whose last unit gives the likeliest words, not losses."""

    texts: Texts
    below: int
    words: Tensor | None = None

    def forward(self, op: LocalOp, step: int) -> None:
        unit = self.unit(op)
        if not unit.local.last:
            super().forward(op, step)
            return
        self._attach_view(unit, op)
        given, head = self._held.read(op, *INPUTS), unit.unit
        assert isinstance(head, Head)
        rows = torch.tensor(self.texts.rows, device=given.device)
        with torch.no_grad():
            x = spread(given.detach(), self._group)
            words = head.likeliest(unit.weights, x, rows, self.below)
        self.words = words if op.micro_batch == 0 else self.words
        self._let_view_go(unit, op)


class Sampling:
    """One rank's part in it. `micro_batch`: sequences of its replica's."""

    def __init__(self, program: Program, shared: Shared, asked: Prompts, micro_batch: int) -> None:
        self._asked, self._texts = asked, Texts(micro_batch, asked.length, shared.device.place)
        self._forwards = Forwards(first_forwards(program), shared, self._texts, _SampleOps)
        self._ops = self._forwards.ops
        assert isinstance(self._ops, _SampleOps)
        self._ops.texts, self._ops.below = self._texts, asked.words
        self._tells = self._forwards.counts and shared.seat.data == 0
        self.lanes = self._forwards.lanes

    def run(self) -> Sampled:
        """Goes on with all prompts; all ranks call this together."""
        began_s, asked = time.perf_counter(), self._asked
        texts = [list(prompt.tokens) for prompt in asked.prompts]
        for first in range(0, len(texts), asked.rows):
            some = texts[first : first + asked.rows]
            for _ in range(asked.count):
                for text, word in zip(some, self._next(some), strict=True):
                    text.append(word)
        self._forwards.clear()
        new = tuple(tuple(text[-asked.count :]) for text in texts)
        return Sampled(new, time.perf_counter() - began_s)

    def _next(self, texts: Sequence[Sequence[int]]) -> list[int]:
        """The next word of each text, on every rank."""
        assert isinstance(self._ops, _SampleOps)
        self._texts.show(texts)
        self._forwards.run(0, 1)
        told = torch.zeros(len(texts), dtype=torch.float64)
        if self._tells:
            assert self._ops.words is not None
            told += self._ops.words.cpu()
        words = self._forwards.network.combine(Lane.UPDATE, told, summed_columns)
        return [int(word) for word in words]
