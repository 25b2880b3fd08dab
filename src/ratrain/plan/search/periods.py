"""Periods of averages: what each would take, and which one a job gets that leaves it open.

The longer a period, the longer replicas drift apart, and the less a step waits. So the planner
takes the shortest period of which at most `average_exposed` of a step waits for averages, and where
`average_wire` is "auto" the widest wire that is as short. What plans fit depends on the period, and
the period on the plan: plans are searched for again until both agree. A slower plan with room for a
shorter period is not looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ratrain.cost.algorithms import DIRECT
from ratrain.describe.average_wires import AVERAGE_WIRES
from ratrain.describe.job import JobSpec, ScheduleSpec
from ratrain.plan.case.case import Case
from ratrain.plan.layout.plan import Plan
from ratrain.program.kind import Cost, Kind
from ratrain.program.table import Table
from ratrain.simulate.costs import NO_LINK, Costs, fixed_work
from ratrain.simulate.long import simulate_proved

PERIODS = (1, 2, 4, 8, 16, 32, 64)
"""Steps of a period that are compared, beside the plan's own."""
MOST_OPS = 50_000
"""Of a program that is compared: longer periods are left out."""
HIDDEN = 0.05
"""A step's part that may wait for averages and is called hidden, where a job does not say."""
_FIRST = 8
"""Steps of the period with which plans are searched for first."""
Found = TypeVar("Found")


@dataclass(frozen=True)
class Period:
    """A period of so many steps: its mean step, that of the same program whose averages take no
    time, and what the averages of a step take on the link that sends the most of them."""

    steps: int
    wire: str
    step_s: float
    alone_s: float
    sent_s: float

    @property
    def limit_s(self) -> float:
        """No division among steps is faster."""
        return max(self.alone_s, self.sent_s)

    @property
    def exposed_s(self) -> float:
        return self.step_s - self.alone_s

    def hides(self, exposed: float) -> bool:
        """Whether at most this part of a step waits for averages."""
        return self.exposed_s <= exposed * self.step_s


def periods(plan: Plan) -> tuple[Period, ...]:
    """The periods of a plan whose replicas average their weights that fit, the shortest first, each
    in every wire that they can be sent in, the widest first; and its own."""
    job, own = plan.job, plan.job.schedule.average_every
    if own is None or plan.setup.data == 1 or job.schedule.average_turns:
        return ()
    found: list[Period] = []
    for steps in sorted({*PERIODS, own}):
        for wire in wires_of(job):
            case = Case(replace(plan, job=averaging(job, steps, wire)))
            short = case.proved.short
            if len(short.table) > MOST_OPS and steps > own:
                return tuple(found)
            if not case.proved.verdict.sound and (steps, wire) != (own, job.schedule.average_wire):
                continue
            free = fixed_work(np.zeros(len(short.table.states.units.rank)))
            work = {k: free if k.cost == Cost.AVERAGE else w for k, w in case.costs.work.items()}
            alone = simulate_proved(case.proved, replace(case.costs, work=work))
            step_s = case.simulation.step_time_s
            sent_s = _sent_s(short.table, case.costs) / steps
            found.append(Period(steps, wire, step_s, alone.step_time_s, sent_s))
    return tuple(found)


def chosen_words(found: Sequence[Period], schedule: ScheduleSpec) -> str:
    """Which of these a job got that leaves its period open, and why; "" for another job, or where
    nothing is averaged."""
    asked, own = schedule.average_exposed, (schedule.average_every, schedule.average_wire)
    period = next((p for p in found if (p.steps, p.wire) == own), None)
    if asked is None or period is None:
        return ""
    exposed = f"{100 * period.exposed_s / period.step_s:.2g} %"
    why = (
        f"the shortest period that fits this plan, and of its wires the widest, of which at most "
        f"{100 * asked:g} % of a step waits for averages ({exposed})"
    )
    if not period.hides(asked):
        why = f"of which {exposed} waits: none that was tried makes it {100 * asked:g} %"
    chosen = f'average_every = {period.steps}, average_wire = "{period.wire}"'
    return f"chosen, which changes what training computes: {chosen}, {why}"


def averaging(job: JobSpec, steps: int, wire: str) -> JobSpec:
    """The job with such a period."""
    return replace(job, schedule=replace(job.schedule, average_every=steps, average_wire=wire))


def wires_of(job: JobSpec) -> tuple[str, ...]:
    """Those in which averages of a job can be sent, as it is otherwise: narrower ones are of what
    was learnt since an outer step, and integers are not added up on their way."""
    if job.train.outer_learning_rate is None:
        return ("fp32",)
    direct = job.collective == DIRECT
    return tuple(wire for wire, form in AVERAGE_WIRES.items() if direct or not form.has_scales)


def settled(
    job: JobSpec, tried: Callable[[JobSpec], Found], plan_of: Callable[[Found], Plan]
) -> tuple[Found, tuple[Period, ...]]:
    """What is found of a job that leaves its period open, with the period that its plan hides; and
    those that were compared."""
    exposed, wire = job.schedule.average_exposed or 0.0, job.schedule.average_wire
    open_wires = wires_of(job) if wire == "auto" else (wire,)
    limits = (job.checkpoint.every, job.train.validate_every, job.train.sample_every)
    apart = job.schedule.averages != "local-sgd"  # else replicas are alike once a period
    allowed = [n for n in PERIODS if apart or not any(limit % n for limit in limits)]
    asked, known = (max(n for n in allowed if n <= _FIRST), open_wires[0]), set[object]()
    while True:
        found = tried(averaging(job, *asked))
        every = tuple(
            p for p in periods(plan_of(found)) if p.steps in allowed and p.wire in open_wires
        )
        known.add(asked)
        hiding = next((p for p in every if p.hides(exposed)), None)
        best = hiding or min(every, key=lambda p: p.exposed_s / p.step_s, default=None)
        if best is None or (best.steps, best.wire) in known:
            return found, every
        asked = best.steps, best.wire


def _sent_s(table: Table, costs: Costs) -> float:
    """What a period's averages take on the link that is busiest with them."""
    by_link = np.zeros(len(costs.link_rate_bytes_per_s))
    for kind in (Kind.AverageW, Kind.AverageCopy):
        work, unit = costs.work[kind], table.unit[table.kind == kind]
        link = work.link[unit]
        np.add.at(by_link, link[link != NO_LINK], work.volume_bytes[unit][link != NO_LINK])
    return float((by_link / costs.link_rate_bytes_per_s).max())
