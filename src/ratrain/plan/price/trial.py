"""A plan tried out: its program proved in full, its step simulated."""

from __future__ import annotations

from functools import lru_cache

from ratrain.errors import ProgramError
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.places import PlanCosts
from ratrain.program.program import Program
from ratrain.program.repeating import MOST_OPS, Make, compute_ops, shortest
from ratrain.program.settled import Proved, proved_from
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, Strategy, apply_strategy
from ratrain.program.verify import Rule, Verdict
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
