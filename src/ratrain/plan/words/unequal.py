"""What `ratrain plan` prints, where plans of replicas that differ are among what it found."""

from __future__ import annotations

from math import inf, isinf
from typing import Any

from ratrain.describe.units import format_bytes, format_time
from ratrain.plan.case.case import Case
from ratrain.plan.layout.plan import has_members
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.search.effort import DEVICES
from ratrain.plan.search.every_plan import NO_ALIKE, EveryPlan, alike_words
from ratrain.plan.search.tried import Timed
from ratrain.plan.search.unequal import UnequalSearch, has_too_many
from ratrain.plan.words.tables import (
    search_json,
    search_text,
    simulated_json,
    wrapped,
)
from ratrain.program.skeletons import SKELETONS


def every_text(plans: EveryPlan, top: int) -> list[str]:
    """The best plan first; then plans of alike replicas, and what is faster and cannot be trained
    yet."""
    lines = _best(plans)
    if plans.alike is not None:
        lines += search_text(plans.alike, top, plans.chosen.step_s)
    if plans.unequal is not None:
        lines += _beyond(plans)
    elif has_too_many(plans.job):
        lines += wrapped(
            f"all replicas are identical: others are searched for on up to {DEVICES} devices of "
            f"several kinds, and here are {plans.job.cluster.devices:,}"
        )
    return lines


def _best(plans: EveryPlan) -> list[str]:
    """The best plan, where its replicas differ."""
    best, alike = plans.best, plans.alike
    if best is None:
        return []
    lines = Case(best.plan).headline()
    lines += [_step(plans, best), *(part for line in _refused(best) for part in wrapped(line))]
    lines += [*_unshared(plans, best), *_reordered(plans, best)]
    if alike is None:
        return [*lines, NO_ALIKE]
    return [*lines, "", *wrapped(f"Not chosen: {alike_words(best, alike)}:"), ""]


def _unshared(plans: EveryPlan, best: Timed) -> list[str]:
    """What the best plan gains by stages of several members, where it has them."""
    assert plans.unequal is not None, "the best plan is from this search"
    if not has_members(best.plan):
        return []
    others = (plan for plan in plans.unequal.trainable if not has_members(plan.plan))
    other = next(others, None)
    if other is None:
        return []
    more = 100 * (other.step_s / best.step_s - 1)
    slower = f"{format_time(other.step_s)}, {more:.1f} % more"
    return wrapped(f"the fastest plan whose stages have one member each takes {slower}")


def _reordered(plans: EveryPlan, best: Timed) -> list[str]:
    """What the best plan gains by a compute order that the planner chose for it."""
    assert plans.unequal is not None, "the best plan is from this search"
    if best.plan.job.schedule.skeleton == plans.job.schedule.skeleton:
        return []
    other, other_s = "in 1F1B", _usual_s(plans)
    if SKELETONS[best.plan.strategy.skeleton].split_backward:
        other, other_s = "whose backward is not split", plans.unequal.whole_s
    if isinf(other_s):
        return []
    more = 100 * (other_s / best.step_s - 1)
    return wrapped(f"the fastest plan {other} takes {format_time(other_s)}, {more:.1f} % more")


def _usual_s(plans: EveryPlan) -> float:
    """The step of the fastest plan in the job's own order; infinite where none is known."""
    alike = plans.alike.tried if plans.alike is not None else ()
    unequal = plans.unequal.trainable if plans.unequal is not None else ()
    steps = [(tried.plan.job.schedule.skeleton, tried.step_s) for tried in alike]
    steps += [(timed.plan.job.schedule.skeleton, timed.step_s) for timed in unequal]
    asked = plans.job.schedule.skeleton
    return min((step_s for skeleton, step_s in steps if skeleton == asked), default=inf)


def _step(plans: EveryPlan, plan: Timed) -> str:
    job = plans.job
    tokens = job.batch.sequences * job.model.sequence_length
    return (
        f"step {format_time(plan.step_s)}, {tokens / plan.step_s:,.1f} tokens/s; proven peak "
        f"{format_bytes(plan.bound_bytes)} on the fullest rank"
    )


def _refused(plan: Timed) -> list[str]:
    return [f"`ratrain train` cannot run it: {reason}" for reason in plan.refusals]


def _beyond(plans: EveryPlan) -> list[str]:
    """What is faster still, and how fast any plan could be."""
    unequal, lines = plans.unequal, list[str]()
    assert unequal is not None
    faster = plans.faster
    if faster is not None:
        lines += ["", "Faster, but not trainable yet (--fastest FILE writes it):"]
        lines += [f"  {line}" for line in Case(faster.plan).headline()[1:]]
        lines += [f"  {_step(plans, faster)}"]
        lines += [f"  {part}" for line in _refused(faster) for part in wrapped(line)]
    elif plans.best is None:
        lines += wrapped("no plan with unequal replicas or stages was faster")
    lines += wrapped(
        f"{unequal.drafts:,} plans with unequal replicas ranked and {unequal.shared:,} with stages "
        f"of several members, {unequal.simulated} simulated ({format_time(unequal.total_s)}); no "
        f"plan of these devices with micro-batches of up to {LARGEST_MICRO_BATCH} sequences can "
        f"take less than {format_time(unequal.least_s)}"
    )
    return lines


def every_json(plans: EveryPlan, top: int) -> dict[str, Any]:
    """Every figure, with its unit in its key; the plan that is chosen first."""
    job = plans.job
    if plans.alike is not None:
        body = search_json(plans.alike, top)
    else:
        body = {
            "model": job.model.spec.name,
            "cluster": job.cluster.spec.name,
            "devices": job.cluster.devices,
            "budget_bytes": list(job.budgets),
            "plans": [],
        }
    chosen = chosen_json(plans)
    return {
        "chosen": chosen,
        **body,
        "tokens_per_s": chosen["tokens_per_s"],
        "unequal": unequal_json(plans.unequal, top),
    }


def chosen_json(plans: EveryPlan) -> dict[str, Any]:
    """The plan that `ratrain plan` writes, whether its replicas are identical or differ."""
    chosen, job = plans.chosen, plans.job
    return {
        "identical_replicas": chosen.plan.is_layout,
        "tokens_per_s": job.batch.sequences * job.model.sequence_length / chosen.step_s,
        **simulated_json(chosen),
    }


def unequal_json(unequal: UnequalSearch | None, top: int) -> dict[str, Any] | None:
    """What the search for plans of stages or replicas that differ has found."""
    if unequal is None:
        return None
    return {
        "trainable": [simulated_json(plan) for plan in unequal.trainable[:top]],
        "only_simulated": [simulated_json(plan) for plan in unequal.others[:top]],
        "least_step_time_s": unequal.least_s,
        "ranked": unequal.drafts,
        "ranked_of_members": unequal.shared,
        "simulated": unequal.simulated,
        "search_time_s": unequal.total_s,
        "moves": [
            {
                "move": move.name,
                "changes": move.words,
                "drafts": move.drafts,
                "best_step_time_s": move.best_s,
                "step_time_s": move.step_s,
            }
            for move in unequal.moves
        ],
    }
