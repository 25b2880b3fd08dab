"""About how long a replica's micro-batches take: a closed form over its stages.

It is that of `estimate`, for one replica:

    T(s) = ramp(s) + max(k f + e, f + deep) - e + (m - k)(f + b) + max(k b, deep + u)

and the pace at which a slow stage or line ahead of a stage lets work come and go. Seconds are
numbers for one cut of the layers, or columns for many cuts of the same stages at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np

from ratrain.simulate.costs import Floats

Seconds = TypeVar("Seconds", float, Floats)
"""Of one cut, or of each of many."""


def step_s(
    micro_batches: int,
    forwards: Sequence[Seconds],
    backwards: Sequence[Seconds],
    early: Sequence[Seconds],
    messages_s: Sequence[Seconds],
    largest: Callable[..., Seconds],
) -> Seconds:
    """The time of so many micro-batches, without what follows the last; stage by stage the seconds
    of one of them, recovery ahead of backward (`early`) in backward's, and of the message behind.
    `largest` is `max` or `largest_of_each`."""
    m, p = micro_batches, len(forwards)
    if p == 1:
        return m * (forwards[0] + backwards[0])
    waited = [b - e for b, e in zip(backwards, early, strict=True)]
    hops = [f + u + 2 * c for f, u, c in zip(forwards, waited, messages_s, strict=True)]
    zero = 0.0 * forwards[0]
    ramps = [zero, *accumulate(hops)]
    longest = come = go = zero
    for s in range(p):
        f, b, e, u, c = forwards[s], backwards[s], early[s], waited[s], messages_s[s]
        k = min(p - s, m)
        deep = ramps[p] - ramps[s + 1] + early[-1] + 2 * c if s < p - 1 else zero
        begin, end = largest(k * f + e, f + deep) - e, largest(k * b, deep + u)
        full_s, short_s = begin + (m - k) * (f + b) + end, largest(begin + k * b, k * f + end)
        stage_s = full_s if m > k else short_s
        paced_s = largest((k - 1) * come + (m - 1) * go, (m - 1) * come + (k - 1) * go)
        longest = largest(longest, ramps[s] + stage_s, ramps[s] + f + u + paced_s)
        come, go = largest(come, f, c), largest(go, b, c)
        if s < p - 1:
            loop_s = (hops[s] + forwards[s + 1] + waited[s + 1]) / 2
            longest = largest(longest, ramps[s] + m * loop_s)
    return largest(longest, ramps[p] + early[-1] + (m - 1) * largest(*messages_s))


def largest_of_each(*seconds: Floats | float) -> Floats:
    """The largest of each row of columns."""
    largest = np.asarray(seconds[0], dtype=np.float64)
    for others in seconds[1:]:
        largest = np.maximum(largest, others)
    return largest
