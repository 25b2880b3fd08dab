"""The micro-batches of one replica, from anything that yields a step's samples by position."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from ratrain.describe.train import TrainSpec
from ratrain.models.functions.dropout import Drawn
from ratrain.models.head import IGNORED
from ratrain.models.units import MicroBatch

Ints = npt.NDArray[np.int64]
ReadSamples = Callable[[int, int, int], tuple[Ints, Ints]]
"""(step, first position in the global batch, count) -> tokens and targets."""
CountTargets = Callable[[int, int, int], int]
"""The same -> how many of the targets count: those that are not masked (-100)."""


class ReplicaBatches:
    """A replica's share of each step's global batch, by position. Two steps are kept: the lanes
    of a rank may be one step apart. `count` may know without reading what counts."""

    def __init__(
        self,
        read: ReadSamples,
        first: int,
        sequences: int,
        micro_batch: int,
        device: torch.device,
        *,
        count: CountTargets | None = None,
    ) -> None:
        self._read, self._first, self._sequences = read, first, sequences
        self._size, self._device = micro_batch, device
        self._count = count or self._counted_by_reading
        self._steps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def micro_batch(self, step: int, micro_batch: int, joined: int = 1) -> MicroBatch:
        """The micro-batch of a step, or as many as are joined from it on."""
        tokens, targets = self._step(step)
        rows = slice(micro_batch * self._size, (micro_batch + joined) * self._size)
        return MicroBatch(tokens[rows], targets[rows])

    def drawn(self, step: int, micro_batch: int, train: TrainSpec) -> Drawn:
        """What a micro-batch's dropout follows from."""
        return Drawn(train.dropout, train.seed, step, self._first + micro_batch * self._size)

    def counted(self, step: int) -> int:
        """How many of the replica's targets in a step count."""
        return self._count(step, self._first, self._sequences)

    def forget(self) -> None:
        """Lets go of what is kept: steps may be counted from the start again."""
        self._steps.clear()

    def _counted_by_reading(self, step: int, first: int, count: int) -> int:
        return int((self._read(step, first, count)[1] != IGNORED).sum())

    def _step(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        if step not in self._steps:
            tokens, targets = self._read(step, self._first, self._sequences)
            self._steps.pop(step - 2, None)
            self._steps[step] = (
                torch.from_numpy(tokens).to(self._device),
                torch.from_numpy(targets).to(self._device),
            )
        return self._steps[step]
