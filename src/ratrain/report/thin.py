"""Long series made short: the extremes of each stretch stay, so that no peak is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

STEPS = 3000
"""Steps of a run that are drawn, about."""


def thinned_steps(values: Sequence[float], most: int = STEPS) -> list[int]:
    """Places of the first and the last value, and of the lowest and highest of each stretch.

    Values that are no numbers are kept all where they begin: a run that went wrong shows it.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches = most // 2
    kept = {0, count - 1}
    for stretch in range(stretches):
        places = range(stretch * count // stretches, (stretch + 1) * count // stretches)
        finite = [place for place in places if math.isfinite(values[place])]
        broken = [place for place in places if not math.isfinite(values[place])]
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        kept.update(broken[:1])
    return sorted(kept)


def shown_steps(losses: Sequence[float], validations: Mapping[int, float]) -> list[int]:
    """Places of the steps that curves show: of each stretch the extremes of the loss, and of the
    loss on held-out text, which some places have."""
    validated = sorted(validations)
    kept = thinned_steps([validations[place] for place in validated], STEPS // 2)
    return sorted({*thinned_steps(losses), *(validated[at] for at in kept)})
