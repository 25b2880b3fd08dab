"""What averaging weights more or less often would take: time against how long a unit drifts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ratrain.describe.lines import wrapped
from ratrain.describe.units import format_time
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


@dataclass(frozen=True)
class Period:
    """A period of so many steps: its mean step, that of the same program whose averages take no
    time, and what the averages of a step take on the link that sends the most of them."""

    steps: int
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


def periods(plan: Plan) -> tuple[Period, ...]:
    """The periods of a plan whose replicas average their weights, its own among them."""
    own = plan.job.schedule.average_every
    if own is None or plan.setup.data == 1 or plan.job.schedule.average_turns:
        return ()
    found: list[Period] = []
    for steps in sorted({*PERIODS, own}):
        schedule = replace(plan.job.schedule, average_every=steps)
        case = Case(replace(plan, job=replace(plan.job, schedule=schedule)))
        short = case.proved.short
        if len(short.table) > MOST_OPS and steps > own:
            break
        free = fixed_work(np.zeros(len(short.table.states.units.rank)))
        work = {k: free if k.cost == Cost.AVERAGE else w for k, w in case.costs.work.items()}
        alone = simulate_proved(case.proved, replace(case.costs, work=work))
        step_s = simulate_proved(case.proved, case.costs).step_time_s
        sent_s = _sent_s(short.table, case.costs) / steps
        found.append(Period(steps, step_s, alone.step_time_s, sent_s))
    return tuple(found)


def _sent_s(table: Table, costs: Costs) -> float:
    """What a period's averages take on the link that is busiest with them."""
    by_link = np.zeros(len(costs.link_rate_bytes_per_s))
    for kind in (Kind.AverageW, Kind.AverageCopy):
        work, unit = costs.work[kind], table.unit[table.kind == kind]
        link = work.link[unit]
        np.add.at(by_link, link[link != NO_LINK], work.volume_bytes[unit][link != NO_LINK])
    return float((by_link / costs.link_rate_bytes_per_s).max())


def periods_text(found: tuple[Period, ...], own: int | None) -> Iterator[str]:
    """In lines of at most 80 columns."""
    if not found:
        return
    yield from wrapped(
        "Averages, as simulated: the longer a period, the longer replicas drift apart, and the "
        "less a step waits. Limit: its compute, or what its averages take on their link."
    )
    yield f"  {'steps':>5}  {'step':>9}  {'exposed':>9}  {'limit':>9}  reached"
    for each in found:
        mark = " *" if each.steps == own else ""
        cells = (format_time(t) for t in (each.step_s, each.exposed_s, each.limit_s))
        reached = f"{each.limit_s / each.step_s:.2f}{mark}"
        yield f"  {each.steps:>5}  " + "  ".join(f"{cell:>9}" for cell in cells) + f"  {reached}"
    hidden = next((p for p in found if p.exposed_s <= HIDDEN * p.step_s), None)
    if hidden is not None:
        yield from wrapped(
            f"The shortest of these of which at most {100 * HIDDEN:.0f} % is exposed: "
            f"average_every = {hidden.steps}. The plan's own is marked *."
        )


HIDDEN = 0.05
"""A step's part that may wait for averages and is called hidden."""
