"""Long programs simulated by short ones: what repeats takes the same time again and again.

Programs of one more stretch each are simulated. Where the last takes as much longer than the one
before as that one than the one before it, in all and in each part of every rank's time, where no
rank's memory peaks higher, and where no op falls behind faster than the step grows (`rhythm.py`),
every figure is linearly extrapolated to the length asked for. What the three are off a line,
extrapolated too, may make a millionth of the step there. Where it makes more, further ones are
simulated, then longer stretches are tried, and at last the whole program.

An extrapolation stays one, and is printed as one: ranks that drift apart slowly may begin to wait
for each other only later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ratrain.program.repeating import Repeating
from ratrain.program.settled import Proved
from ratrain.simulate.costs import Costs, Floats
from ratrain.simulate.critical import CriticalPart, critical_times
from ratrain.simulate.engine import Progress
from ratrain.simulate.result import RankTimes
from ratrain.simulate.rhythm import slowest_pace_s
from ratrain.simulate.simulate import STEPS, Simulation, simulate

OPS = 4_000_000
"""Ops of one step above which a program is not simulated whole if it need not be."""
LINEAR = 1e-6
"""How far three programs may be off a line when it is extrapolated, relative to the step."""
FEWEST_ROUNDS, MOST_ROUNDS = 2, 17
"""Rounds of the pipeline in the first program that is simulated."""
CHEAP_OPS = 100_000
"""Ops of one step that cost next to nothing to simulate."""
CYCLE = 12
"""Micro-batches take turns in two slots of a tensor, and in a few of a recovery buffer. Programs
whose lengths differ by this many repetitions end in the same slots and differ only in length."""
TRIES = 7
"""Programs simulated with one stretch between them before it is made longer."""


def simulate_proved(
    proved: Proved, costs: Costs, *, steps: int = STEPS, progress: Progress | None = None
) -> Simulation:
    """The `Simulation` of a program that is proved already. One that is kept short is written out
    as long as that is cheap, and extrapolated where it is not."""
    program, verdict = proved.program, proved.verdict
    if not isinstance(program, Repeating):
        return simulate(program, costs, steps=steps, verdict=verdict, progress=progress)
    if program.ops <= OPS // 4:
        whole = program.written_out()
        return simulate(whole, costs, steps=steps, verdict=verdict, progress=progress)
    return _extrapolated(program, proved, costs, steps, progress)


def _extrapolated(
    program: Repeating, proved: Proved, costs: Costs, steps: int, progress: Progress | None
) -> Simulation:
    base, times, depth = _some_rounds(program)
    middle = max(1, base.ops_of(1) - base.ops_of(0))
    stretch = CYCLE * -(-(base.ops_of(times) // middle // 8) // CYCLE)
    times = _aligned(times, base.times, stretch)
    seen: list[_Figures] = []
    while base.ops_of(times) <= OPS and times < base.times:
        made = base.written_out(times)
        run = simulate(made, costs, steps=steps, verdict=proved.verdict, progress=progress)
        seen.append(_figures(run))
        turns = (base.times - times) / stretch
        if len(seen) > 2 and _on_a_line(seen[-3], seen[-2], seen[-1], turns):
            grown_s = (seen[-1].step_time_s - seen[-2].step_time_s) / stretch
            pace_s = slowest_pace_s(base, times, depth, made.table, run.run)
            off_s = abs(pace_s - grown_s) * (base.times - times)
            if off_s <= LINEAR * (run.step_time_s + grown_s * (base.times - times)):
                return _extended(seen[-2], seen[-1], run, turns + 1, program)
        del made, run
        times += stretch
        if len(seen) == TRIES:
            seen, stretch = [], 4 * stretch
            times = _aligned(times, base.times, stretch)
    whole = program.written_out()
    return simulate(whole, costs, steps=steps, verdict=proved.verdict, progress=progress)


def _aligned(times: int, whole: int, stretch: int) -> int:
    """At least this many repetitions, from which whole stretches lead to the whole program."""
    return times + (whole - times) % stretch


def _some_rounds(program: Repeating) -> tuple[Repeating, int, int]:
    """The shortest form known, how many repetitions make it some rounds of the pipeline, and how
    many are one round: two rounds, and more where they are cheap, since ranks drift apart for
    longer the less their speeds differ."""
    base = program.origin or program
    stages = max(len(replica.stages) for replica in program.setup.replicas)
    round_times = -(-stages // base.stride)
    round_ops = max(1, base.ops_of(round_times) - base.ops_of(0))
    rounds = min(max(FEWEST_ROUNDS, CHEAP_OPS // round_ops), MOST_ROUNDS)
    return base, (rounds - 1) * round_times, round_times


@dataclass(frozen=True)
class _Figures:
    """What is extrapolated of a simulation, without its program and its run."""

    step_time_s: float
    ranks: tuple[RankTimes, ...]
    critical_s: dict[tuple[int, str], float]  # by rank and kind
    wall_time_s: float


def _figures(run: Simulation) -> _Figures:
    critical_s = critical_times(run.program.table, run.run, run.window)
    return _Figures(run.step_time_s, run.ranks, critical_s, run.wall_time_s)


def _on_a_line(first: _Figures, second: _Figures, third: _Figures, turns: float) -> bool:
    """Whether step times and every rank's times grow evenly, so that what bend there is makes next
    to nothing of the step when extrapolated by that many turns, and memory peaks no more."""

    def times(figures: _Figures) -> Floats:
        rows = [
            (figures.step_time_s, r.compute_s, r.recovery_s, r.driving_s, *r.waiting_s.values())
            for r in figures.ranks
        ]
        return np.array(rows)

    bend = np.abs(times(third) - 2 * times(second) + times(first)).max()
    step_s = third.step_time_s + turns * (third.step_time_s - second.step_time_s)
    peaks = [[rank.peak_bytes for rank in figures.ranks] for figures in (second, third)]
    return bool(bend * max(turns, 1) <= LINEAR * step_s) and peaks[0] == peaks[1]


def _extended(
    before: _Figures, after: _Figures, longer: Simulation, turns: float, program: Repeating
) -> Simulation:
    """The figures of two runs on a line, the second that of `longer`, extrapolated to the whole
    program."""

    def line(first: float, second: float) -> float:
        return first + turns * (second - first)

    ranks = tuple(
        _rank(short, long, line) for short, long in zip(before.ranks, after.ranks, strict=True)
    )
    return replace(
        longer,
        window=replace(longer.window, steps_s=(line(before.step_time_s, after.step_time_s),)),
        ranks=ranks,
        extrapolated_path=_critical(before, after, longer, line),
        wall_time_s=before.wall_time_s + after.wall_time_s,
        extrapolated_to=program,
    )


def _rank(before: RankTimes, after: RankTimes, line: Callable[[float, float], float]) -> RankTimes:
    waiting = {
        kind: line(before.waiting_s[kind], after.waiting_s[kind]) for kind in after.waiting_s
    }
    return replace(
        after,
        compute_s=line(before.compute_s, after.compute_s),
        recovery_s=line(before.recovery_s, after.recovery_s),
        driving_s=line(before.driving_s, after.driving_s),
        waiting_s={kind: max(time_s, 0.0) for kind, time_s in waiting.items()},
    )


def _critical(
    before: _Figures,
    after: _Figures,
    longer: Simulation,
    line: Callable[[float, float], float],
) -> tuple[CriticalPart, ...]:
    """The longer run's path, its parts summed up by rank and kind and extrapolated."""
    first: dict[tuple[int, str], CriticalPart] = {}
    for part in longer.critical:
        first.setdefault((part.rank, part.kind), part)
    return tuple(
        replace(part, time_s=max(line(before.critical_s.get(key, 0.0), after.critical_s[key]), 0.0))
        for key, part in first.items()
    )
