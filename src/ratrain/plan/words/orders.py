"""Compute orders compared, and an order found by search, in words and as JSON: what it gains, why,
and how to train it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan.case.case import Case
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.orders.clock import Order, Orders
from ratrain.plan.orders.schedules import ComparedSchedule, Comparison
from ratrain.plan.orders.search import SearchedOrder, SearchResult, forwards_ahead
from ratrain.plan.words.planned import WIDTH, table_lines
from ratrain.program.kind import Kind, Lane
from ratrain.program.replicas import Recovery
from ratrain.program.strategies import (
    BACKWARD_RECOVERY,
    FORWARD_RECOVERY,
    LAYERWISE,
    PREFETCH,
    Strategy,
)
from ratrain.simulate.result import RankTimes
from ratrain.simulate.simulate import Simulation
from ratrain.simulate.step_bound_words import bound_reason


def compared_json(comparison: Comparison) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    job = comparison.job
    rows = [_row_json(row, job.tokens) for row in comparison.rows]
    if comparison.plan is not None:
        return {"plan": Case(comparison.plan).facts(), "schedules": rows}
    layout = comparison.layout
    return {
        "model": job.model.spec.name,
        "cluster": job.cluster.spec.name,
        "devices": job.cluster.devices,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "tensor": layout.tensor,
        "micro_batch": job.batch.micro_batch,
        "budget_bytes": job.budgets[0],
        "schedules": rows,
    }


def _row_json(row: ComparedSchedule, tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {"schedule": row.name, "order": row.order, "doc": row.doc}
    if row.predicted is None:
        return {**body, "fits": False, "problem": row.problem}
    return {
        **body,
        "fits": row.predicted.fits,
        "step_time_s": row.predicted.step_s,
        "tokens_per_s": tokens / row.predicted.step_s,
        "bound_bytes": row.predicted.bound_bytes,
        "bubble_fraction": row.predicted.bubble,
        "stages_per_rank": row.predicted.stages_per_rank,
    }


def compared_text(comparison: Comparison) -> Iterator[str]:
    """One table in lines of at most 80 columns, and why some cannot run."""
    job, plan = comparison.job, comparison.plan
    if plan is not None:
        yield from Case(plan).headline()
        yield ""
        yield from _table(comparison, plan.strategy.skeleton, ("order", "the plan's order"))
        return
    layout = comparison.layout
    yield from wrap(
        f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}: pipeline "
        f"{layout.pipeline} x data {layout.data} x tensor {layout.tensor}, micro-batches of "
        f"{job.batch.micro_batch}; memory budget {format_bytes(job.budgets[0])}",
        WIDTH,
        subsequent_indent="  ",
    )
    yield ""
    yield from _table(comparison, job.schedule.name, ("schedule", "the job's schedule"))


def _table(comparison: Comparison, marked: str, what: tuple[str, str]) -> Iterator[str]:
    """Rows in sequence as a table in lines of at most 80 columns, and why some have no figures.
    `what`: what a row is, and what the one of the marked name is."""
    rows, least_s = comparison.rows, comparison.fastest_s
    named = any(row.order != row.name for row in rows)
    columns = (
        (what[0], False),
        *([("order", False)] if named else []),
        ("step", True),
        ("slower", True),
        ("memory", True),
        ("fits", False),
    )
    cells = [_cells(row, row.name == marked, named, least_s) for row in rows]
    yield from table_lines(columns, cells, breaks=0)
    yield ""
    divided = any(row.predicted and row.predicted.stages_per_rank > 1 for row in rows)
    twice = "x2: two stages per rank. " if named and divided else ""
    yield from wrap(
        f"*: {what[1]}. {twice}slower: compared with the fastest that fits. memory: proven peak "
        "of the fullest rank.",
        WIDTH,
    )
    for row in rows:
        if row.problem:
            yield from wrap(f"{row.name}: {row.problem}", WIDTH, subsequent_indent="  ")


def _cells(row: ComparedSchedule, marked: bool, named: bool, least_s: float | None) -> list[str]:
    """A row; `named`: with the order's name."""
    name, known = ("*" if marked else " ") + row.name, row.predicted
    if known is None:
        return [name, *([row.order] if named else []), "-", "-", "-", "-"]
    more = "-" if least_s is None else f"{100 * (known.step_s / least_s - 1):.1f} %"
    stages = f" x{known.stages_per_rank}" if known.stages_per_rank > 1 else ""
    return [
        name,
        *([row.order + stages] if named else []),
        format_time(known.step_s),
        more,
        format_bytes(known.bound_bytes),
        "yes" if known.fits else "NO",
    ]


