"""The plans beside the one that is explained, in words: how much slower they are, or faster."""

from __future__ import annotations

from collections.abc import Iterator

from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan.case.case import Case
from ratrain.plan.case.replicas_words import short_name
from ratrain.plan.layout.plan import Plan
from ratrain.plan.search.every_plan import EveryPlan
from ratrain.plan.search.moves import MoveTried
from ratrain.plan.search.tried import Timed
from ratrain.plan.words.tables import table, table_lines, wrapped

SHOWN = 6
"""Plans of each sort."""
ALIKE = 5e-4
"""Steps that differ by less of one are called equal."""


def others_text(subject: Plan, step_s: float, known: EveryPlan) -> Iterator[str]:
    """How the plan stands among those that the planner found, and these."""
    yield from _unequal_text(subject, step_s, known)
    yield from _moves_text(known)
    alike, uneven = known.alike, not subject.is_layout
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


def _unequal_text(subject: Plan, step_s: float, known: EveryPlan) -> Iterator[str]:
    """The plans whose stages or replicas differ, beside the plan itself."""
    if known.unequal is None:
        return
    itself = "" if subject.is_layout else Case(subject).short_name
    others = [
        plan
        for plan in (*known.unequal.trainable, *known.unequal.others)
        if abs(plan.step_s / step_s - 1) > 1e-9 or short_name(plan.plan) != itself
    ]
    if not others:
        words = "No plan" if subject.is_layout else "No other plan"
        yield f"{words} whose stages or replicas differ is faster than identical replicas."
        yield ""
        return
    faster = sum(plan.step_s < step_s * (1 - ALIKE) for plan in others)
    if faster:
        yield f"{counted(faster, 'plan')} whose stages or replicas differ would be faster:"
    else:
        least = min(others, key=lambda plan: plan.step_s)
        yield from wrapped(
            f"The runner-up whose stages or replicas differ takes {_more(least.step_s, step_s)}:"
        )
    yield from _table(sorted(others, key=lambda plan: plan.step_s), step_s)
    yield ""


def _moves_text(known: EveryPlan) -> Iterator[str]:
    """What each move of the search would make of the plan that it took."""
    moves = known.unequal.moves if known.unequal is not None else ()
    if not moves:
        return
    yield from wrapped("One change more of the best plan, at the grain of stages:")
    columns = ("plans", True), ("best", True), ("step", True), ("move: what changes", False)
    yield from table_lines(columns, [_move_row(move) for move in moves])
    yield ""


def _move_row(move: MoveTried) -> tuple[str, str, str, str]:
    words = f"{move.name}: {move.words}"
    if move.best_s is None:
        return "0", "-", "-", words
    more = 100 * (move.best_s / move.step_s - 1)
    return str(move.drafts), f"{more:+.2f} %", format_time(move.best_s), words


def _table(plans: list[Timed], step_s: float) -> list[str]:
    columns = ("step", True), ("than\nthis", True), ("memory", True), ("replicas; levels", False)
    different = dict.fromkeys(_row(plan, step_s) for plan in plans)  # what reads the same once
    return table_lines(columns, list(different)[:SHOWN])


def _row(plan: Timed, step_s: float) -> tuple[str, str, str, str]:
    only = "" if not plan.refusals else "; only simulated"
    return (
        format_time(plan.step_s),
        f"{round(100 * (plan.step_s / step_s - 1), 2) + 0.0:+.2f} %",
        format_bytes(plan.bound_bytes),
        f"{short_name(plan.plan)}; sharding {plan.plan.mode.sharding}{only}",
    )


def _more(other_s: float, step_s: float) -> str:
    more = other_s / step_s - 1
    return "as much time" if abs(more) < ALIKE else f"{100 * more:.1f} % more time"
