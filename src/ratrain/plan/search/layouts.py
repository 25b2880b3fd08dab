"""The search: enumerate and prune by memory, rank by closed formulas, simulate the best.

Where devices are of unequal kinds, plans that leave some of them idle are candidates like others.

What a stage keeps follows from its memory: everything where that fits, else all but attention's
scores (where those are stored), else it recovers ahead of backward, else when backward arrives.
Keeping more never makes a stage slower, so nothing is lost by not trying the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from operator import itemgetter

import numpy as np

from ratrain.cost.measured import Unmeasured
from ratrain.describe.job import JobSpec
from ratrain.plan.draft.parts import layers_moved
from ratrain.plan.layout.enumerate import Group, groups_of, no_group
from ratrain.plan.layout.jobs import WORTH_SPLIT
from ratrain.plan.layout.plan import SPLIT, group_of_plan, plan_of_row
from ratrain.plan.price.bill import FORWARD
from ratrain.plan.price.estimate import estimate
from ratrain.plan.price.fitted import fitted
from ratrain.plan.price.kind_speed import least_step_s, parts_of_cluster
from ratrain.plan.search import limits
from ratrain.plan.search.climb import climbed
from ratrain.plan.search.tried import Tried, step_of, tried_plan
from ratrain.program.units import Bools, Ints
from ratrain.simulate.costs import Floats

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Checked:
    """A group with what memory and clock say of each row."""

    group: Group
    recovery: Ints  # rows x stages, codes
    missing_bytes: Ints  # of the fullest rank; 0 or less: fits
    step_s: Floats

    @property
    def fits(self) -> Bools:
        return self.missing_bytes <= 0


@dataclass(frozen=True)
class Search:
    """What a search found: the best plans that were simulated and proved, best first; and every row
    that was checked."""

    job: JobSpec
    tried: tuple[Tried, ...]
    simulated: int
    mean_gap: float  # mean absolute gap between closed form and simulation, over those simulated
    checked: tuple[Checked, ...] = field(repr=False)
    checks: int  # rows checked against memory
    fitting: int
    check_s: float  # time of the check and the estimate
    total_s: float
    all_devices_s: float | None = None  # where the best leaves some idle: the step with none idle

    @property
    def best(self) -> Tried:
        return self.tried[0]


def search_layouts(job: JobSpec, progress: Progress | None = None) -> Search:
    """The `Search` of a job. Where nothing fits it has no `tried`."""
    began = time.perf_counter()
    checked = tuple(_checked(job))
    if not checked:
        raise no_group(job)
    check_s = time.perf_counter() - began
    ranked = _ranked(checked)
    refined = [_refined(checked_group, row) for _, checked_group, row in ranked[: limits.REFINED]]
    rows = sorted(
        [*refined, *ranked[: 4 * limits.SIMULATED]],
        key=lambda entry: (entry[0], len(entry[1].group)),
    )
    simulated = sorted(_simulated(rows, progress), key=step_of)
    simulated = sorted([*_split(rows, simulated), *simulated], key=step_of)
    gaps = [abs(tried.gap) for tried in simulated]
    return Search(
        job,
        tuple(simulated[: limits.LAYOUTS_SHOWN]),
        len(simulated),
        sum(gaps) / max(len(gaps), 1),
        checked,
        sum(len(checked_group.group) for checked_group in checked),
        sum(int(checked_group.fits.sum()) for checked_group in checked),
        check_s,
        time.perf_counter() - began,
        _all_devices_s(checked, simulated) if simulated else None,
    )


def _checked(job: JobSpec) -> Iterator[Checked]:
    """Every group on all devices, and on those parts of the cluster that could be as fast as the
    fastest row that was found."""
    best_s = float("inf")
    for devices in parts_of_cluster(job):
        whole = len(devices) == job.cluster.devices
        if not whole and least_step_s(job, devices) > best_s:
            continue
        try:
            for group in groups_of(job, None if whole else devices):
                checked = check(group)
                if checked.fits.any():
                    best_s = min(best_s, float(checked.step_s[checked.fits].min()))
                yield checked
        except Unmeasured:
            if whole:
                raise


def _all_devices_s(checked: Sequence[Checked], tried: Sequence[Tried]) -> float | None:
    """The fastest step of a plan that uses every device, where the best of these does not. None
    where no such plan is proved to fit."""
    if not tried[0].plan.idle:
        return None
    whole = [plan.step_s for plan in tried if not plan.plan.idle]
    if not whole:
        rows = [
            (float(times[row]), group, row)
            for group in checked
            if group.group.layout.devices == group.group.job.cluster.devices and group.fits.any()
            for times in (np.where(group.fits, group.step_s, np.inf),)
            for row in (int(times.argmin()),)
        ]
        rows.sort(key=lambda entry: entry[0])
        whole = [plan.step_s for plan in islice(_simulated(rows, None), limits.SIMULATED_AT_LEAST)]
    return min(whole, default=None)


def check(group: Group) -> Checked:
    """Memory and step time of every row, each stage in the first recovery mode that fits."""
    recovery, missing = fitted(group)
    return Checked(group, recovery, missing, estimate(group, recovery).step_s)


Entry = tuple[float, Checked, int]


def _ranked(checked: tuple[Checked, ...]) -> list[Entry]:
    """Rows that fit, fastest first; of rows that come to the same program, one."""
    times = np.concatenate([np.where(group.fits, group.step_s, np.inf) for group in checked])
    first = np.cumsum([0, *(len(group.group) for group in checked)])
    ranked: list[Entry] = []
    seen: set[object] = set()
    order: list[int] = np.argsort(times, kind="stable")[: 40 * limits.SIMULATED].tolist()
    for place in order:
        if not np.isfinite(times[place]):
            break
        number = int(np.searchsorted(first, place, side="right")) - 1
        group, row = checked[number], place - int(first[number])
        key = _same_program(group, row)
        if key not in seen:
            seen.add(key)
            ranked.append((float(times[place]), group, row))
    return ranked


def _same_program(checked: Checked, row: int) -> object:
    group, recovery = checked.group, checked.recovery[row]
    buffer = int(group.buffer[row]) if (recovery == FORWARD).any() else 0
    return (
        replace(group.layout, layers="equal"),
        group.strategy.skeleton,
        group.job.batch.micro_batch,
        group.reversed_kinds,
        group.idle_key,
        tuple(group.layers[row].tolist()),
        int(group.mode[row]),
        tuple(recovery.tolist()),
        buffer,
    )


def _refined(checked: Checked, row: int) -> Entry:
    """The row with layers moved from stage to stage, as long as the estimate gains by it."""
    start: Entry = (float(checked.step_s[row]), checked, row)

    def near(here: Entry) -> Iterator[Entry]:
        moved = _moves(here[1].group, here[2])
        if len(moved):
            there = check(moved)
            times = np.where(there.fits, there.step_s, np.inf)
            yield float(times.min()), there, int(times.argmin())

    if checked.group.layout.virtual > 1:
        return start
    return [start, *climbed(start, near, itemgetter(0), rounds=limits.REFINED_ROUNDS, gain=1e-6)][
        -1
    ]


def _moves(group: Group, row: int) -> Group:
    """Every row that differs from this one by a layer moved between two stages."""
    layers: list[int] = group.layers[row].tolist()
    stages = range(len(layers))
    givers = sorted(stages, key=lambda stage: -layers[stage])[:4] if len(stages) > 16 else stages
    rows = list(layers_moved(layers, product(givers, stages)))  # of many, the fullest stages give
    moved = group.only(np.full(len(rows), row, dtype=np.int64))
    return replace(moved, layers=np.array(rows, dtype=np.int64).reshape(-1, len(layers)))


def _simulated(rows: list[Entry], progress: Progress | None) -> Iterator[Tried]:
    best, done, count = float("inf"), 0, 0
    seen: set[object] = set()
    alike: Counter[object] = Counter()
    if progress is not None:
        progress(0, limits.SIMULATED)
    for estimate_s, checked, row in rows:
        enough = count >= limits.SIMULATED or (
            count >= limits.SIMULATED_AT_LEAST and done > limits.LAYOUTS_OPS
        )
        if enough or (count and estimate_s > limits.LAYOUTS_MARGIN * best):
            break
        key = _same_program(checked, row)
        group = checked.group
        family = replace(group.layout, layers="equal"), group.job.batch.micro_batch
        if key in seen or alike[family] >= limits.LAYOUTS_ALIKE:
            continue
        seen.add(key)
        alike[family] += 1
        plan = plan_of_row(checked.group, row, checked.recovery[row])
        tried, ops = tried_plan(plan, estimate_s)
        done, count = done + ops, count + 1
        if progress is not None:
            progress(count, limits.SIMULATED)
        if tried is not None:
            best = min(best, tried.step_s)
            yield tried


def _split(rows: Sequence[Entry], simulated: Sequence[Tried]) -> Iterator[Tried]:
    """Pipelines in orders that split backward, where these gain enough over every plan simulated.
    They need not be among these: with backward whole they may have been too slow for that."""
    if not simulated:
        return
    bar_s = best_s = simulated[0].step_s * (1 - WORTH_SPLIT)
    seen: set[object] = set()
    for entry in rows:
        _, checked, row = entry
        key = _same_program(checked, row)
        if len(seen) >= limits.LAYOUTS_SPLIT:
            return
        if key in seen or _filled_s(entry) > best_s:
            continue
        for split in SPLIT.plans(plan_of_row(checked.group, row, checked.recovery[row])):
            fit = check(group_of_plan(split))
            if not fit.fits.all():
                continue
            seen.add(key)
            tried, _ = tried_plan(split, float(fit.step_s[0]))
            if tried is not None and tried.step_s <= bar_s:
                best_s = min(best_s, tried.step_s)
                yield tried


def _filled_s(entry: Entry) -> float:
    """About what a row's step takes where weight gradients fill the waits of its pipeline."""
    estimate_s, checked, _ = entry
    waits, micro_batches = checked.group.layout.pipeline - 1, checked.group.micro_batches
    return estimate_s * (1 - limits.FILLED * waits / (micro_batches + waits))