def order_found_text(
    result: SearchResult, comparison: Comparison, asked: JobSpec, file: Path | None
) -> Iterator[str]:
    """What a search led to, in lines of at most 80 columns. `asked`: the job as its file has it,
    perhaps without a layout; `file`: where the order was saved."""
    order = result.order
    tried = f"{result.effort.evaluations:,} orders timed in {format_time(result.effort.seconds)}"
    if order is None and not result.effort.evaluations:
        yield from wrapped(
            f"Nothing was searched: the time ran out before the search began "
            f"({format_time(result.effort.seconds)}). Allow more time with --seconds."
        )
    elif order is None:
        yield from wrapped(f"Search: {tried}, none faster than the fastest named order.")
    if order is None:
        return
    yield from _order_text(order, tried, comparison)
    if file is None:
        yield "Add --save FILE.csv to keep the order in a file that trains."
        return
    if comparison.plan is not None:
        where = str(comparison.file)
        if comparison.planned:
            where = f"the plan file (`ratrain plan {where} -o PLAN.json`)"
        yield from wrapped(
            f'Write "skeleton": "{_as_in_plan(file, comparison)}" into {where}: the plan is then '
            "simulated and trained in this order."
        )
        return
    yield from wrapped(f"Train it, from {file}:")
    yield "  ratrain train " + str(asked.path or "JOB") + " \\"
    said = [f"    --set '{setting}'" for setting in settings(order, asked, file)]
    yield from (f"{line} \\" for line in said[:-1])
    yield said[-1]


def _order_text(order: SearchedOrder, tried: str, comparison: Comparison) -> Iterator[str]:
    """What an order gains over those with a name, why, and what it is proved to need."""
    yield from wrapped(
        f"Search: an order with {format_time(order.step_s)} per step, "
        f"{100 * order.gain_over(order.named_simulation.step_time_s):.1f} % less than "
        f"{order.named.name}, the fastest named order that fits ({tried})."
    )
    yield ""
    columns = ("named order that fits", False), ("step", True), ("gain over it", True)
    gains = _gains(order, comparison)
    cells = [(name, format_time(step_s), f"{100 * gain:.1f} %") for name, step_s, gain in gains]
    yield from table_lines(columns, cells)
    yield ""
    yield "Why:"
    for reason in reasons(order):
        yield from wrapped(f"- {reason}")
    peaks = [
        f"rank {rank} {format_bytes(bound)}"
        + ("" if budget is None else f" of {format_bytes(budget)}")
        for rank, bound, budget in _memory(order)
    ]
    yield from wrapped(f"Proved to fit on every rank; proven peaks: {'; '.join(peaks)}.")


def _gains(order: SearchedOrder, comparison: Comparison) -> Iterator[tuple[str, float, float]]:
    for row in comparison.fitting:
        if row.predicted is not None:
            yield row.name, row.predicted.step_s, order.gain_over(row.predicted.step_s)


def order_found_json(
    result: SearchResult, comparison: Comparison, asked: JobSpec, file: Path | None
) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    order = result.order
    body: dict[str, Any] = {
        "evaluations": result.effort.evaluations,
        "search_time_s": result.effort.seconds,
        "faster": order is not None,
    }
    if order is None:
        return body
    said = _order_json(order, comparison)
    said["file"] = None if file is None else str(file)
    saved = file or Path("order.csv")
    if comparison.plan is not None:
        return {**body, "order": {**said, "skeleton": _as_in_plan(saved, comparison)}}
    assert order.job.layout is not None
    whose = {"schedule": order.job.schedule.name, "stages_per_rank": order.job.layout.virtual}
    return {**body, "order": {**whose, **said, "settings": settings(order, asked, saved)}}


