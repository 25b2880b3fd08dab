"""What `collective = "auto"` comes to in a whole step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ratrain.cost.algorithms import ALGORITHMS, AUTO
from ratrain.describe.job import JobSpec
from ratrain.plan.price.trial import only_over_budget
from ratrain.program.settled import Proved
from ratrain.simulate.costs import Costs
from ratrain.simulate.long import simulate_proved

GAIN = 1e-6
"""The part of a step that one algorithm for all units must save: less is rounding."""


def with_fastest_collective(
    job: JobSpec, proved: Proved, costs_of: Callable[[JobSpec], Costs]
) -> JobSpec:
    """The job of a program with the collective that makes its step the shortest: one for all units,
    or "auto", the fastest for each by itself. Transfers that are may get in each other's way, or
    keep busy the processors that compute: only whole steps tell."""
    if job.collective != AUTO or max(proved.short.setup.holders.values()) == 1:
        return job
    if not proved.verdict.sound and not only_over_budget(proved.verdict):
        return job

    def step_s(asked: JobSpec) -> float:
        return simulate_proved(proved, costs_of(asked)).step_time_s

    named = [replace(job, schedule=replace(job.schedule, collective=name)) for name in ALGORITHMS]
    times = {asked.collective: step_s(asked) for asked in named}
    fastest = min(named, key=lambda asked: times[asked.collective])
    return fastest if times[fastest.collective] < (1 - GAIN) * step_s(job) else job
