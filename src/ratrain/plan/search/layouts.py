"""The search: enumerate and prune by memory, rank by closed formulas, simulate the best.

Where devices are of unequal kinds, plans that leave some of them idle are candidates like others.

What a stage keeps follows from its memory: everything where that fits, else all but attention's
scores (where those are stored), else it recovers ahead of backward, else when backward arrives.
Keeping more never makes a stage slower, so nothing is lost by not trying the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from ratrain.cost.measured import Unmeasured
from ratrain.describe.job import JobSpec
from ratrain.plan.layout.enumerate import Group, groups_of, no_group
from ratrain.plan.layout.further_orders import WORTH_SPLIT, in_split_order, split_orders_tried
from ratrain.plan.layout.plan import Plan, group_of_plan, plan_of_row
from ratrain.plan.price.bill import FORWARD
from ratrain.plan.price.estimate import estimate
from ratrain.plan.price.fitted import fitted
from ratrain.plan.price.kind_speed import least_step_s, parts_of_cluster
from ratrain.plan.price.places import costs_of
from ratrain.plan.price.trial import STEPS, proof, timed
from ratrain.plan.search.tried import Tried
from ratrain.program.units import Bools, Ints
from ratrain.simulate.costs import Floats
from ratrain.simulate.long import simulate_proved

Progress = Callable[[int, int], None]

SIMULATED = 24
"""Plans simulated at most."""
SIMULATED_AT_LEAST = 6
OPS = 250_000
"""Ops of one step, over all plans simulated, after which no further plan is begun."""
MARGIN = 1.05
"""A plan is not simulated whose estimate is this much above the best simulated step."""
ALIKE = 4
"""Plans simulated at most of the same degrees and micro-batch, so that others have their turn."""
PROVED = 10
"""Plans whose whole program is proved and simulated, at most: those that are shown."""
PROVED_AT_LEAST = 5
PROVED_OPS = 1_000_000
"""Ops simulated of whole programs, after which no further one is begun."""
SPLIT = 12
"""Pipelines tried at most in orders that split backward, those of the least estimates."""
FILLED = 2 / 3
"""Part of a pipeline's waits that such an order fills, where a forward and either half of backward
take equally long: what is waited for is a forward, a backward and a gradient of weights less."""
COMPARED = 3
"""Plans of all devices that are proved, where the best leaves some idle."""
REFINED = 12
"""Plans whose layers are moved about before any is simulated."""


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
    refined = [_refined(checked_group, row) for _, checked_group, row in ranked[:REFINED]]
    rows = sorted(
        [*refined, *ranked[: 4 * SIMULATED]], key=lambda entry: (entry[0], len(entry[1].group))
    )
    simulated = sorted(_simulated(rows, progress), key=lambda tried: tried.step_s)
    simulated = sorted([*_split(rows, simulated), *simulated], key=lambda tried: tried.step_s)
    gaps = [abs(tried.gap) for tried in simulated]
    shown = sorted(_proved(simulated), key=lambda tried: tried.step_s)
    return Search(
        job,
        tuple(shown),
        len(simulated),
        sum(gaps) / max(len(gaps), 1),
        checked,
        sum(len(checked_group.group) for checked_group in checked),
        sum(int(checked_group.fits.sum()) for checked_group in checked),
        check_s,
        time.perf_counter() - began,
        _all_devices_s(shown[0], checked, simulated) if shown else None,
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


def _all_devices_s(best: Tried, checked: Sequence[Checked], tried: Sequence[Tried]) -> float | None:
    """The fastest step of a plan that uses every device, where the best one does not. None where no
    such plan is proved to fit."""
    if not best.plan.idle:
        return None
    whole = [plan for plan in tried if not plan.plan.idle]
    if not whole:
        rows = [
            (float(times[row]), group, row)
            for group in checked
            if group.group.layout.devices == group.group.job.cluster.devices and group.fits.any()
            for times in (np.where(group.fits, group.step_s, np.inf),)
            for row in (int(times.argmin()),)
        ]
        rows.sort(key=lambda entry: entry[0])
        whole = list(islice(_simulated(rows, None), SIMULATED_AT_LEAST))
    proved = _proved(sorted(whole, key=lambda plan: plan.step_s))
    return min((plan.step_s for plan in islice(proved, COMPARED)), default=None)


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
    order: list[int] = np.argsort(times, kind="stable")[: 40 * SIMULATED].tolist()
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
    best: Entry = (float(checked.step_s[row]), checked, row)
    if checked.group.layout.virtual > 1 or checked.group.layout.stages == 1:
        return best
    for _ in range(16):
        start, current, place = best
        moved = _moves(current.group, place)
        if not len(moved.layers):
            break
        there = check(moved)
        times = np.where(there.fits, there.step_s, np.inf)
        if times.min() >= start * (1 - 1e-6):
            break
        best = float(times.min()), there, int(times.argmin())
    return best


def _moves(group: Group, row: int) -> Group:
    """Every row that differs from this one by a layer moved between two stages."""
    layers = group.layers[row]
    stages = len(layers)
    givers = [stage for stage in range(stages) if layers[stage] > 1]
    if stages > 16:  # the fullest stages alone
        givers = sorted(givers, key=lambda stage: -int(layers[stage]))[:4]
    unit_vectors: Ints = np.eye(stages, dtype=np.int64)
    rows: list[Ints] = [
        layers + unit_vectors[target] - unit_vectors[source]
        for source in givers
        for target in range(stages)
        if target != source
    ]
    moved = group.only(np.full(len(rows), row, dtype=np.int64))
    return replace(moved, layers=np.array(rows, dtype=np.int64).reshape(-1, stages))


def _simulated(rows: list[Entry], progress: Progress | None) -> Iterator[Tried]:
    best, done, count = float("inf"), 0, 0
    seen: set[object] = set()
    alike: Counter[object] = Counter()
    if progress is not None:
        progress(0, SIMULATED)
    for estimate_s, checked, row in rows:
        enough = count >= SIMULATED or (count >= SIMULATED_AT_LEAST and done > OPS)
        if enough or (count and estimate_s > MARGIN * best):
            break
        key = _same_program(checked, row)
        group = checked.group
        family = replace(group.layout, layers="equal"), group.job.batch.micro_batch
        if key in seen or alike[family] >= ALIKE:
            continue
        seen.add(key)
        alike[family] += 1
        plan = plan_of_row(checked.group, row, checked.recovery[row])
        step_s, ops = timed(plan)
        done, count = done + ops, count + 1
        if progress is not None:
            progress(count, SIMULATED)
        if step_s is not None:
            best = min(best, step_s)
            yield Tried(plan, estimate_s, step_s)


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
        if len(seen) >= SPLIT:
            return
        if key in seen or _filled_s(entry) > best_s:
            continue
        for split in _in_split_orders(plan_of_row(checked.group, row, checked.recovery[row])):
            fit = check(group_of_plan(split))
            if not fit.fits.all():
                continue
            seen.add(key)
            step_s, _ = timed(split)
            if step_s is not None and step_s <= bar_s:
                best_s = min(best_s, step_s)
                yield Tried(split, float(fit.step_s[0]), step_s)


def _filled_s(entry: Entry) -> float:
    """About what a row's step takes where weight gradients fill the waits of its pipeline."""
    estimate_s, checked, _ = entry
    waits, micro_batches = checked.group.layout.pipeline - 1, checked.group.micro_batches
    return estimate_s * (1 - FILLED * waits / (micro_batches + waits))


def _in_split_orders(plan: Plan) -> Iterator[Plan]:
    """A plan in each order that splits backward and may be tried on it."""
    if any(mode.again for mode in plan.alike.recovery):
        return
    for name in split_orders_tried(plan.job, plan.strategy, plan.layout):
        strategy = replace(plan.strategy, skeleton=name)
        yield replace(plan, job=in_split_order(plan.job, name), strategy=strategy)


def _proved(simulated: Iterable[Tried]) -> Iterator[Tried]:
    """Those whose whole program is proved to run and to fit, with its step."""
    done, count = 0, 0
    for tried in simulated:
        if count >= PROVED or (count >= PROVED_AT_LEAST and done > PROVED_OPS):
            return
        plan = tried.plan
        whole = proof(plan.strategy, plan.setup, plan.choices)
        if whole.verdict.sound:
            costs = costs_of(plan, whole.short.setup)
            simulated_whole = simulate_proved(whole, costs, steps=STEPS)
            done, count = done + simulated_whole.ops_simulated, count + 1
            bound_bytes = max((b.total_bytes for b in whole.verdict.bounds), default=0)
            step_s = simulated_whole.step_time_s
            yield replace(tried, proved=whole, step_s=step_s, bound_bytes=bound_bytes)
