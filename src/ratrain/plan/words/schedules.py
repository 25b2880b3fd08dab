"""Schedules compared, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from ratrain.describe.units import format_bytes, format_time
from ratrain.plan.case.case import Case
from ratrain.plan.orders.schedules import ComparedSchedule, Comparison, fastest_s
from ratrain.plan.words.tables import WIDTH, table_lines


def compared_json(comparison: Comparison) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    job = comparison.job
    rows = [_row_json(row, comparison.tokens) for row in comparison.rows]
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
        yield from _table(comparison.rows, plan.strategy.skeleton, ("order", "the plan's order"))
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
    yield from _table(comparison.rows, job.schedule.name, ("schedule", "the job's schedule"))


def _table(rows: Sequence[ComparedSchedule], marked: str, what: tuple[str, str]) -> Iterator[str]:
    """Rows in sequence as a table in lines of at most 80 columns, and why some have no figures.
    `what`: what a row is, and what the one of the marked name is."""

    named = any(row.order != row.name for row in rows)
    columns = (
        (what[0], False),
        *([("order", False)] if named else []),
        ("step", True),
        ("slower", True),
        ("memory", True),
        ("fits", False),
    )
    least_s = fastest_s(rows)
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
