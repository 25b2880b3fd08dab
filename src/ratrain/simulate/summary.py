"""A simulation in words and as JSON: what `ratrain simulate` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ratrain.describe.lines import wrapped
from ratrain.describe.units import DAY_S, counted, format_bytes, format_long_time, format_time
from ratrain.program.families import GROUPS
from ratrain.program.kind import Kind, Waiting
from ratrain.program.setup import Setup
from ratrain.program.text.family_groups import grouped
from ratrain.program.tiers import DISK, TIER_WORDS
from ratrain.simulate.moved import Moved, moved_by
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation
from ratrain.simulate.step_bound_words import bound_json, bound_sentence

_BAR = 24
_NARROW_BAR = 16
"""Where every rank's own budget is printed too."""
_SHOWN_RANKS = 16
ALIKE_STEPS = 1e-3
"""By how much, relative to the mean, steps of a period may differ and are not called different."""
_RATED_OPS = 100_000
"""Ops from which on the simulator's speed is printed: with fewer, starting takes most time."""


def as_json(simulation: Simulation, tokens: int) -> dict[str, Any]:
    """Every figure, with its unit in its key. Bytes are per tier, of the worst rank."""
    setup = simulation.program.setup
    return {
        "feasible": simulation.feasible,
        "findings": [
            {"rule": f.rule.value, "rank": f.rank, "message": f.message}
            for f in simulation.verdict.findings
        ],
        "step_time_s": simulation.step_time_s,
        "tokens_per_s": tokens / simulation.step_time_s,
        "bound": bound_json(simulation.bound),
        "peak_bytes": {setup.tier: simulation.peak_bytes},
        "bound_bytes": {setup.tier: simulation.bound_bytes, **_bounds_below(simulation)},
        "budget_bytes": {setup.tier: setup.budget_bytes},
        "moved": {
            tier: {"read_bytes": moved.read_bytes, "written_bytes": moved.written_bytes}
            for tier, moved in _moved(simulation).items()
        },
        "bubble_fraction": simulation.bubble_fraction,
        "exposed_s": {kind.value: time_s for kind, time_s in simulation.exposed_s.items()},
        "tail_s": simulation.tail_s,
        "mean_tail_s": simulation.mean_tail_s,
        "period": {
            "steps": setup.period,
            "slowest_step_s": simulation.window.slowest_s,
        },
        "steady": simulation.window.steady,
        "devices": setup.devices,
        "simulated_ranks": setup.ranks,
        "alike_replicas": [replica.count for replica in setup.replicas],
        "tensor_group": setup.tensor,
        "passes": list(simulation.program.passes),
        "ranks": [_rank_json(times) for times in simulation.ranks],
        "critical_path": [
            {
                "rank": part.rank,
                "kind": part.kind,
                "first": part.first,
                "last": part.last,
                "ops": part.ops,
                "time_s": part.time_s,
            }
            for part in simulation.critical
        ],
        "steps_simulated": simulation.steps_simulated,
        "ops_simulated": simulation.ops_simulated,
        "extrapolated_from_micro_batches": _extrapolated_from(simulation),
        "wall_time_s": simulation.wall_time_s,
    }


def _moved(simulation: Simulation) -> dict[str, Moved]:
    """Of each tier below the device's what the rank moves that moves the most."""
    most: dict[str, Moved] = {}
    for row in sorted(moved_by(simulation.program.table), key=lambda row: row.total_bytes):
        most[row.tier] = row
    return most


def _bounds_below(simulation: Simulation) -> dict[str, int]:
    """The largest bound of any rank in each tier below the device's."""
    bounds: dict[str, int] = {}
    for bound in simulation.verdict.lower_bounds:
        bounds[bound.tier] = max(bounds.get(bound.tier, 0), bound.total_bytes)
    return bounds


def times_json(times: RankTimes) -> dict[str, Any]:
    """What a rank's step is made of."""
    return {
        "rank": times.rank,
        "compute_s": times.compute_s,
        "recovery_s": times.recovery_s,
        "driving_s": times.driving_s,
        "bubble_s": times.bubble_s,
        "exposed_s": {
            kind.value: time_s
            for kind, time_s in times.waiting_s.items()
            if kind is not Waiting.BUBBLE
        },
    }


def _rank_json(times: RankTimes) -> dict[str, Any]:
    return {
        **times_json(times),
        "tail_s": times.tail_s,
        "peak_bytes": times.peak_bytes,
        "peak_items_bytes": times.peak_items,
    }


