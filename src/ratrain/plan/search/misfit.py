"""Rows that memory rejects: what they miss, where, and the smallest change that would make room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ratrain.describe.job import JobSpec
from ratrain.describe.ranges import STAGES, write_list
from ratrain.describe.units import format_bytes
from ratrain.errors import Infeasible, RatrainError
from ratrain.plan.layout.enumerate import Group, groups_of
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.plan import MODES, Plan, plan_of_row
from ratrain.plan.layout.tiers import leaner_jobs
from ratrain.plan.price.bill import FORWARD, NONE, bill_of
from ratrain.plan.price.estimate import estimate
from ratrain.plan.price.fitted import fitted
from ratrain.plan.search.fit import require_room
from ratrain.plan.search.layouts import Checked, Progress, Search, search_layouts
from ratrain.plan.search.limits import DOUBLINGS
from ratrain.program.replicas import Recovery
from ratrain.program.text.family_groups import takes


@dataclass(frozen=True)
class Misfit:
    """A configuration that does not fit: bytes missing on its fullest stage, its largest item
    there, and what else is changed in the nearest one that fits ("" where none is near)."""

    plan: Plan
    step_s: float
    stage: int
    missing_bytes: int
    item: str
    item_bytes: int
    change: str


def misfits(search: Search, count: int) -> list[Misfit]:
    """The nearest rejected rows that would be faster than the best plan, one for each degrees.

    Where nothing fits: the nearest of all.
    """
    bar_s = search.best.step_s if search.tried else np.inf
    nearest: list[tuple[int, float, Checked, int]] = []
    keeping = [kept for checked in search.checked for kept in _keeping(checked)]
    for checked in (*search.checked, *keeping):
        rows = np.flatnonzero(~checked.fits & (checked.step_s < bar_s))
        if len(rows):
            row = int(rows[checked.missing_bytes[rows].argmin()])
            nearest.append(
                (int(checked.missing_bytes[row]), float(checked.step_s[row]), checked, row)
            )
    nearest.sort(key=lambda entry: entry[:2])
    seen: set[object] = set()
    chosen: list[Misfit] = []
    for _, _, checked, row in nearest:
        degrees = _degrees(checked.group)
        if degrees not in seen and len(chosen) < count:
            seen.add(degrees)
            chosen.append(misfit(checked, row, _change(search, checked, row)))
    return chosen


def _keeping(checked: Checked) -> Iterator[Checked]:
    """Rows that fit because they recover, as if they kept everything."""
    group = checked.group
    free = group.job.schedule.recovery == "auto" and group.strategy.recovery is Recovery.FORWARD
    rows = np.flatnonzero(checked.fits & (checked.recovery != NONE).any(axis=1))
    if free and len(rows):
        kept = group.only(rows)
        recovery = np.full(kept.layers.shape, NONE, dtype=np.int64)
        missing = (bill_of(kept, recovery).total - kept.budgets).max(axis=1)
        yield Checked(kept, recovery, missing, estimate(kept, recovery).step_s)


def misfit(checked: Checked, row: int, change: str) -> Misfit:
    """The `Misfit` of a row."""
    group = checked.group.only(np.array([row]))
    billed = bill_of(group, checked.recovery[row : row + 1])
    stage = int((billed.total[0] - group.budgets).argmax())
    items = {name: int(size[0, stage]) for name, size in billed.items.items()}
    item = max(items, key=lambda name: items[name])
    return Misfit(
        plan_of_row(checked.group, row, checked.recovery[row]),
        float(checked.step_s[row]),
        stage,
        int(checked.missing_bytes[row]),
        item,
        items[item],
        change,
    )


def nothing_fits(search: Search) -> Infeasible:
    """Which device, which item, how many bytes are missing, and the cheapest way out."""
    near = misfits(search, 1)[0]
    job, layout = search.job, near.plan.layout
    device = near.plan.by_number[0][near.stage % layout.pipeline][0]
    budget = job.budget_of(device.kind)
    needed = budget + near.missing_bytes
    ways = [f'set memory_budget = "{_rounded_up(needed)}"']
    if needed > device.kind.memory.capacity_bytes:
        ways = [f"use devices with at least {_rounded_up(needed, ' ')}"]
    more = _enough_devices(job)
    if more:
        ways.insert(0, f"use {more} devices")
    return Infeasible(
        f"nothing fits {_in_words(job.budgets)}: the nearest of {search.checks:,} "
        f"configurations (pipeline {layout.pipeline} x data {layout.data} x tensor "
        f"{layout.tensor}, micro-batch {near.plan.job.batch.micro_batch}) is "
        f"{format_bytes(near.missing_bytes)} short on stage {near.stage} (device {device.index}, "
        f"{device.kind.name}, {format_bytes(budget)}), where {takes(near.item)} "
        f"{format_bytes(near.item_bytes)}",
        place=str(job.path or "job"),
        fix=", or ".join(ways),
    )


def _in_words(budgets: Sequence[int]) -> str:
    """ "20 GB", or "devices of 24 GB and 8 GB" where they differ."""
    sizes = [format_bytes(size) for size in budgets]
    return sizes[0] if len(sizes) == 1 else f"devices of {', '.join(sizes[:-1])} and {sizes[-1]}"


def _rounded_up(size_bytes: int, gap: str = "") -> str:
    """A size that is at least this one, in tenths of a GB, or in MB where it is small; `gap`
    stands before the unit."""
    if size_bytes < 1_000_000_000:
        return f"{-(-size_bytes // 1_000_000)}{gap}MB"
    return f"{-(-size_bytes // 100_000_000) / 10:g}{gap}GB"


def _enough_devices(job: JobSpec) -> int | None:
    """A doubling of the devices (and sequences, where they must divide) at which something fits."""
    for doubling in range(1, DOUBLINGS + 1):
        count = job.cluster.devices << doubling
        size = job.cluster.spec.size
        if count > 4096 or (size is not None and count > size):
            return None
        larger = replace(job, cluster=replace(job.cluster, devices=count))
        try:
            if larger.budgets == job.budgets and any(_some_fit(larger)):
                return count
        except RatrainError:
            return None
    return None


def _some_fit(job: JobSpec) -> Iterator[bool]:
    for group in groups_of(job):
        yield bool((fitted(group)[1] <= 0).any())


def _degrees(group: Group) -> tuple[int, int, int, int]:
    layout = group.layout
    return layout.pipeline, layout.data, layout.tensor, layout.virtual


def _change(search: Search, checked: Checked, row: int) -> str:
    """What differs in the nearest row of the same degrees that fits: fewest axes, then fastest."""
    axes = _axes(checked, row)
    best: tuple[int, float] | None = None
    words = ""
    for other in search.checked:
        if _degrees(other.group) != _degrees(checked.group) or not other.fits.any():
            continue
        for candidate_row in np.flatnonzero(other.fits).tolist():
            theirs = _axes(other, candidate_row)
            pairs = zip(theirs, axes, strict=True)
            differing = [words for (value, words), (mine, _) in pairs if value != mine]
            key = (len(differing), float(other.step_s[candidate_row]))
            if best is None or key < best:
                best, words = key, "; ".join(filter(None, differing))
    return words


def _axes(checked: Checked, row: int) -> list[tuple[object, str]]:
    """What a row is but for its degrees; and as it follows "it would fit with"."""
    group, ahead = checked.group, bool((checked.recovery[row] == FORWARD).any())
    modes = [MODES[int(code)] for code in checked.recovery[row]]
    mode = group.modes[int(group.mode[row])]
    where = "sharded" if mode.sharded_gradients else "local"
    no = "" if group.layout.sequence_parallel else "no "
    words = (
        f"order {group.strategy.skeleton}",
        f"{no}sequence parallelism",
        f"micro-batch {group.job.batch.micro_batch}",
        f"sharding level {mode.sharding} (ZeRO-{mode.sharding}), {where} gradients",
        f"recovery buffer {int(group.buffer[row])}" if ahead else "",
        f"layers of stages {write_list(group.layers[row].tolist(), STAGES)}",
        f"device kinds {'reversed' if group.reversed_kinds else 'as listed'}",
    )
    return [(modes, _recovery_in_words(modes)), *zip(words, words, strict=True)]


_TOLD = {
    Recovery.FORWARD: "recomputed",
    Recovery.BACKWARD: "recomputed in backward",
    Recovery.SELECTIVE: "kept without attention scores",
    Recovery.SPILL: "kept in another tier",
    Recovery.NONE: "kept",
}


def _recovery_in_words(modes: Sequence[Recovery]) -> str:
    """ "activations recomputed on 2 of 8 stages, kept on 6"."""
    first, *others = [mode for mode in _TOLD if mode in modes]
    if not others:
        return f"activations {_TOLD[first]} on every stage"
    parts = [f"activations {_TOLD[first]} on {modes.count(first)} of {len(modes)} stages"]
    parts += [f"{_TOLD[mode]} on {modes.count(mode)}" for mode in others]
    return ", ".join(parts)


def planned(job: JobSpec, progress: Progress | None = None) -> Search:
    """The `Search` of a job, with at least one plan that is proved to fit. Where none is, gradients
    in buckets are tried too, and optimizer states in other memory tiers."""
    result = search_layouts(job, progress)
    if result.tried:
        return result
    for leaner in leaner_jobs(job, strategy_of(job)):
        other = search_layouts(leaner, progress)
        if other.tried:
            return other
    if result.fitting and job.optimizer_tier:
        require_room(job)
    if result.fitting:
        raise Infeasible(
            f"by closed formula {result.fitting:,} plans fit, but the verifier could prove none of "
            f"the best {result.simulated}",
            place=str(job.path or "job"),
            fix="set a smaller memory_budget, so that plans that need less are tried, or use "
            "another schedule",
        )
    raise nothing_fits(result)
