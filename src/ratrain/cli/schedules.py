"""`ratrain schedules`: every compute order on one job, and one found by search."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.jobs import refuse_overrides, set_values
from ratrain.cli.json_output import print_json
from ratrain.cli.options import MOST_SEED, PATH, Real, Whole


@click.command()
@click.argument("job", type=PATH)
@set_values
@click.option("--search", is_flag=True, help="Search for a faster order than those with a name.")
@click.option(
    "--seconds",
    type=Real(0.1, 86_400),
    default=30.0,
    show_default=True,
    help="Time limit of the search.",
)
@click.option(
    "--evaluations",
    type=Whole(1, 10**9),
    help="Maximum orders timed (makes the search repeatable).",
)
@click.option(
    "--seed", type=Whole(0, MOST_SEED), default=0, show_default=True, help="Seed of the search."
)
@click.option(
    "--save", type=PATH, help="Write the order found to this CSV file; jobs can train with it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    job: Path,
    overrides: tuple[str, ...],
    search: bool,
    seconds: float,
    evaluations: int | None,
    seed: int,
    save: Path | None,
    as_json: bool,
) -> None:
    """Compare all schedules (compute orders with their passes) on a job, in one table:
    predicted step time, proven memory, and whether it fits.

    JOB is a job file (.toml). All schedules get the job's layout, batch and memory budget; a
    job without a layout is planned first. Of a plan file (.json), whose replicas may differ, the
    compute orders are compared on the plan's own replicas, with its own passes. Each program is
    proved and simulated at full size; an order that does not repeat (gpipe, breadth-first) is left
    out where it is very long. An interleaved order gets two stages per rank if the layout has one.

    With --search, it searches for an order tailored to this job, beginning with the named orders
    that fit: forwards further ahead, backward split in two, single ops earlier or later. The
    order found is proved and simulated like the others, and trains like any order.

    \b
    Examples:
      ratrain schedules examples/small.toml
      ratrain schedules examples/small.toml --json
      ratrain schedules examples/small.toml --search --seconds 10 --save mine.csv
      ratrain schedules examples/unequal-replicas.json --search --seconds 10
    """
    from ratrain.cli.progress import progress

    _require_searched(save, evaluations, search)
    if job.suffix == ".json":
        refuse_overrides(job, overrides)
        _orders_of_plan(job, (seconds, evaluations, seed) if search else None, save, as_json)
        return

    from ratrain.plan.jobs import load_job
    from ratrain.plan.schedules import compare_schedules, comparison_json, comparison_text

    described = load_job(job, overrides)
    with progress("simulating", "schedules") as report:
        comparison = compare_schedules(described, report)
    if not search:
        if as_json:
            print_json("schedules", comparison_json(comparison))
        else:
            click.echo("\n".join(comparison_text(comparison)))
        return

    from ratrain.plan.order_search import Limits
    from ratrain.plan.searched_order import search_for
    from ratrain.plan.searched_words import search_json, search_text
    from ratrain.readers.writing import write_whole

    with progress("searching", "s") as report:
        result = search_for(comparison, Limits(seconds, evaluations), seed, report)
    if save is not None and result.order is not None:
        write_whole(save, result.order.csv)
    if as_json:
        searched = search_json(result, comparison, described, save)
        print_json("schedules", {**comparison_json(comparison), "search": searched})
        return
    click.echo("\n".join(comparison_text(comparison)))
    click.echo("")
    click.echo("\n".join(search_text(result, comparison, described, save)))


def _orders_of_plan(
    file: Path, effort: tuple[float, int | None, int] | None, save: Path | None, as_json: bool
) -> None:
    """The orders of a plan file; `effort`: the seconds, orders and seed of a search."""
    from ratrain.cli.progress import progress
    from ratrain.plan.order_search import Limits
    from ratrain.plan.plan_file import load_plan
    from ratrain.plan.plan_orders import compare_orders, search_orders_of_plan
    from ratrain.plan.plan_orders_words import (
        orders_json,
        orders_text,
        searched_json,
        searched_text,
    )
    from ratrain.plan.uneven_read import uneven_plan
    from ratrain.readers.writing import write_whole

    plan = uneven_plan(load_plan(file), str(file))
    with progress("simulating", "orders") as report:
        orders = compare_orders(plan, file, report)
    result = None
    if effort is not None:
        seconds, evaluations, seed = effort
        with progress("searching", "s") as report:
            result = search_orders_of_plan(orders, Limits(seconds, evaluations), seed, report)
        if save is not None and result.order is not None:
            write_whole(save, result.order.csv)
    if as_json:
        searched = {} if result is None else {"search": searched_json(result, orders, save)}
        print_json("schedules", {**orders_json(orders), **searched})
        return
    click.echo("\n".join(orders_text(orders)))
    if result is not None:
        click.echo("")
        click.echo("\n".join(searched_text(result, orders, save)))


def _require_searched(save: Path | None, evaluations: int | None, search: bool) -> None:
    """Refuses options of a search without one, and a file that no job would take as an order."""
    from ratrain.errors import SpecError

    if not search and (save is not None or evaluations is not None):
        raise SpecError(
            "there is no order to save or to time without a search",
            place="--save" if save is not None else "--evaluations",
            fix="add --search",
        )
    if save is not None and save.suffix != ".csv":
        raise SpecError(
            f"{save} does not end in .csv, so a job would take it for the name of an order",
            place="--save",
            fix=f"write --save {save.with_suffix('.csv')}",
        )
