"""The search for plans of sites that differ and average weights between each other.

What a site's replicas do inside a step concerns no other site, so each is planned by itself, for
several shares of a step's sequences about those that its devices are worth: all layouts of its
devices, ranked by closed formulas without averages. Sites are then put together whose slowest takes
least. All have one tensor degree, one way to share states (a site of one replica has nothing to
share), and one compute order, as one program has. The best are proved and simulated, averages and
all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import inf

import numpy as np

from ratrain.describe.cluster import Device
from ratrain.describe.job import Batch, JobSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.file.writing import file_of_plan
from ratrain.plan.layout.enumerate import StateMode, groups_of
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.placement import devices_of_sites
from ratrain.plan.layout.plan import Plan, plan_of_row
from ratrain.plan.layout.replica import PlacedReplica
from ratrain.plan.price.kind_speed import kind_speed, least_step_s
from ratrain.plan.search.layouts import Checked, Progress, check
from ratrain.plan.search.tried import Tried, step_of, tried_plan
from ratrain.plan.search.unequal import UnequalSearch

NEAR = 3
"""Shares of a step of each sort that are tried for a site."""
SIMULATED = 12
"""Plans simulated at most."""
WHOLE = StateMode(0, False)

Key = tuple[int, bool, StateMode | None]
"""The tensor degree, whether it divides sequences, and who owns what; None: one replica has all."""


@dataclass(frozen=True)
class _Option:
    """A row of a site: its plan inside the site, and what its step takes by closed formula."""

    checked: Checked
    row: int
    step_s: float

    def plan(self) -> Plan:
        return plan_of_row(self.checked.group, self.row, self.checked.recovery[self.row])


def sites_differ(job: JobSpec) -> bool:
    """Whether sites that average weights have other devices than each other, and may do otherwise
    than each other."""
    held = devices_of_sites(job, job.cluster.members())
    kinds = [sorted(device.kind.name for device in devices) for devices in held]
    return job.schedule.replicas != "identical" and any(of != kinds[0] for of in kinds)


def sites_search(
    job: JobSpec, known_s: float, progress: Progress | None = None
) -> UnequalSearch[Tried]:
    """What is found that is faster than `known_s`, the fastest first."""
    began = time.perf_counter()
    ranked = sorted(_ranked(job), key=lambda entry: entry[0])
    found: list[Tried] = []
    for number, (estimate_s, mode, options) in enumerate(islice(ranked, SIMULATED)):
        if progress is not None:
            progress(number, min(len(ranked), SIMULATED))
        tried = _tried(job, estimate_s, mode, options)
        if tried is not None and tried.step_s < known_s:
            found.append(tried)
    return UnequalSearch(
        tuple(sorted(found, key=step_of)),
        (),
        len(ranked),
        0,
        min(len(ranked), SIMULATED),
        inf,
        least_step_s(job, job.cluster.members()),
        (),
        time.perf_counter() - began,
    )


def _ranked(job: JobSpec) -> Iterator[tuple[float, StateMode, tuple[_Option, ...]]]:
    """Sites put together: what the slowest takes, who owns what, and what each does."""
    devices = devices_of_sites(job, job.cluster.members())
    known: dict[tuple[int, int], Mapping[Key, _Option]] = {}
    for shares in _shares(job, [len(of_site) for of_site in devices], _worth(job, devices)):
        for site in enumerate(shares):
            if site not in known:
                known[site] = _options(job, devices[site[0]], site[1])
        yield from _together([known[site] for site in enumerate(shares)])


def _worth(job: JobSpec, devices: Sequence[Sequence[Device]]) -> list[float]:
    """The part of all devices that each site's are."""
    rates = [sum(1 / kind_speed(job, d.kind).layer_s for d in of_site) for of_site in devices]
    return [rate / sum(rates) for rate in rates]


