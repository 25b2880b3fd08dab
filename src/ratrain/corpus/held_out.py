"""Held-out samples: each once, in their order, in batches as large as a training step's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.corpus.samples import MASKED, Batch, Samples


@dataclass(frozen=True)
class HeldOut:
    """The samples of held-out text, which are not shuffled. What the last batch lacks is filled up
    with sequences of which no target counts."""

    samples: Samples

    @property
    def batches(self) -> int:
        return -(-self.samples.count // self.samples.sequences)

    def batch(self, number: int, offset: int, count: int) -> Batch:
        """Sequences `offset` to `offset + count` of a batch."""
        real = self._known(number, offset, count)
        first = number * self.samples.sequences + offset
        places = np.arange(first, first + count, dtype=np.int64)
        batch = self.samples.at(np.where(np.arange(count) < real, places, 0))
        batch.targets[real:] = MASKED
        return batch

    def counted(self, number: int, offset: int, count: int) -> int:
        """How many of these sequences' targets count."""
        if self.samples.store.index.conversations:
            return int((self.batch(number, offset, count).targets != MASKED).sum())
        return self._known(number, offset, count) * self.samples.sequence_length

    def _known(self, number: int, offset: int, count: int) -> int:
        remaining = self.samples.count - number * self.samples.sequences - offset
        return min(max(remaining, 0), count)