def as_text(simulation: Simulation, tokens: int) -> list[str]:
    """The same for people, in lines of at most 80 columns."""
    return [
        *_headline(simulation, tokens),
        "",
        *_ranks(simulation),
        "",
        *_critical(simulation),
        *_footer(simulation),
    ]


def _headline(simulation: Simulation, tokens: int) -> Iterator[str]:
    setup = simulation.program.setup
    budget = setup.budget_bytes
    step = format_long_time(simulation.step_time_s)
    yield f"step {step}, {tokens / simulation.step_time_s:,.1f} tokens/s"
    if setup.period > 1:
        slowest_s = simulation.window.slowest_s
        yield period_words(setup.period, slowest_s, simulation.step_time_s)
    memory = f"peak memory {format_bytes(simulation.peak_bytes)} per rank"
    by_rank = _budgets_differ(setup)
    if by_rank:
        memory = _fullest(simulation)
    elif simulation.bound_bytes:
        memory += f", proven peak {format_bytes(simulation.bound_bytes)}"
    if budget is not None and not by_rank:
        fits = "fits" if simulation.feasible else "DOES NOT FIT"
        memory += f" (budget {format_bytes(budget)}): {fits}"
    yield memory
    for tier, size_bytes in _bounds_below(simulation).items():
        yield f"proven peak {TIER_WORDS.get(tier, tier)} {format_bytes(size_bytes)} per rank"
    for moved in _moved(simulation).values():
        read, written = map(format_bytes, (moved.read_bytes, moved.written_bytes))
        most = f" on rank {moved.rank}, the most" if len(simulation.ranks) > 1 else ""
        a_day = format_bytes(moved.written_bytes / simulation.step_time_s * DAY_S)
        wear = f"; {a_day} written a day" if moved.tier == DISK else ""
        yield from wrapped(f"{moved.tier}: {read} read and {written} written a step{most}{wear}")
    waits = ", ".join(
        f"{kind.words} {format_time(time_s)}"
        for kind, time_s in simulation.exposed_s.items()
        if time_s > 1e-4 * simulation.step_time_s
    )
    bubble = 100 * simulation.bubble_fraction
    yield f"bubble {bubble:.1f} % of rank time (waiting for other stages)"
    yield from wrapped(
        f"tail {format_time(simulation.tail_s)} (from a rank's last backward until its weights are "
        "ready for the next step)"
    )
    yield from wrapped(f"not overlapped with compute, on the worst rank: {waits or 'nothing'}")
    if simulation.bound is not None:
        yield from wrapped(bound_sentence(simulation.bound, simulation.step_time_s))


def period_words(steps: int, slowest_s: float, mean_s: float) -> str:
    """What a step's time is the mean of, where a program spells out several."""
    mean = f"mean of a period of {steps} steps"
    alike = slowest_s <= mean_s * (1 + ALIKE_STEPS)
    return f"{mean}; the slowest takes {'no longer' if alike else format_time(slowest_s)}"


def _budgets_differ(setup: Setup) -> bool:
    """Whether ranks are best shown with a budget each: theirs, or their stages, differ."""
    return setup.is_uneven or bool(setup.budgets)


def _fullest(simulation: Simulation) -> str:
    """The proven peak of the rank that is nearest to its own budget, or furthest beyond it."""
    setup = simulation.program.setup
    worst = simulation.fullest()
    if worst is None:
        return f"peak memory {format_bytes(simulation.peak_bytes)} per rank"
    size, budget = format_bytes(worst.total_bytes), setup.budget_of(worst.rank)
    fits = "fits" if simulation.feasible else "DOES NOT FIT"
    limit = f" of its {format_bytes(budget)}: {fits}" if budget else ""
    return f"fullest is rank {worst.rank}, proven peak {size}{limit}"


