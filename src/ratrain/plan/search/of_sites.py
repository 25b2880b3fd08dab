"""The search for plans of sites that differ and average weights between each other.

What a site's replicas do inside a step concerns no other site, so each is planned by itself, for
several shares of a step's sequences about those that its devices are worth: all layouts of its
devices, by closed formulas. Sites are then put together: of each the fastest layout of a tensor
degree, which may be another one at each site; all have one way to share states (a site of one
replica has nothing to share), and one compute order, as one program has. They are ranked by what
the slowest site takes and what averages take beyond what hides them, since how a site is divided
says through how many ports its averages leave. The best are proved and simulated.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import inf

import numpy as np

from ratrain.describe.cluster import Device
from ratrain.describe.job import Batch, JobSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.file.form import file_of_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.enumerate import StateMode, groups_of
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.placement import PlacedReplica, devices_of_sites
from ratrain.plan.layout.plan import Plan, plan_of_row
from ratrain.plan.price.kind_speed import kind_speed, least_step_s
from ratrain.plan.price.places import PlanCosts
from ratrain.plan.search.layouts import Checked, Progress, check
from ratrain.plan.search.tried import Tried, step_of, tried_plan
from ratrain.plan.search.unequal import UnequalSearch
from ratrain.program.kind import Kind
from ratrain.program.units import unit_columns

NEAR = 3
"""Shares of a step of each sort that are tried for a site."""
SIMULATED = 12
"""Plans simulated at most."""
PRICED = 300
"""Of how many the averages are priced at most: those whose step without them is the shortest."""
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

    @property
    def divides(self) -> bool:
        """Whether tensor groups divide sequences."""
        return self.checked.group.layout.sequence_parallel


@dataclass(frozen=True)
class Ranked:
    """Sites put together: who owns what, what each does, what the slowest takes by itself, and what
    a step takes with its part of the averages."""

    mode: StateMode
    options: tuple[_Option, ...]
    alone_s: float
    estimate_s: float


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
    ranked, count = best_of_sites(job)
    found: list[Tried] = []
    for number, entry in enumerate(ranked):
        if progress is not None:
            progress(number, len(ranked))
        tried = tried_of(job, entry)
        if tried is not None and tried.step_s < known_s:
            found.append(tried)
    return UnequalSearch(
        tuple(sorted(found, key=step_of)),
        (),
        count,
        0,
        len(ranked),
        inf,
        least_step_s(job, job.cluster.members()),
        (),
        time.perf_counter() - began,
    )


def best_of_sites(job: JobSpec) -> tuple[list[Ranked], int]:
    """Those to simulate, the best first, and out of how many. With averages none takes less than
    without, so that whatever is slower without them than the last of these is with them is not
    priced."""
    every = sorted(_every(job), key=lambda entry: entry.alone_s)
    best: list[Ranked] = []
    for entry in every[:PRICED]:
        if len(best) == SIMULATED and entry.alone_s >= best[-1].estimate_s:
            break
        with suppress(SpecError, ProgramError):  # no program does it
            insort(best, _priced(job, entry), key=lambda each: each.estimate_s)
        del best[SIMULATED:]
    return best, len(every)


def _priced(job: JobSpec, entry: Ranked) -> Ranked:
    """With what averages take of a mean step beyond what hides them, on the rank that has the most:
    all of the step where they start early, else its last backward."""
    plan = _assembled(job, entry)
    setup = replace(plan.setup, sharding=entry.mode.sharding)
    costs, rank = PlanCosts(plan).of(setup), unit_columns(setup).rank
    averages = costs.work[Kind.AverageCopy]
    rates = np.append(costs.link_rate_bytes_per_s, inf)  # the last, -1: of no link
    took_s = averages.fixed_s + averages.volume_bytes / rates[averages.link]
    sent_s = np.bincount(rank, took_s) / (job.schedule.average_every or 1)
    hides_s = entry.alone_s
    if job.schedule.averages != "early-start":
        hides_s = np.bincount(rank, costs.work[Kind.B].fixed_s)
    exposed_s = np.maximum(sent_s - hides_s, 0.0)
    return replace(entry, estimate_s=entry.alone_s + float(exposed_s.max()))


def _every(job: JobSpec) -> Iterator[Ranked]:
    """Sites put together in all ways, not priced yet."""
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


def _together(sites: Sequence[Mapping[Key, _Option]]) -> Iterator[Ranked]:
    """What sites can do together, each once: of each the fastest of every tensor degree."""
    made: dict[object, Ranked] = {}
    modes = {key[2] for of_site in sites for key in of_site if key[2] is not None}
    for divides in sorted({key[1] for of_site in sites for key in of_site}):
        for mode in modes or {WHOLE}:
            for options in product(*(_fastest(of_site, divides, mode) for of_site in sites)):
                divided = any(option.divides for option in options)
                shared = _shared(options, mode)
                if shared is not None and divided == divides:
                    alone_s = max(option.step_s for option in options)
                    made[shared, *map(id, options)] = Ranked(shared, options, alone_s, alone_s)
    yield from made.values()


def _fastest(of_site: Mapping[Key, _Option], divides: bool, mode: StateMode) -> list[_Option]:
    """A site's fastest layout of each tensor degree in a mode, in which one replica shares nothing.
    `divides`: groups divide sequences; one rank alone has nothing to divide."""
    fastest: dict[int, _Option] = {}
    for (tensor, divided, shared), option in of_site.items():
        if shared in (mode, None) and (tensor == 1 or divided == divides):
            known = fastest.get(tensor)
            fastest[tensor] = min((known or option, option), key=lambda each: each.step_s)
    return list(fastest.values())


def _shared(options: Sequence[_Option], mode: StateMode) -> StateMode | None:
    """How sites share states that would do so in a mode; None where they do not meet alike."""
    counts = {option.checked.group.layout.data for option in options}
    if counts == {1}:
        return WHOLE
    meets_often = mode.sharding == 3 or mode.sharded_gradients
    return None if len(counts) > 1 and meets_often else mode


def tried_of(job: JobSpec, entry: Ranked) -> Tried | None:
    """The plan as simulated; None where no program does it, or it does not fit, or sites do not
    differ in it."""
    try:
        plan = plan_of_file(file_of_plan(_assembled(job, entry)), str(job.path or "job"), job)
        return None if plan.is_layout else tried_plan(plan, entry.estimate_s)[0]
    except (SpecError, ProgramError):
        return None


def _assembled(job: JobSpec, entry: Ranked) -> Plan:
    """One plan of several sites'."""
    parts = [option.plan() for option in entry.options]
    replicas = [replica for part in parts for replica in part.replicas]
    first, numbered = 0, list[PlacedReplica]()
    for replica in replicas:
        members = tuple(range(first, first + len(replica.members)))
        seats = replace(replica.seats, members=members)
        numbered.append(replace(replica, seats=seats, entry=len(numbered)))
        first += len(members)
    whole = replace(job, layout=None, batch=Batch(job.batch.sequences, 1))
    return Plan(
        whole,
        tuple(numbered),
        replace(strategy_of(job), sharding=entry.mode.sharding),
        entry.mode,
        max(part.buffer for part in parts),
        any(part.sequence_parallel for part in parts),
    )
