"""The plans beside the one that is explained, in words: how much slower they are, or faster."""

from __future__ import annotations

from collections.abc import Iterator

from ratrain.describe.ranges import STAGES, write_degrees, write_list
from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan.case.subject import Subject
from ratrain.plan.case.uneven import share_words
from ratrain.plan.file.uneven import UnevenPlan, UnevenReplica
from ratrain.plan.search.known_plans import KnownPlans
from ratrain.plan.search.trial import Drafted, Timed
from ratrain.plan.words.tables import plain_table, rendered, table, wrapped

SHOWN = 6
"""Plans of each sort."""
ALIKE = 5e-4
"""Steps that differ by less of one are called equal."""


def others_text(subject: Subject, step_s: float, known: KnownPlans) -> Iterator[str]:
    """How the plan stands among those that the planner found, and these."""
    yield from _unequal_text(subject, step_s, known)
    alike, uneven = known.alike, isinstance(subject, UnevenPlan)
    if alike is None:
        yield "The planner knows no layout of this job that takes all of its devices."
        return
    if not alike.tried:
        yield "None of the configurations that the planner tried for this job fits."
        return
    best = "the best plan with identical replicas" if known.unequal else "the best plan found"
    best_s = alike.best.step_s
    if step_s > best_s * (1 + ALIKE):
        yield f"This plan is {100 * (step_s / best_s - 1):.1f} % slower than {best}:"
    elif step_s < best_s * (1 - ALIKE):
        yield f"This plan takes {100 * (1 - step_s / best_s):.1f} % less time than {best}:"
    elif uneven or known.unequal:
        yield "Plans with identical replicas, and how much slower than their best they are:"
    else:
        yield "Plans that were simulated, and how much slower they are:"
    yield from table(alike.tried[:SHOWN])


def _unequal_text(subject: Subject, step_s: float, known: KnownPlans) -> Iterator[str]:
    """The plans whose stages or replicas differ, beside the plan itself."""
    if known.unequal is None:
        return
    itself = plan_words(subject) if isinstance(subject, UnevenPlan) else ""
    others = [
        plan
        for plan in (*known.unequal.trainable, *known.unequal.others)
        if abs(plan.step_s / step_s - 1) > 1e-9 or plan_words(plan.plan) != itself
    ]
    if not others:
        words = "No other plan" if isinstance(subject, UnevenPlan) else "No plan"
        yield f"{words} whose stages or replicas differ is faster than identical replicas."
        yield ""
        return
    faster = sum(plan.step_s < step_s * (1 - ALIKE) for plan in others)
    if faster:
        yield f"{counted(faster, 'plan')} whose stages or replicas differ would be faster:"
    else:
        least = min(others, key=lambda plan: plan.step_s)
        yield from wrapped(
            f"The runner-up whose stages or replicas differ takes {_more(least.step_s, step_s)} "
            "time:"
        )
    yield from _table(sorted(others, key=lambda plan: plan.step_s)[:SHOWN], step_s)
    yield ""


def _table(plans: list[Timed[Drafted]], step_s: float) -> list[str]:
    rows = plain_table(
        ("step", True), ("than\nthis", True), ("memory", True), ("replicas; levels", False)
    )
    for plan in plans:
        only = "" if not plan.refusals else "; only simulated"
        rows.add_row(
            format_time(plan.step_s),
            f"{100 * (plan.step_s / step_s - 1):+.2f} %",
            format_bytes(plan.bound_bytes),
            f"{plan_words(plan.plan)}; sharding {plan.plan.mode.sharding}{only}",
        )
    return rendered(rows)


def plan_words(plan: UnevenPlan) -> str:
    """What tells a plan of replicas that differ from others, in one line."""
    return " + ".join(map(_replica_words, plan.replicas))


def _replica_words(replica: UnevenReplica) -> str:
    """ "2 x 4, 2 layers on new, old with 8 micro-batches of 2 sequences"."""
    layers = replica.layout.layers
    assert not isinstance(layers, str)  # a plan gives numbers
    times = f"{len(replica.members)} x " if len(replica.members) > 1 else ""
    tensor = f", tensor {write_degrees(replica.tensor)}" if max(replica.tensor) > 1 else ""
    sizes = f", {write_list(replica.sizes, STAGES)} at once" if replica.joined else ""
    members = " members" if replica.has_members else ""
    return (
        f"{times}{write_list(layers, STAGES)} layers on {write_list(replica.kinds, STAGES)}"
        f"{members}{tensor} with {share_words(replica.micro_batches, replica.micro_batch)}{sizes}"
    )


def _more(other_s: float, step_s: float) -> str:
    return f"{100 * (other_s / step_s - 1):.1f} % more"
