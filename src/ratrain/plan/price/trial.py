"""A plan tried out: its program proved in full, its step simulated; and the least that its step
takes, from the times of its compute alone.

No order of ops beats that: a stage computes all of its micro-batches between the first one's
forward through the stages before and the last one's backward through them, since the next step
begins with what that backward updates; and a rank computes all of its stages one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from ratrain.errors import ProgramError
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.places import PlanCosts
from ratrain.program.kind import Kind
from ratrain.program.program import Program
from ratrain.program.repeating import MOST_OPS, Make, compute_ops, shortest
from ratrain.program.replicas import Recovery, Replica
from ratrain.program.settled import Proved, proved_from
from ratrain.program.setup import Setup
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Choices, Strategy, apply_strategy, recovery_modes
from ratrain.program.verify import Rule, Verdict
from ratrain.simulate.costs import Costs
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import Simulation

STEPS = 3
"""Steps simulated to time a candidate."""


def maker(strategy: Strategy, choices: Choices) -> Make:
    """What builds a configuration's program for a setup. One of more ops than memory has room for
    is refused."""

    def make(setup: Setup) -> Program:
        ops = compute_ops(setup)
        if ops > MOST_OPS:
            raise ProgramError(
                f"the {strategy.skeleton} order has {ops:,} compute ops for this batch and no "
                f"repeating part, so all must be written out; at most {MOST_OPS:,} can be",
                place="[batch] sequences",
                fix="cut the batch into fewer micro-batches, or use an order that repeats: 1f1b",
            )
        return apply_strategy(strategy, setup, choices)

    return make


@lru_cache(maxsize=4)  # whoever chooses a configuration and whoever runs it next ask the same
def proof(strategy: Strategy, setup: Setup, choices: Choices) -> Proved:
    """The program of a configuration, proved in full."""
    make = maker(strategy, choices)
    return proved_from(shortest(make, setup, strategy.skeleton), make, setup)


def tried_out(plan: Plan, costs: PlanCosts | None = None) -> tuple[Proved, Simulation | None]:
    """A plan with its program proved in full, and simulated where it is sound."""
    proved = proof(plan.strategy, plan.setup, plan.choices)
    if not proved.verdict.sound:
        return proved, None
    of_steps = (costs or PlanCosts(plan)).of(proved.short.setup)
    return proved, simulate_proved(proved, of_steps, steps=STEPS)


def step_s_of(plan: Plan) -> float | None:
    """Seconds of its step; None where it breaks a rule."""
    ran = tried_out(plan)[1]
    return None if ran is None else ran.step_time_s


def only_over_budget(verdict: Verdict) -> bool:
    """Whether memory is all that is wrong."""
    return all(finding.rule is Rule.OVER_BUDGET for finding in verdict.findings)


@dataclass(frozen=True)
class _StageWork:
    """Seconds of a stage's compute for one micro-batch, or for those that it computes at once."""

    rank: int
    passes: int  # through all of them
    forward_s: float
    recovery_s: float
    gradient_s: float  # the part of backward that the stage before waits for
    later_s: float  # the part that it does not wait for: weight gradients by themselves


def least_step_s(strategy: Strategy, setup: Setup, choices: Choices, costs: Costs) -> float:
    """Seconds that a step takes at least; 0 where stages have several members."""
    longest_s, first_unit = 0.0, 0
    modes = choices.modes_of(setup)
    for number, replica in enumerate(setup.replicas):
        if any(len(stage.members) > 1 for stage in replica.stages):
            return 0.0
        of_stages = (
            recovery_modes(strategy, choices, len(replica.stages))
            if modes is None
            else modes[number]
        )
        works = _works(strategy, replica, of_stages, costs, first_unit)
        first_unit += sum(len(stage.only.units) for stage in replica.stages)
        longest_s = max(longest_s, _longest(works))
    return longest_s


def _longest(works: list[_StageWork]) -> float:
    """The longest that a stage, or a rank with all its stages, must take."""
    ranks_s: defaultdict[int, float] = defaultdict(float)
    stages_s: list[float] = []
    ways_s = accumulate((work.forward_s + work.gradient_s for work in works), initial=0.0)
    for work, way_s in zip(works, ways_s, strict=False):
        awaited_s = work.forward_s + work.recovery_s + work.gradient_s
        stages_s.append(way_s + work.passes * awaited_s)
        ranks_s[work.rank] += work.passes * (awaited_s + work.later_s)
    return max(*stages_s, *ranks_s.values())


def _works(
    strategy: Strategy,
    replica: Replica,
    modes: Sequence[Recovery],
    costs: Costs,
    first_unit: int,
) -> list[_StageWork]:
    """The work of each stage of a replica whose units begin at a number."""
    forward, backward = costs.work[Kind.F].fixed_s, costs.work[Kind.B].fixed_s
    later = 0.0 * backward
    if SKELETONS[strategy.skeleton].split_backward:
        backward, later = costs.work[Kind.I].fixed_s, costs.work[Kind.W].fixed_s
    works: list[_StageWork] = []
    number = first_unit
    for stage, mode in zip(replica.stages, modes, strict=True):
        units = stage.only.units
        held = slice(number, number + len(units))
        number += len(units)
        works.append(
            _StageWork(
                rank=stage.only.rank,
                passes=len(replica.computes(stage.only)),
                forward_s=float(forward[held].sum()),
                recovery_s=_recovery_s(mode, costs, held, [unit.recoverable for unit in units]),
                gradient_s=float(backward[held].sum()),
                later_s=float(later[held].sum()),
            )
        )
    return works


def _recovery_s(mode: Recovery, costs: Costs, held: slice, recovered: list[bool]) -> float:
    """Seconds of a stage's recoveries."""
    return float(costs.work[Kind.R].fixed_s[held][recovered].sum()) if mode.again else 0.0
