"""Memory over one step by group of states, and each rank's proved bound beside what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ratrain.program.families import DEVICE
from ratrain.program.program import Program
from ratrain.program.units import Ints
from ratrain.report.contents import MemoryCurve
from ratrain.report.facts.ops import Floats, Ops, OpTimes
from ratrain.report.groups import group_of
from ratrain.simulate.engine import Run
from ratrain.simulate.memory import family_levels

CURVES = 16
"""Ranks whose memory is shown over time."""
STRETCHES = 400
"""A curve keeps the lowest and the highest point of each of this many equal stretches of time."""


def curves(
    program: Program,
    times: OpTimes,
    step: int,
    ranks: Iterable[int],
    source: str,
    *,
    tier: str = DEVICE,
) -> list[MemoryCurve]:
    """The curves of program ranks in one tier over the `step`-th step of `times`, from the moment
    when that step's first compute op begins. Steps before it show what is left over from them."""
    table = program.table
    start_s, end_s = times.start_s[: step + 1], times.end_s[: step + 1]
    origin_s, until_s = times.origin_s(table, step), float(np.nanmax(end_s[step]))
    families = table.states.families
    chosen = {at: family.name for at, family in enumerate(families) if family.tier == tier}
    memory_curves: list[MemoryCurve] = []
    for rank in ranks:
        time_s, levels = family_levels(table, rank, start_s, end_s)
        groups = _grouped(chosen, levels)
        before = max(int(np.searchsorted(time_s, origin_s, side="right")) - 1, 0)
        after = int(np.searchsorted(time_s, until_s, side="right"))
        keep = before + thinned(
            time_s[before:after], sum(groups.values(), np.zeros_like(levels[:, 0]))[before:after]
        )
        shown_s = np.clip(time_s[keep], origin_s, until_s) - origin_s
        memory_curves.append(
            MemoryCurve(
                rank,
                source,
                tuple(shown_s.tolist()),
                {key: tuple(level[keep].tolist()) for key, level in groups.items()},
            )
        )
    return memory_curves


def thinned(time_s: Floats, value: Ints, stretches: int = STRETCHES) -> Ints:
    """Places of the first, the last, and of each stretch's lowest and highest point."""
    count = len(time_s)
    if count <= 2 * stretches:
        return np.arange(count)
    first_s, last_s = float(time_s[0]), float(time_s[-1])
    width_s = (last_s - first_s) / stretches or 1.0
    stretch = np.minimum(((time_s - first_s) / width_s).astype(np.int64), stretches - 1)
    by_value = np.lexsort((value, stretch))
    begins = np.flatnonzero(np.diff(stretch[by_value], prepend=-1))
    ends = np.r_[begins[1:] - 1, count - 1]
    return np.unique(np.r_[0, by_value[begins], by_value[ends], count - 1])


def peaks(memory_curves: Iterable[MemoryCurve]) -> dict[int, int]:
    """The highest total of each rank's curve."""
    return {
        curve.rank: max(map(sum, zip(*curve.groups.values(), strict=True)), default=0)
        for curve in memory_curves
    }


def _grouped(names: Mapping[int, str], levels: Ints) -> dict[str, Ints]:
    """Bytes of each group that is not always empty."""
    groups: dict[str, Ints] = {}
    for number, name in names.items():
        if levels[:, number].any():
            key = group_of(name)
            groups[key] = groups.get(key, 0) + levels[:, number]
    return groups


def op_times(ops: Ops, run: Run) -> OpTimes:
    """The times of a simulated run's ops, which stand in one row after the other. The last step has
    a row of its own: of a program that spells out several, those before it share theirs."""
    table = ops.table
    last = table.step == table.setup.period - 1

    def rows(time_s: Floats) -> Floats:
        periods = time_s.reshape(run.periods, len(table))
        if last.all():
            return periods
        parts = [np.where(each, periods[-1], np.nan) for each in (~last, last)]
        return np.vstack([periods[:-1], *parts])

    return OpTimes(rows(run.start_s), rows(run.end_s))
