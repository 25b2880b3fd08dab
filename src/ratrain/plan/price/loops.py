"""Loops over neighbouring stages: forward along them and back again, messages included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ratrain.simulate.costs import Floats


def loops(through_s: Floats, links_s: Floats, early_s: Floats) -> Iterator[tuple[int, Floats]]:
    """For loops of each length: how many first stages they begin at, and their pace, seconds a
    micro-batch (rows x first stages).

    A loop over stages i to j is shared by the j - i + 1 micro-batches in it: its pace is what it
    takes, (sum over i..j of `through_s`) + (sum over i..j-1 of `links_s`) + `early_s` of j, divided
    by that. Each sum is a difference of two sums over all stages before.
    """
    whole = np.cumsum(through_s, axis=1)
    links = np.r_[0.0, np.cumsum(links_s)[:-1]]
    behind = whole + links + early_s
    before = whole - through_s + links
    stages = through_s.shape[1]
    for length in _lengths(stages):
        begins = stages + 1 - length
        pace = behind[:, length - 1 :] - before[:, :begins]
        pace *= 1 / length
        yield begins, pace


def _lengths(stages: int) -> tuple[int, ...]:
    """Lengths of the loops that are looked at: all short ones, and some of the long.

    A long loop is no slower than the slower of its halves but for its share of the link between
    them: beyond 12 stages an untried one differs from its neighbours by little.
    """
    lengths = list(range(2, min(stages, 12) + 1))
    while lengths and lengths[-1] < stages:
        lengths.append(min(stages, lengths[-1] * 5 // 4))
    return tuple(lengths)
