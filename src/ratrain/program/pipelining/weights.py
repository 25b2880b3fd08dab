"""What is wrong with gathered weights and reduced gradients, where a schedule speaks of them.

A schedule that gathers any stage's weights (UNSHARD) gathers those of each stage before it
computes, once, and lets go of them (RESHARD) before it gathers them again, at the end of the step
too: the next step begins so. One that reduces any stage's gradients reduces those of each, once,
after its last backward; one that awaits any reduction (WAIT_REDUCE_GRAD) awaits each. What a
FULL_FORWARD_BACKWARD computes has its gathers and reductions inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ratrain.program.pipelining.cells import COMPUTE, Act, Action, Schedule
from ratrain.program.pipelining.findings import Finding, Wrong, of_action

GATHERS = frozenset((Act.UNSHARD, Act.RESHARD))
REDUCTIONS = frozenset((Act.REDUCE_GRAD, Act.WAIT_REDUCE_GRAD))


def findings_of_weights(schedule: Schedule) -> Iterator[Finding]:
    """Everything that is wrong with UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD."""
    there = {action.act for action in schedule.actions}
    for row in schedule.of_stages:
        if there & GATHERS:
            yield from _of_gathers(row)
        if there & REDUCTIONS:
            yield from _of_reductions(row)
        if Act.WAIT_REDUCE_GRAD in there:
            yield from _of_waits(row)
    for action in schedule.actions:
        if action.act in GATHERS | REDUCTIONS and (
            action.stage >= schedule.stages or schedule.rank_of[action.stage] != action.rank
        ):
            words = f"is on rank {action.rank}, which does not compute stage {action.stage}"
            yield of_action(Wrong.WRONG_RANK, action, words)


def _of_gathers(row: Sequence[Action]) -> Iterator[Finding]:
    """Of one stage: its weights are there while it computes, and let go between gathers."""
    gathered: Action | None = None
    used = False
    for action in row:
        if action.act is Act.UNSHARD:
            if gathered is not None:
                words = f"gathers weights that are there since {gathered}"
                yield of_action(Wrong.UNSHARDED_TWICE, action, words)
            gathered, used = action, False
        elif action.act is Act.RESHARD:
            if gathered is None:
                words = "lets go of weights that were not gathered"
                yield of_action(Wrong.RESHARDED_TWICE, action, words)
            elif not used:
                words = f"is let go by {action} before anything computes"
                yield of_action(Wrong.UNSHARDED_IN_VAIN, gathered, words)
            gathered = None
        elif action.act in COMPUTE and action.act is not Act.FULL_FORWARD_BACKWARD:
            if gathered is None:
                words = f"computes before {action.stage}UNSHARD: the weights are not there"
                yield of_action(Wrong.NOT_UNSHARDED, action, words)
            used = True
    if gathered is not None:
        words = f"has no {gathered.stage}RESHARD after it: the next step gathers them twice"
        yield of_action(Wrong.NOT_RESHARDED, gathered, words)


def _of_reductions(row: Sequence[Action]) -> Iterator[Finding]:
    """Of one stage: one reduction, after all its backwards."""
    last = last_maker(row)
    reductions = [action for action in row if action.act is Act.REDUCE_GRAD]
    if last is None:
        return
    if not reductions:
        words = f"has no {last.stage}REDUCE_GRAD after it: its gradients are never reduced"
        yield of_action(Wrong.NOT_REDUCED, last, words)
        return
    if reductions[0].turn < last.turn:
        words = f"comes before {last}, which adds to the gradients"
        yield of_action(Wrong.REDUCED_TOO_EARLY, reductions[0], words)
    for again in reductions[1:]:
        yield of_action(Wrong.REDUCED_TWICE, again, f"reduces what {reductions[0]} reduces")


def last_maker(row: Sequence[Action]) -> Action | None:
    """What adds last to the gradients of a stage, if not where they are reduced too."""
    makers = (Act.BACKWARD, Act.WEIGHTS)
    return next((action for action in reversed(row) if action.act in makers), None)


def _of_waits(row: Sequence[Action]) -> Iterator[Finding]:
    """Of one stage: each reduction is awaited, once, after it."""
    pending: Action | None = None
    for action in row:
        if action.act is Act.REDUCE_GRAD:
            if pending is not None:
                yield _not_awaited(pending)
            pending = action
        elif action.act is Act.WAIT_REDUCE_GRAD:
            if pending is None:
                words = f"waits for no {action.stage}REDUCE_GRAD before it"
                yield of_action(Wrong.AWAITED_IN_VAIN, action, words)
            pending = None
    if pending is not None:
        yield _not_awaited(pending)


def _not_awaited(reduction: Action) -> Finding:
    words = f"has no {reduction.stage}WAIT_REDUCE_GRAD after it, and other reductions have"
    return of_action(Wrong.NOT_AWAITED, reduction, words)
