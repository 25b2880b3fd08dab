"""The order of samples: a seeded permutation of each epoch that takes no memory.

Position p of the endless stream of samples is in epoch p // n at place p % n. A place is
permuted by a Feistel network over 2^(2h) >= n numbers, a bijection whatever its round function
is, keyed by seed and epoch; where it leaves [0, n) it is applied again until it is back (cycle
walking: J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), fewer than
four times on average. The round function is the finaliser of splitmix64 (G. Steele et al.,
OOPSLA 2014). Nothing but integer arithmetic: every machine and version gives the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ratrain.errors import SpecError

ROUNDS = 8
MIN_HALF_BITS = 3
"""A small epoch walks in a domain of 64, where 8 rounds mix well."""
WORDS = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class SampleOrder:
    """The endless order of `samples` samples: each epoch holds every one once."""

    samples: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.samples < 1 << 62:
            raise SpecError(
                f"{self.samples} samples cannot be ordered",
                place="[data] files",
                fix="give more tokens",
            )

    def at(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The sample at each position of the stream; positions count from 0 over all epochs."""
        stream_positions = np.asarray(positions, np.int64)
        if stream_positions.size and stream_positions.min() < 0:
            raise SpecError(
                f"position {stream_positions.min()} is before the first sample",
                place="positions",
                fix="count from 0",
            )
        places = stream_positions % self.samples
        if not self.shuffle or self.samples == 1:
            return places
        return _permuted(places, stream_positions // self.samples, self.samples, self.seed)

    def step(self, step: int, sequences: int) -> NDArray[np.int64]:
        """The samples of a step, in the order of its global batch; a function of nothing else."""
        first = step * sequences
        return self.at(np.arange(first, first + sequences, dtype=np.int64))


def _permuted(
    places: NDArray[np.int64], epochs: NDArray[np.int64], samples: int, seed: int
) -> NDArray[np.int64]:
    half = max(MIN_HALF_BITS, ((samples - 1).bit_length() + 1) // 2)
    # flat arrays: numpy warns of an overflow that is meant where it meets a single number
    seed_word = np.array([seed % WORDS], np.uint64)
    keys = _mixed(_mixed(seed_word) ^ (epochs.reshape(-1).astype(np.uint64) * np.uint64(GOLDEN)))
    values = places.reshape(-1).astype(np.uint64)
    outside = np.ones(values.shape, np.bool_)
    while outside.any():
        values = np.where(outside, _feistel(values, keys, half), values)
        outside = values >= np.uint64(samples)
    return values.astype(np.int64).reshape(places.shape)


def _feistel(values: NDArray[np.uint64], keys: NDArray[np.uint64], half: int) -> NDArray[np.uint64]:
    """A bijection of [0, 2^(2 half)): each round swaps the halves and blinds one by the other."""
    bits = np.uint64(half)
    mask = np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for number in range(ROUNDS):
        blind = _mixed(keys ^ (right + np.uint64((number + 1) * GOLDEN % WORDS)))
        left, right = right, left ^ (blind & mask)
    return (left << bits) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64; products wrap at 2^64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