def _shares(
    job: JobSpec, counts: Sequence[int], worth: Sequence[float]
) -> Iterator[tuple[int, ...]]:
    """Numbers of sequences for each site, about what it is worth: the nearest ones, and the nearest
    that its devices divide, or those of the last site do, which takes what is left."""
    whole = job.batch.sequences
    near: list[list[int]] = []
    for part, count in zip(worth[:-1], counts, strict=False):
        every = sorted(range(1, whole), key=lambda share: abs(share - part * whole))
        divided = [share for share in every if share % count == 0]
        leaving = [share for share in every if (whole - share) % counts[-1] == 0]
        near.append(list(dict.fromkeys((*every[:NEAR], *divided[:NEAR], *leaving[:NEAR]))))
    for shares in product(*near):
        if sum(shares) < whole:
            yield *shares, whole - sum(shares)


def _options(job: JobSpec, devices: Sequence[Device], share: int) -> Mapping[Key, _Option]:
    """The fastest row of each sort of a site's layouts for a share of a step."""
    schedule = replace(
        job.schedule,
        average_every=None,
        averages="local-sgd",
        average_between="replicas",
        average_turns={},
        average_wire="fp32",
    )
    train = replace(job.train, outer_learning_rate=None)
    alone = replace(job, schedule=schedule, train=train, batch=Batch(share, job.batch.micro_batch))
    best: dict[Key, _Option] = {}
    for group in groups_of(alone, devices):
        checked = check(group)
        layout = group.layout
        for number, mode in enumerate(group.modes):
            times = np.where(checked.fits & (group.mode == number), checked.step_s, inf)
            row = int(times.argmin())
            key = layout.tensor, layout.sequence_parallel, mode if layout.data > 1 else None
            known_s = best[key].step_s if key in best else inf
            if times[row] < known_s:
                best[key] = _Option(checked, row, float(times[row]))
    return best


def _together(
    sites: Sequence[Mapping[Key, _Option]],
) -> Iterator[tuple[float, StateMode, tuple[_Option, ...]]]:
    """What sites can do together, each once."""
    made: dict[object, tuple[StateMode, tuple[_Option, ...]]] = {}
    degrees = {key[:2] for of_site in sites for key in of_site}
    modes = {key[2] for of_site in sites for key in of_site if key[2] is not None}
    for tensor, divides in degrees:
        for mode in modes or {WHOLE}:
            found: list[_Option] = []
            for of_site in sites:
                both = (of_site.get((tensor, divides, each)) for each in (mode, None))
                fit = [option for option in both if option is not None]
                found += [min(fit, key=lambda option: option.step_s)] if fit else []
            if len(found) == len(sites) and (shared := _shared(found, mode)) is not None:
                made[shared, *map(id, found)] = shared, tuple(found)
    for mode, options in made.values():
        yield max(option.step_s for option in options), mode, options


def _shared(options: Sequence[_Option], mode: StateMode) -> StateMode | None:
    """How sites share states that would do so in a mode; None where they do not meet alike."""
    counts = {option.checked.group.layout.data for option in options}
    if counts == {1}:
        return WHOLE
    meets_often = mode.sharding == 3 or mode.sharded_gradients
    return None if len(counts) > 1 and meets_often else mode


def _tried(
    job: JobSpec, estimate_s: float, mode: StateMode, options: Sequence[_Option]
) -> Tried | None:
    """The plan as simulated; None where no program does it, or it does not fit, or sites do not
    differ in it."""
    try:
        plan = _joined(job, mode, [option.plan() for option in options])
        return None if plan.is_layout else tried_plan(plan, estimate_s)[0]
    except (SpecError, ProgramError):
        return None


def _joined(job: JobSpec, mode: StateMode, parts: Sequence[Plan]) -> Plan:
    """One plan of several sites', as it is read from its file."""
    replicas = [replica for part in parts for replica in part.replicas]
    first, numbered = 0, list[PlacedReplica]()
    for replica in replicas:
        members = tuple(range(first, first + len(replica.members)))
        seats = replace(replica.seats, members=members)
        numbered.append(replace(replica, seats=seats, entry=len(numbered)))
        first += len(members)
    whole = replace(job, layout=None, batch=Batch(job.batch.sequences, 1))
    plan = Plan(
        whole,
        tuple(numbered),
        replace(strategy_of(job), sharding=mode.sharding),
        mode,
        max(part.buffer for part in parts),
        parts[0].sequence_parallel,
    )
    return plan_of_file(file_of_plan(plan), str(job.path or "job"), job)
