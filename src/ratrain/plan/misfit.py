"""Rows that memory rejects: what they miss, where, and the smallest change that would make room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ratrain.describe.job import JobSpec
from ratrain.describe.units import format_bytes
from ratrain.errors import Infeasible, RatrainError
from ratrain.plan.bill import FORWARD, NONE, bill
from ratrain.plan.build import MODES, Candidate, candidate
from ratrain.plan.enumerate import Group, groups_of
from ratrain.plan.estimate import estimate
from ratrain.plan.ranges import runs
from ratrain.plan.search import Checked, Search, fitted
from ratrain.program.setup import Recovery

DOUBLINGS = 6
"""How many times the devices are doubled in search of a number that suffices."""


@dataclass(frozen=True)
class Misfit:
    """A configuration that does not fit: bytes missing on its fullest stage, its largest item
    there, and what else is changed in the nearest one that fits ("" where none is near)."""

    candidate: Candidate
    step_s: float
    stage: int
    missing_bytes: int
    item: str
    item_bytes: int
    change: str


def misfits(found: Search, count: int) -> list[Misfit]:
    """The nearest rejected rows that would be faster than the best plan, one for each degrees.

    Where nothing fits: the nearest of all.
    """
    bar_s = found.best.step_s if found.tried else np.inf
    nearest: list[tuple[int, float, Checked, int]] = []
    keeping = [kept for one in found.checked for kept in _keeping(one)]
    for one in (*found.checked, *keeping):
        rows = np.flatnonzero(~one.fits & (one.step_s < bar_s))
        if len(rows):
            row = int(rows[one.missing_bytes[rows].argmin()])
            nearest.append((int(one.missing_bytes[row]), float(one.step_s[row]), one, row))
    nearest.sort(key=lambda entry: entry[:2])
    seen: set[object] = set()
    chosen: list[Misfit] = []
    for _, _, one, row in nearest:
        degrees = _degrees(one.group)
        if degrees not in seen and len(chosen) < count:
            seen.add(degrees)
            chosen.append(misfit(one, row, _change(found, one, row)))
    return chosen


def _keeping(one: Checked) -> Iterator[Checked]:
    """Rows that fit because they recover, as if they kept everything."""
    group = one.group
    free = group.job.schedule.recovery == "auto" and group.strategy.recovery is Recovery.FORWARD
    rows = np.flatnonzero(one.fits & (one.recovery != NONE).any(axis=1))
    if free and len(rows):
        kept = group.only(rows)
        recovery = np.full(kept.layers.shape, NONE, dtype=np.int64)
        missing = bill(kept, recovery).total.max(axis=1) - group.job.budget_bytes
        yield Checked(kept, recovery, missing, estimate(kept, recovery).step_s)


def misfit(one: Checked, row: int, change: str) -> Misfit:
    """The `Misfit` of a row."""
    group = one.group.only(np.array([row]))
    billed = bill(group, one.recovery[row : row + 1])
    stage = int(billed.total[0].argmax())
    items = {name: int(size[0, stage]) for name, size in billed.items.items()}
    item = max(items, key=lambda name: items[name])
    return Misfit(
        candidate(one.group, row, one.recovery[row]),
        float(one.step_s[row]),
        stage,
        int(one.missing_bytes[row]),
        item,
        items[item],
        change,
    )


def nothing_fits(found: Search) -> Infeasible:
    """Which device, which item, how many bytes are missing, and the cheapest way out."""
    near = misfits(found, 1)[0]
    job, layout = found.job, near.candidate.layout
    device = near.candidate.placement.device(near.stage % layout.pipeline, 0)
    budget = job.budget_bytes + near.missing_bytes
    ways = [f'set memory_budget = "{_rounded_up(budget)}"']
    if budget > min(d.kind.memory.capacity_bytes for d in job.cluster.members()):
        ways = [f"use devices with {_rounded_up(budget)}"]
    more = _enough_devices(job)
    if more:
        ways.insert(0, f"use {more} devices")
    return Infeasible(
        f"nothing fits {format_bytes(job.budget_bytes)}: the nearest of {found.checks:,} "
        f"configurations (pipeline {layout.pipeline} x data {layout.data} x tensor "
        f"{layout.tensor}, micro-batch {near.candidate.job.batch.micro_batch}) misses "
        f"{format_bytes(near.missing_bytes)} on stage {near.stage} (device {device.index}, "
        f"{device.kind.name}), of which {near.item} takes {format_bytes(near.item_bytes)}",
        place=str(job.path or "job"),
        fix=", or ".join(ways),
    )


def _rounded_up(size_bytes: int) -> str:
    """A size that is at least this one, in tenths of a GB, or in MB where it is small."""
    if size_bytes < 1_000_000_000:
        return f"{-(-size_bytes // 1_000_000)}MB"
    return f"{-(-size_bytes // 100_000_000) / 10:g}GB"


def _enough_devices(job: JobSpec) -> int | None:
    """A doubling of the devices (and sequences, where they must divide) at which something fits."""
    for doubling in range(1, DOUBLINGS + 1):
        count = job.cluster.devices << doubling
        size = job.cluster.spec.size
        if count > 4096 or (size is not None and count > size):
            return None
        larger = replace(job, cluster=replace(job.cluster, devices=count))
        try:
            if larger.budget_bytes == job.budget_bytes and any(_some_fit(larger)):
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


_AXES = (
    "recovery",
    "sequence parallelism",
    "micro-batch",
    "state mode",
    "buffer",
    "layers",
    "order of kinds",
)


def _change(found: Search, one: Checked, row: int) -> str:
    """What differs in the nearest row of the same degrees that fits: fewest axes, then fastest."""
    own = _axes(one, row)
    best: tuple[int, float] | None = None
    words = ""
    for other in found.checked:
        if _degrees(other.group) != _degrees(one.group) or not other.fits.any():
            continue
        for candidate_row in np.flatnonzero(other.fits).tolist():
            theirs = _axes(other, candidate_row)
            differing = [name for name in _AXES if theirs[name] != own[name]]
            key = (len(differing), float(other.step_s[candidate_row]))
            if best is None or key < best:
                best = key
                words = "; ".join(f"{name} {theirs[name]}" for name in differing if theirs[name])
    return words


def _axes(one: Checked, row: int) -> dict[str, str]:
    group, ahead = one.group, bool((one.recovery[row] == FORWARD).any())
    modes = [MODES[int(code)] for code in one.recovery[row]]
    mode = group.modes[int(group.mode[row])]
    where = "sharded" if mode.sharded_gradients else "local"
    return {
        "sequence parallelism": "on" if group.layout.sequence_parallel else "off",
        "micro-batch": str(group.job.batch.micro_batch),
        "state mode": f"sharding {mode.sharding} with {where} gradients",
        "buffer": str(int(group.buffer[row])) if ahead else "",
        "layers": runs(group.layers[row].tolist()),
        "recovery": runs([mode.value for mode in modes]),
        "order of kinds": "reversed" if group.reversed_kinds else "as listed",
    }