def _order_json(order: SearchedOrder, comparison: Comparison) -> dict[str, Any]:
    """An order: its figures, what it gains over those with a name, and why."""
    simulation = order.simulation
    return {
        "step_time_s": order.step_s,
        "tokens_per_s": comparison.job.tokens / order.step_s,
        "bound_bytes": simulation.bound_bytes,
        "bubble_fraction": simulation.bubble_fraction,
        "gains": [
            {"schedule": name, "gain_fraction": gain} for name, _, gain in _gains(order, comparison)
        ],
        "reasons": reasons(order),
        "memory": [
            {"rank": rank, "bound_bytes": bound, "budget_bytes": budget}
            for rank, bound, budget in _memory(order)
        ],
    }


def reasons(order: SearchedOrder) -> list[str]:
    """Why it is faster than the fastest named order: what its longest chain no longer waits for,
    and what is different."""
    before, now = _chain(order.named_simulation), _chain(order.simulation)
    words = [
        f"in {order.named.name} the critical path of a step contains {before.words}; here it "
        f"contains {now.words}",
        _weights_words(order),
    ]
    ahead = [
        " ".join(str(forwards_ahead(of_rank)) for of_rank in orders)
        for orders in (order.orders, order.named_orders)
    ]
    if order.by_unit:
        words.append(_layers_words(order.orders[0]))
    elif ahead[0] != ahead[1]:
        words.append(
            f"forwards before the first backward, rank by rank: {ahead[0]} instead of {ahead[1]}"
        )
    words += _turned_words(order)
    if order.same_passes is not None:
        name, same_s = order.same_passes
        words.append(
            f"it uses the passes of {order.job.schedule.name}; with those passes the fastest named "
            f"compute order, {name}, takes {format_time(same_s)} per step, so "
            f"{100 * order.gain_over(same_s):.1f} % come from the order alone"
        )
    bound = order.simulation.bound
    if bound is not None:
        words.append(
            f"no order of the same ops can gain more than "
            f"{max(0.0, 100 * (1 - bound.time_s / order.step_s)):.1f} %: {bound_reason(bound)}"
        )
    return [sentence for sentence in words if sentence]


@dataclass(frozen=True)
class _Chain:
    """What the critical path of a step spends its time on."""

    busiest: int  # the rank that computes most
    messages_s: float
    elsewhere_s: float  # computing on other ranks

    @property
    def words(self) -> str:
        elsewhere = f"{format_time(self.elsewhere_s)} of compute on ranks other than {self.busiest}"
        return f"{format_time(self.messages_s)} of messages and {elsewhere}"


def _chain(simulation: Simulation) -> _Chain:
    def computed_s(times: RankTimes) -> float:
        return times.compute_s + times.recovery_s

    busiest = max(simulation.ranks, key=computed_s)

    def spent_s(kinds: tuple[Kind, ...], besides: int = -1) -> float:
        names = [kind.name for kind in kinds]
        return sum(
            part.time_s
            for part in simulation.critical
            if part.kind in names and part.rank != besides
        )

    return _Chain(
        busiest.rank,
        spent_s((Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)),
        spent_s((Kind.F, Kind.B, Kind.I, Kind.W, Kind.R), besides=busiest.rank),
    )


def _layers_words(order: Order) -> str:
    """How many micro-batches go layer by layer where a step begins and ends."""
    first = next((turn for turn, piece in enumerate(order) if piece[1] > 0), len(order))
    last = next((turn for turn, piece in enumerate(reversed(order)) if piece[1] > 0), len(order))
    return (
        f"a step begins with {counted(first, 'forward')} of its first unit in a row and ends with "
        f"{counted(last, 'backward')} of it, layer by layer, so that gathers and reductions have "
        "that long"
    )


_TURNS = {Lane.REDUCE: "reductions", Lane.GATHER: "weight gathers"}


def _turned_words(order: SearchedOrder) -> Iterator[str]:
    for (place, lane), turns in order.turned.items():
        units = " ".join(f"{stage}.{unit}" for _, stage, unit in turns)
        yield (
            f"{_TURNS[lane]} of rank {place} take these turns of stages' units, and not those that "
            f"follow from its compute: {units}"
        )


