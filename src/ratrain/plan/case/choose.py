"""What becomes of activations and gradients in a layout: the fastest that is proved to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf

from ratrain.describe.job import JobSpec
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.further_orders import (
    WORTH_MEMORY,
    WORTH_SPLIT,
    in_order,
    in_split_order,
    orders_tried,
    split_orders_tried,
)
from ratrain.plan.layout.plan import MODES, Plan, group_of_plan
from ratrain.plan.layout.sizes import stores_scores, trains_tied
from ratrain.plan.price.fitted import fitted
from ratrain.plan.price.least_time import least_step_s
from ratrain.plan.price.places import costs_of
from ratrain.plan.price.trial import step_s_of
from ratrain.program.replicas import Recovery


def choose(plan: Plan) -> Plan:
    """The fastest of the possible choices whose whole program is proved to fit; the leanest, where
    none is. Recovery only adds work, so where all activations can be kept nothing else is tried.
    `plan`: of a layout, with nothing chosen yet."""
    tried = list(_choices(plan))
    if len(tried) == 1:
        return tried[0]
    kept = [choice for choice in tried if not _recovers(choice)]
    recovering = [choice for choice in tried if _recovers(choice)]
    return _fastest(plan, kept) or _fastest(plan, recovering) or tried[-1]


def choose_order(plan: Plan) -> Plan:
    """The compute order whose step is the shortest of those that are proved to fit, with what is
    chosen in it. One that needs more memory must gain by it."""
    usual = choose(plan)
    best, best_s = usual, inf
    orders = list(_orders(usual))
    if orders:
        best_s = step_s_of(usual) or inf
    for ordered, worth in orders:
        strategy = replace(plan.strategy, skeleton=str(ordered.schedule.skeleton))
        chosen = choose(replace(plan, job=ordered, strategy=strategy))
        step_s = step_s_of(chosen)
        if step_s is not None and step_s <= best_s * (1 - worth):
            best, best_s = chosen, step_s
    return best


def _orders(usual: Plan) -> Iterator[tuple[JobSpec, float]]:
    """The job in each further order worth a try, and the part of a step that it must save."""
    job, chosen, layout = usual.job, usual.strategy, usual.layout
    for name in orders_tried(job, chosen, layout)[1:]:
        yield in_order(job, name), WORTH_MEMORY
    if not any(mode.again for mode in usual.alike.recovery):
        for name in split_orders_tried(job, chosen, layout):
            yield in_split_order(job, name), WORTH_SPLIT


def _recovers(plan: Plan) -> bool:
    return any(mode is not Recovery.NONE for mode in plan.alike.recovery)


def _fastest(plan: Plan, among: Sequence[Plan]) -> Plan | None:
    """Best first: a choice waits at its lower bound until it is its turn to be simulated, and while
    another that recovers less may fit."""
    if not among:
        return None
    costs = costs_of(plan, plan.setup)
    waiting = [
        (least_step_s(choice.strategy, plan.setup, choice.choices, costs), False, number)
        for number, choice in enumerate(among)
    ]
    heapify(waiting)
    held, ruled_out = list[tuple[float, bool, int]](), set[int]()

    def is_held(number: int) -> bool:
        return any(
            other not in ruled_out
            and among[other].mode == among[number].mode
            and _recovers_less(among[other].alike.recovery, among[number].alike.recovery)
            for other in range(len(among))
        )

    while waiting:
        entry = heappop(waiting)
        _, is_simulated, number = entry
        if is_simulated:
            return among[number]
        if is_held(number):
            held.append(entry)
            continue
        step_s = step_s_of(among[number])
        if step_s is not None:
            heappush(waiting, (step_s, True, number))
            continue
        ruled_out.add(number)
        while held:
            heappush(waiting, held.pop())
    return None


def _recovers_less(modes: Sequence[Recovery], others: Sequence[Recovery]) -> bool:
    """Whether stages recover as others do, but for some that keep their activations."""
    alike = all(mode in (Recovery.NONE, other) for mode, other in zip(modes, others, strict=True))
    return alike and modes != others


def _choices(plan: Plan) -> Iterator[Plan]:
    """What may become of activations and gradients, the leanest last."""
    job, chosen, data = plan.job, plan.strategy, plan.layout.data
    reduces = job.peers(data) > 1 and chosen.sharding >= 2
    if job.backward_sends and data > 1:
        sharded = [True]
    elif job.schedule.gradient_accumulation != "auto":
        sharded = [job.schedule.gradient_accumulation == "sharded"]
    else:
        sharded = [False] if not reduces or trains_tied(job) else [False, True]
    modes = [StateMode(chosen.sharding, is_sharded and reduces) for is_sharded in sharded]
    for recovery in _recoveries(plan):
        for mode in modes:
            yield replace(plan.recovering(recovery), mode=mode)
    may_differ = chosen.recovery is not Recovery.NONE and not chosen.recovers_all
    if job.schedule.recovery == "auto" and may_differ:
        for mode in modes:
            fitting = replace(plan, mode=mode)
            codes = fitted(group_of_plan(fitting))[0][0]
            yield fitting.recovering(tuple(MODES[int(code)] for code in codes))


def _recoveries(plan: Plan) -> Iterator[tuple[Recovery, ...]]:
    """What stages do: all the same, but perhaps the last."""
    chosen, stages, asked = plan.strategy, plan.layout.stages, plan.job.schedule.recovery
    everywhere = (chosen.recovery,) * stages
    ahead = chosen.recovery is Recovery.FORWARD
    named = {
        "keep-all": (Recovery.NONE,) * stages,
        "selective": (Recovery.SELECTIVE,) * stages,
        "exempt-last": (*everywhere[1:], Recovery.NONE) if ahead else everywhere,
        "everywhere": everywhere,
    }
    if asked != "auto":
        yield named[asked]
        return
    if chosen.recovery is not Recovery.NONE and not chosen.recovers_all:
        yield named["keep-all"]
        if stores_scores(plan.job):
            yield named["selective"]
        if ahead:
            yield named["exempt-last"]
    yield everywhere
