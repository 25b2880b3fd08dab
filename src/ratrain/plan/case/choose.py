"""What becomes of activations and gradients in a layout: the fastest that is proved to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

import numpy as np

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.candidate import MODES, choices_of
from ratrain.plan.layout.enumerate import group_of_layout
from ratrain.plan.layout.further_orders import (
    WORTH_MEMORY,
    WORTH_SPLIT,
    in_order,
    in_split_order,
    orders_tried,
    split_orders_tried,
)
from ratrain.plan.layout.placement import Placement
from ratrain.plan.layout.sizes import stores_scores, trains_tied
from ratrain.plan.price.bill import bill
from ratrain.plan.price.durations import costs_of
from ratrain.plan.price.fitted import fitted
from ratrain.plan.price.least_time import least_step_s
from ratrain.plan.price.trial import proof, timed
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Accumulation, Setup
from ratrain.program.strategies import Choices, Strategy, recovery_modes


def choose(job: JobSpec, chosen: Strategy, setup: Setup, placement: Placement) -> Choices:
    """The fastest of the possible choices whose whole program is proved to fit; the leanest, where
    none is. Recovery only adds work, so where all activations can be kept nothing else is tried."""
    candidates = list(_candidates(job, chosen, placement))
    if len(candidates) == 1:
        return candidates[0]
    keeping = [choices for choices in candidates if choices.keep_all]
    recovering = [choices for choices in candidates if not choices.keep_all]
    return (
        _fastest(job, chosen, setup, placement, keeping)
        or _fastest(job, chosen, setup, placement, recovering)
        or candidates[-1]
    )


def choose_order(
    job: JobSpec, chosen: Strategy, setup: Setup, placement: Placement
) -> tuple[JobSpec, Strategy, Choices]:
    """The compute order whose step is the shortest of those that are proved to fit, with what is
    chosen in it. One that needs more memory must gain by it."""
    usual = choose(job, chosen, setup, placement)
    best, best_s = (job, chosen, usual), inf
    orders = list(_orders(job, chosen, usual, placement.layout))
    if orders and proof(chosen, setup, usual).verdict.sound:
        best_s = timed(job, placement, chosen, setup, usual)[0] or inf
    for ordered, worth in orders:
        strategy = replace(chosen, skeleton=str(ordered.schedule.skeleton))
        choices = choose(ordered, strategy, setup, placement)
        step_s = timed(ordered, placement, strategy, setup, choices)[0]
        if step_s is None or step_s > best_s * (1 - worth):
            continue
        if proof(strategy, setup, choices).verdict.sound:
            best, best_s = (ordered, strategy, choices), step_s
    return best


def _orders(
    job: JobSpec, chosen: Strategy, usual: Choices, layout: LayoutSpec
) -> Iterator[tuple[JobSpec, float]]:
    """The job in each further order worth a try, and the part of a step that it must save."""
    for name in orders_tried(job, chosen, layout)[1:]:
        yield in_order(job, name), WORTH_MEMORY
    if not any(mode.again for mode in recovery_modes(chosen, usual, layout.stages)):
        for name in split_orders_tried(job, chosen, layout):
            yield in_split_order(job, name), WORTH_SPLIT


def _fastest(
    job: JobSpec, chosen: Strategy, setup: Setup, placement: Placement, among: Sequence[Choices]
) -> Choices | None:
    """Best first: a choice waits at its lower bound until it is its turn to be timed, and while
    another that recovers less may fit."""
    costs, stages = costs_of(job, placement, setup), placement.layout.stages
    modes = [recovery_modes(chosen, choices, stages) for choices in among]
    waiting = [
        (least_step_s(chosen, setup, choices, costs), False, number)
        for number, choices in enumerate(among)
    ]
    heapify(waiting)
    held, ruled_out = list[tuple[float, bool, int]](), set[int]()

    def is_held(number: int) -> bool:
        return any(
            other not in ruled_out
            and among[other].accumulation is among[number].accumulation
            and _recovers_less(modes[other], modes[number])
            for other in range(len(among))
        )

    while waiting:
        entry = heappop(waiting)
        _, is_timed, number = entry
        if not is_timed and is_held(number):
            held.append(entry)
            continue
        choices = among[number]
        if is_timed and proof(chosen, setup, choices).verdict.sound:
            return choices
        if not is_timed:
            fits = _fits_by_bill(job, chosen, placement, choices)
            step_s = timed(job, placement, chosen, setup, choices, proved_later=fits)[0]
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


def _fits_by_bill(job: JobSpec, chosen: Strategy, placement: Placement, choices: Choices) -> bool:
    """Whether memory is next to certain to suffice: the bill is an upper bound (`bill`)."""
    sharded = choices.accumulation is Accumulation.SHARDED
    group = group_of_layout(job, chosen, placement, sharded)
    modes = recovery_modes(chosen, choices, placement.layout.stages)
    codes = np.array([[MODES.index(mode) for mode in modes]], dtype=np.int64)
    return bool((bill(group, codes).total <= group.budgets).all())


def _candidates(job: JobSpec, chosen: Strategy, placement: Placement) -> Iterator[Choices]:
    """What may become of activations and gradients, the leanest last."""
    modes = [False, True]
    if job.backward_sends and placement.layout.data > 1:
        modes = [True]
    elif job.schedule.gradient_accumulation != "auto":
        modes = [job.schedule.gradient_accumulation == "sharded"]
    elif chosen.sharding < 2 or placement.layout.data == 1 or trains_tied(job):
        modes = [False]
    stages, asked = placement.layout.stages, job.schedule.recovery
    for flags in _recoveries(job, chosen, stages):
        for sharded in modes:
            yield choices_of(job, sharded, **flags)
    if asked == "auto" and chosen.recovery is not Recovery.NONE and not chosen.recovers_all:
        for sharded in modes:
            yield choices_of(job, sharded, recovery=_as_fits(job, chosen, placement, sharded))


def _recoveries(job: JobSpec, chosen: Strategy, stages: int) -> Iterator[dict[str, Any]]:
    """The same for every stage, but perhaps the last."""
    asked, named = (
        job.schedule.recovery,
        {
            "keep-all": {"keep_all": True},
            "selective": {"recovery": (Recovery.SELECTIVE,) * stages},
            "exempt-last": {"exempt_last": True},
            "everywhere": {"exempt_last": False},
        },
    )
    if asked != "auto":
        yield named[asked]
        return
    if chosen.recovery is Recovery.NONE:
        yield named["everywhere"]
        return
    if not chosen.recovers_all:
        yield named["keep-all"]
        if stores_scores(job):
            yield named["selective"]
        if chosen.recovery is Recovery.FORWARD:
            yield named["exempt-last"]
    yield named["everywhere"]


def _as_fits(
    job: JobSpec, chosen: Strategy, placement: Placement, sharded: bool
) -> tuple[Recovery, ...]:
    """Each stage's mode: what it has memory for, by closed formula."""
    group = group_of_layout(job, chosen, placement, sharded)
    return tuple(MODES[int(code)] for code in fitted(group)[0][0])