def _ranks(simulation: Simulation) -> Iterator[str]:
    yield "# compute  + recovery  ! communication, updates not overlapped  . bubble"
    by_rank = _budgets_differ(simulation.program.setup)
    width, peak_width = (_NARROW_BAR, 20) if by_rank else (_BAR, 9)
    yield f"{'rank':4}  {'one step':{width}}  {'busy':>7} {'peak':>{peak_width}}  largest item"
    rows = list(simulation.ranks)
    shown = rows if len(rows) <= _SHOWN_RANKS else [*rows[:8], *rows[-7:]]
    skipped = len(rows) - len(shown)
    for times in shown:
        if skipped and times is rows[-7]:
            yield f"  ...     {counted(skipped, 'more rank')}"
        item, size = max(grouped(times.peak_items).items(), key=lambda pair: pair[1])
        bar = _bar(times, simulation.step_time_s, width)
        busy = 100 * times.compute_s / simulation.step_time_s
        peak = format_bytes(times.peak_bytes)
        budget = simulation.program.setup.budget_of(times.rank)
        if by_rank and budget:
            peak = f"{peak:>9} of {format_bytes(budget):>7}"
        largest = f"{GROUPS[item]} {format_bytes(size)}"
        yield f"{times.rank:4d}  {bar}  {busy:5.1f} % {peak:>{peak_width}}  {largest}"


def _bar(times: RankTimes, step_time_s: float, width: int) -> str:
    exposed_s = sum(s for kind, s in times.waiting_s.items() if kind is not Waiting.BUBBLE)
    parts = (
        ("#", times.compute_s + times.driving_s),
        ("+", times.recovery_s),
        ("!", exposed_s),
        (".", times.bubble_s),
    )
    bar, done_s = "", 0.0
    for mark, time_s in parts:
        done_s += time_s
        bar += mark * (round(width * done_s / step_time_s) - len(bar))
    return bar.ljust(width, ".")[:width]


def _critical(simulation: Simulation) -> Iterator[str]:
    """The path's time by what its ops do, and the ranks it spends most on."""
    by_work: dict[str, float] = {}
    by_rank: dict[int, float] = {}
    for part in simulation.critical:
        work = Kind.named(part.kind).words
        by_work[work] = by_work.get(work, 0.0) + part.time_s
        by_rank[part.rank] = by_rank.get(part.rank, 0.0) + part.time_s
    total = sum(by_work.values()) or 1.0

    def shares(by_key: dict[Any, float], name: str) -> str:
        best = sorted(by_key.items(), key=lambda pair: -pair[1])[:5]
        return ", ".join(
            f"{name}{key} {100 * s / total:.1f} %" for key, s in best if s > 5e-4 * total
        )

    for line in (f"critical path: {shares(by_work, '')}", f"  on {shares(by_rank, 'rank ')}"):
        yield from wrapped(line, "    ")


def _extrapolated_from(simulation: Simulation) -> int | None:
    """The most micro-batches of a replica that were simulated; None: all."""
    if simulation.extrapolated_to is None:
        return None
    return max(replica.micro_batches for replica in simulation.program.setup.replicas)


def _footer(simulation: Simulation) -> Iterator[str]:
    setup = simulation.program.setup
    folded = [replica.count for replica in setup.replicas if replica.count > 1]
    if folded or setup.tensor > 1:
        alike = f"{len(setup.replicas)} of {setup.data} replicas" if folded else "every replica"
        of = f" of {setup.tensor} ranks" if len({m.tensor for m in setup.members}) == 1 else " rank"
        group = f", 1{of} of each tensor group" if setup.tensor > 1 else ""
        said = f"simulated ranks: {alike}{group}; the others are identical"
        yield from wrapped(said, "    ")
    if simulation.extrapolated_to is not None:
        whole = max(r.micro_batches for r in simulation.extrapolated_to.setup.replicas)
        fewer = _extrapolated_from(simulation)
        notice = f"times linearly extrapolated from {fewer:,} to {whole:,} micro-batches"
        yield f"{notice}; memory as proved"
    ops, steps = simulation.ops_simulated, simulation.steps_simulated
    rate = ops / max(simulation.wall_time_s, 1e-9)
    speed = f" ({rate / 1e6:.1f} million ops/s)" if ops >= _RATED_OPS else ""
    yield (
        f"simulated {counted(ops, 'op')} of {counted(steps, 'step')} in "
        f"{format_time(simulation.wall_time_s)}{speed}"
    )
    periods, several = simulation.run.periods, setup.period > 1
    if periods == 1:
        yield "this step began with an empty pipeline; for a steady one simulate more (--steps)"
    elif not simulation.window.steady and periods < 4:
        yield "not steady yet: simulate more (--steps)"
    elif not simulation.window.steady:
        two = "periods" if several else "steps"
        yield f"the last two {two} differ, the longer one is shown; simulate more (--steps)"
