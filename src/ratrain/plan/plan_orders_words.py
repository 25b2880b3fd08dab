"""Orders on the replicas of a plan, in words and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratrain.describe.lines import wrapped
from ratrain.plan.plan_orders import PlanOrders
from ratrain.plan.schedules import row_json, rows_table
from ratrain.plan.searched_order import SearchResult
from ratrain.plan.searched_words import effort_json, order_json, order_text, unsuccessful_text


def orders_text(orders: PlanOrders) -> Iterator[str]:
    """One table in lines of at most 80 columns, and why some orders cannot run the plan."""
    yield from orders.case.headline()
    yield ""
    yield from rows_table(orders.rows, orders.plan.strategy.skeleton, ("order", "the plan's order"))


def orders_json(orders: PlanOrders) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    case = orders.case
    return {
        "plan": case.facts(),
        "schedules": [row_json(row, case.tokens) for row in orders.rows],
    }


def searched_text(result: SearchResult, orders: PlanOrders, file: Path | None) -> Iterator[str]:
    """What a search led to. `file`: where the order was saved."""
    if result.order is None:
        yield from unsuccessful_text(result.effort)
        return
    yield from order_text(result.order, result.effort, orders.rows)
    if file is None:
        yield "Add --save FILE.csv to keep the order in a file that trains."
        return
    where = str(orders.file)
    if orders.planned:
        where = f"the plan file (`ratrain plan {orders.file} -o PLAN.json`)"
    yield from wrapped(
        f'Write "skeleton": "{_from_plan(file, orders)}" into {where}: the plan is then simulated '
        "and trained in this order."
    )


def searched_json(result: SearchResult, orders: PlanOrders, file: Path | None) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    body = effort_json(result)
    if result.order is not None:
        body["order"] = {
            **order_json(result.order, orders.rows, orders.case.tokens),
            "file": None if file is None else str(file),
            "skeleton": _from_plan(file or Path("order.csv"), orders),
        }
    return body


def _from_plan(file: Path, orders: PlanOrders) -> str:
    """A file's path as a plan names it: from the plan's own folder, which is the current one where
    the plan is in no file yet."""
    return os.path.relpath(file, Path() if orders.planned else orders.file.parent)
