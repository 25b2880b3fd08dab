"""Batches of packed samples: which tokens a replica's micro-batch gets in a step.

Sample i is tokens i S to i S + S of the stream, so that inputs never overlap and the last target
of one sample is the first input of the next. Each document begins directly after the
end id of the one before; attention is not cut there. Of conversations, each that fits into a
sample lies in one whole: what it does not fit into is filled up, and does not count. Tokens after
the last whole sample are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ratrain.corpus.order import SampleOrder
from ratrain.corpus.store import REMAKE, TOKENS, TokenStore
from ratrain.corpus.tokenizer import ANSWER
from ratrain.errors import SpecError

MASKED = -100
"""A target that does not count."""


class Batch(NamedTuple):
    """Inputs and what follows each of them: both [sequences, sequence_length]."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """A job's endless samples: `sequences` of `sequence_length` tokens in each step.

    Which samples a step trains on follows from seed and step alone. The replicas and micro-batches
    take them by position, so that every layout sees the same global batch, and a run that resumes
    at a step sees what it would have seen.
    """

    store: TokenStore
    sequence_length: int
    sequences: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.sequence_length < 1 or self.sequences < 1:
            raise SpecError(
                "a batch needs at least one sequence of one token",
                place="[batch] sequences",
                fix="write 1 or more, and a sequence_length of 1 or more",
            )
        if self.count < 1:
            raise SpecError(
                f"{len(self.store):,} tokens are too few for one sample of "
                f"{self.sequence_length:,} "
                "tokens and the token after it",
                place=str(self.store.folder),
                fix=f"give more text, or use sequence_length <= {len(self.store) - 1}",
            )

    @property
    def count(self) -> int:
        """Samples in an epoch."""
        return (len(self.store) - 1) // self.sequence_length

    @cached_property
    def order(self) -> SampleOrder:
        """The order of the samples over all epochs."""
        return SampleOrder(self.count, self.seed, self.shuffle)

    def batch(self, step: int, replica_offset: int, count: int) -> Batch:
        """Sequences replica_offset to replica_offset + count of a step's global batch."""
        if step < 0 or count < 1 or not 0 <= replica_offset <= self.sequences - count:
            raise SpecError(
                f"step {step} has no sequences {replica_offset} to {replica_offset + count - 1}; "
                f"a step has {self.sequences}",
                place="[batch] sequences",
                fix="ask for sequences of the batch",
            )
        first = step * self.sequences + replica_offset
        return self.at(np.arange(first, first + count, dtype=np.int64))

    def counted(self, step: int, replica_offset: int, count: int) -> int:
        """How many targets of these sequences count: of packed text all do, of conversations
        answers."""
        if not self.store.index.conversations:
            return count * self.sequence_length
        return int((self.batch(step, replica_offset, count).targets != MASKED).sum())

    def at(self, positions: NDArray[np.int64]) -> Batch:
        """The samples at positions of the endless order."""
        indices = self.order.at(positions)
        rows = np.empty((len(indices), self.sequence_length + 1), np.int64)
        for row, index in zip(rows, indices.tolist(), strict=True):
            start = index * self.sequence_length
            row[:] = self.store.read(start, start + self.sequence_length + 1)
        counts = rows >= ANSWER
        rows[counts] -= ANSWER
        self._check(rows)
        targets = rows[:, 1:].copy()
        if self.store.index.conversations:
            targets[~counts[:, 1:]] = MASKED
        return Batch(rows[:, :-1].copy(), targets)

    def _check(self, rows: NDArray[np.int64]) -> None:
        """An id beyond the vocabulary would end as a crash deep inside the model."""
        largest = rows.max(initial=0)
        if largest >= self.store.index.vocab_size:
            raise SpecError(
                f"token id {largest} with a vocabulary of {self.store.index.vocab_size}",
                place=str(self.store.folder / TOKENS),
                fix=REMAKE,
            )
