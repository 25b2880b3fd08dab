"""The search: enumerate and prune by memory, rank by closed formulas, simulate the best.

What a stage keeps follows from its memory: everything where that fits, else all but attention's
scores (where those are stored), else it recovers ahead of backward, else when backward arrives.
Keeping more never makes a stage slower, so nothing is lost by not trying the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ratrain.describe.job import JobSpec
from ratrain.plan.bill import BACKWARD, FORWARD, NONE, SELECTIVE, bill
from ratrain.plan.build import Candidate, candidate
from ratrain.plan.durations import costs_of
from ratrain.plan.enumerate import Group, groups_of, no_group
from ratrain.plan.estimate import estimate
from ratrain.plan.sizes import stores_scores
from ratrain.program.setup import Recovery, Replica, Setup
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Strategy, apply_strategy
from ratrain.program.units import Bools, Ints
from ratrain.program.verify import Verdict, verify
from ratrain.simulate.costs import Floats
from ratrain.simulate.simulate import simulate

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
class Tried:
    """A plan that was simulated: its estimate, its simulated step and its proved bound."""

    candidate: Candidate
    estimate_s: float
    step_s: float
    bound_bytes: int

    @property
    def gap(self) -> float:
        """(estimate - simulation) / simulation."""
        return self.estimate_s / self.step_s - 1


@dataclass(frozen=True)
class Search:
    """What a search found: plans simulated, best first, and every row that was checked."""

    job: JobSpec
    tried: tuple[Tried, ...]
    checked: tuple[Checked, ...] = field(repr=False)
    checks: int  # rows checked against memory
    fitting: int
    check_s: float  # time of the check and the estimate
    total_s: float

    @property
    def best(self) -> Tried:
        return self.tried[0]

    @property
    def mean_gap(self) -> float:
        """Mean absolute gap between closed form and simulation, over the plans simulated."""
        return sum(abs(one.gap) for one in self.tried) / len(self.tried)


def search(job: JobSpec, progress: Progress | None = None) -> Search:
    """The `Search` of a job. Where nothing fits it has no `tried`."""
    began = time.perf_counter()
    checked = tuple(check(group) for group in groups_of(job))
    if not checked:
        raise no_group(job)
    check_s = time.perf_counter() - began
    ranked = _ranked(checked)
    refined = [_refined(one, row) for _, one, row in ranked[:REFINED]]
    rows = sorted(
        [*refined, *ranked[: 4 * SIMULATED]], key=lambda entry: (entry[0], len(entry[1].group))
    )
    tried = sorted(_simulated(rows, progress), key=lambda one: one.step_s)
    return Search(
        job,
        tuple(tried),
        checked,
        sum(len(one.group) for one in checked),
        sum(int(one.fits.sum()) for one in checked),
        check_s,
        time.perf_counter() - began,
    )


def check(group: Group) -> Checked:
    """Memory and step time of every row, each stage in the first recovery mode that fits."""
    recovery, missing = fitted(group)
    return Checked(group, recovery, missing, estimate(group, recovery).step_s)


def fitted(group: Group) -> tuple[Ints, Ints]:
    """Recovery codes (rows x stages), and bytes that the fullest rank is over its budget."""
    budget, shape = group.job.budget_bytes, (len(group), group.layout.stages)
    codes = _codes(group)
    chosen = np.full(shape, codes[-1], dtype=np.int64)
    if group.job.schedule.recovery == "exempt-last":
        chosen[:, -1] = NONE
    if group.layout.virtual > 1 or len(codes) == 1:
        best = bill(group, chosen).total.max(axis=1)
        return chosen, best - budget
    settled: Bools = np.zeros(shape, dtype=bool)
    missing = np.zeros(shape, dtype=np.int64)
    # One bill for all modes: arrays are short, so its time is that of its calls.
    every = group.only(np.tile(np.arange(len(group)), len(codes)))
    modes = np.repeat(np.array(codes), len(group))[:, None] * np.ones(shape[1], dtype=np.int64)
    totals = bill(every, modes).total.reshape(len(codes), *shape)
    for code, total in zip(codes, totals, strict=True):
        over = total - budget
        now = ~settled & ((over <= 0) | (code == codes[-1]))
        chosen[now] = code
        missing[now] = over[now]
        settled |= now
    return chosen, missing.max(axis=1)


def _codes(group: Group) -> tuple[int, ...]:
    """The recovery modes that job and strategy allow, fastest first."""
    asked = group.job.schedule.recovery
    own = group.strategy.recovery
    if asked == "selective":
        return (SELECTIVE,)
    if own is Recovery.NONE or asked == "keep-all":
        return (NONE,)
    if own is Recovery.BACKWARD:
        return (BACKWARD,)
    if asked != "auto":
        return (FORWARD,)
    return (NONE, *((SELECTIVE,) if stores_scores(group.job) else ()), FORWARD, BACKWARD)


Entry = tuple[float, Checked, int]


def _ranked(checked: tuple[Checked, ...]) -> list[Entry]:
    """Rows that fit, fastest first; of rows that come to the same program, one."""
    times = np.concatenate([np.where(one.fits, one.step_s, np.inf) for one in checked])
    first = np.cumsum([0, *(len(one.group) for one in checked)])
    found: list[Entry] = []
    seen: set[object] = set()
    order: list[int] = np.argsort(times, kind="stable")[: 40 * SIMULATED].tolist()
    for place in order:
        if not np.isfinite(times[place]):
            break
        number = int(np.searchsorted(first, place, side="right")) - 1
        one, row = checked[number], place - int(first[number])
        key = _same_program(one, row)
        if key not in seen:
            seen.add(key)
            found.append((float(times[place]), one, row))
    return found


def _same_program(one: Checked, row: int) -> object:
    group, recovery = one.group, one.recovery[row]
    buffer = int(group.buffer[row]) if (recovery == FORWARD).any() else 0
    return (
        replace(group.layout, layers="equal"),
        group.job.batch.micro_batch,
        group.reversed_kinds,
        tuple(group.layers[row].tolist()),
        int(group.mode[row]),
        tuple(recovery.tolist()),
        buffer,
    )


def _refined(one: Checked, row: int) -> Entry:
    """The row with layers moved from stage to stage, as long as the estimate gains by it."""
    best: Entry = (float(one.step_s[row]), one, row)
    if one.group.layout.virtual > 1 or one.group.layout.stages == 1:
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
    one: Ints = np.eye(stages, dtype=np.int64)
    rows: list[Ints] = [
        layers + one[target] - one[source]
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
    for estimate_s, one, row in rows:
        enough = count >= SIMULATED or (count >= SIMULATED_AT_LEAST and done > OPS)
        if enough or (count and estimate_s > MARGIN * best):
            break
        key = _same_program(one, row)
        family = replace(one.group.layout, layers="equal"), one.group.job.batch.micro_batch
        if key in seen or alike[family] >= ALIKE:
            continue
        seen.add(key)
        alike[family] += 1
        tried, ops = try_out(candidate(one.group, row, one.recovery[row]), estimate_s)
        done, count = done + ops, count + 1
        if progress is not None:
            progress(count, SIMULATED)
        if tried is not None:
            best = min(best, tried.step_s)
            yield tried


def try_out(one: Candidate, estimate_s: float) -> tuple[Tried | None, int]:
    """A candidate simulated, and ops of one step that this took; None where it is not proved.

    Memory and pace are those of short programs: both settle after a few rounds of the pipeline.
    """
    setup, times, counts, ops = one.setup, list[float](), list[int](), 0
    proved: Verdict | None = None
    for rounds in (1, 2):
        short = shortened(one.strategy, setup, rounds)
        count = short.replicas[0].micro_batches
        if counts and count == counts[-1]:
            break
        program = apply_strategy(one.strategy, short, one.choices)
        proved = proved or verify(program)
        if not proved.sound:
            return None, ops
        costs = costs_of(one.job, one.placement, program.setup)
        times.append(simulate(program, costs, steps=3, verdict=proved).step_time_s)
        counts.append(count)
        ops += len(program.table)
    step_s = times[-1]
    if len(times) > 1:
        slope = (times[1] - times[0]) / (counts[1] - counts[0])
        step_s += slope * (setup.replicas[0].micro_batches - counts[1])
    bound = max(b.total_bytes for b in proved.bounds) if proved else 0
    return Tried(one, estimate_s, step_s, bound), ops


def shortened(found: Strategy, setup: Setup, rounds: int) -> Setup:
    """The setup with a few rounds of the pipeline's micro-batches.

    1F1B holds no more micro-batches than it has stages, so one round and a few more need as
    much memory as a thousand; GPipe holds all of them, and is never shortened.
    """
    if found.skeleton == "gpipe":
        return setup
    chunked = SKELETONS[found.skeleton].chunks

    def fewer(replica: Replica) -> Replica:
        count = rounds * (replica.ranks * 4 if chunked else replica.ranks + 3)
        return replace(replica, micro_batches=min(replica.micro_batches, count))

    return replace(setup, replicas=tuple(fewer(replica) for replica in setup.replicas))
