"""Proven peaks in words: of all ranks, or of the fullest of each budget where devices differ."""

from __future__ import annotations

from collections.abc import Iterable

from ratrain.describe.units import format_bytes
from ratrain.program.bounds import PeakBound
from ratrain.program.families import DEVICE
from ratrain.program.setup import Setup


def peaks_in_words(bounds: Iterable[PeakBound], setup: Setup) -> str:
    """ "proven peak 45.4 MB per rank (budget 64 MB)", or a peak for each budget that ranks have."""
    peaks = dict[int | None, int]()
    for bound in bounds:
        if bound.tier != DEVICE:
            continue
        budget = setup.budget_of(bound.rank)
        peaks[budget] = max(peaks.get(budget, 0), bound.total_bytes)
    if len(peaks) == 1:
        ((budget, peak),) = peaks.items()
        limit = f" (budget {format_bytes(budget)})" if budget else ""
        return f"proven peak {format_bytes(peak)} per rank{limit}"
    sizes = sorted(((budget or 0, peak) for budget, peak in peaks.items()), reverse=True)
    shown = (f"{format_bytes(peak)} of {format_bytes(budget)}" for budget, peak in sizes)
    return f"proven peaks {', '.join(shown)} (fullest rank of each budget)"