def _weights_words(order: SearchedOrder) -> str:
    """What became of weight gradients, where backward is split."""
    put_off, all_of_them = _put_off(order.orders), _weights(order.orders)
    if not all_of_them:
        return ""
    if not _weights(order.named_orders):
        return (
            "backward is split: the gradient for the previous stage is sent before the weight "
            f"gradient is computed; {put_off} of {all_of_them} weight gradients are delayed to "
            "fill waits"
        )
    return (
        f"{put_off} of {all_of_them} weight gradients are delayed to fill waits, instead of "
        f"{_put_off(order.named_orders)} in {order.named.name}"
    )


def _weights(orders: Orders) -> int:
    return sum(kind is Kind.W for order in orders for kind, _, _ in order)


def _put_off(orders: Orders) -> int:
    """Weight gradients that do not directly follow their input gradient."""
    return sum(
        after[0] is Kind.W and before != (Kind.I, *after[1:])
        for order in orders
        for before, after in pairwise(order)
    )


def _memory(order: SearchedOrder) -> Iterator[tuple[int, int, int | None]]:
    """Of each rank the proven bytes and the budget."""
    setup = order.simulation.program.setup
    for bound in order.simulation.verdict.bounds:
        yield bound.rank, bound.total_bytes, setup.budget_of(bound.rank)


# ---- how to train it --------------------------------------------------------------------


def settings(order: SearchedOrder, asked: JobSpec, file: Path) -> list[str]:
    """What `--set` must say so that a job takes the order from a file. `asked`: as its file has
    it, where its layout may be missing."""
    chosen = order.job.schedule
    folder = asked.path.parent if asked.path is not None else Path()
    said = [f"schedule.skeleton={os.path.relpath(file, folder)}"]
    if chosen.name != asked.schedule.name:
        said.append(f"schedule.name={chosen.name}")
        if asked.schedule.without:
            said.append("schedule.without=[]")
        if asked.schedule.recovery != "auto":
            said.append("schedule.recovery=auto")
        if asked.schedule.gradient_accumulation != "auto":
            said.append("schedule.gradient_accumulation=auto")
        strategy = strategy_of(replace(order.job, schedule=replace(chosen, skeleton=None)))
        if asked.schedule.sharding is not None:
            said.append(f"schedule.sharding={strategy.sharding}")
        if asked.schedule.passes is not None:
            said.append(f"schedule.passes={json.dumps(_passes(strategy))}")
    layout = order.job.layout
    assert layout is not None
    if asked.batch != order.job.batch:
        said.append(f"batch.micro_batch={order.job.batch.micro_batch}")
    return said + list(_layout_settings(layout, asked.layout))


def _layout_settings(layout: LayoutSpec, asked: LayoutSpec | None) -> Iterator[str]:
    before = asked or LayoutSpec(pipeline=0)
    for key in ("pipeline", "data", "tensor", "virtual"):
        if getattr(layout, key) != getattr(before, key):
            yield f"layout.{key}={getattr(layout, key)}"
    if layout.layers != before.layers:
        layers = layout.layers
        yield f"layout.layers={layers if isinstance(layers, str) else list(layers)}"
    if layout.sequence_parallel != before.sequence_parallel:
        yield f"layout.sequence_parallel={str(layout.sequence_parallel).lower()}"


def _passes(strategy: Strategy) -> list[str]:
    recovery = {Recovery.FORWARD: FORWARD_RECOVERY, Recovery.BACKWARD: BACKWARD_RECOVERY}
    names = [recovery[strategy.recovery]] if strategy.recovery in recovery else []
    names += [LAYERWISE] * strategy.layerwise + [PREFETCH] * strategy.prefetch
    return [*names, *strategy.further]


def _as_in_plan(file: Path, comparison: Comparison) -> str:
    """A file's path as a plan names it: from the plan's own folder, which is the current one where
    the plan is in no file yet."""
    return os.path.relpath(file, Path() if comparison.planned else comparison.file.parent)
