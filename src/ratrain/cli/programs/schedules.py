"""`ratrain schedules`: every compute order on one job, and one found by search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.jobs import refuse_overrides, set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_SEED, PATH, Real, Whole

if TYPE_CHECKING:
    from ratrain.describe.job import JobSpec
    from ratrain.plan.orders import LaidOut


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
    job without a layout is planned first. Of a plan file (.json), and of a job whose plan has
    stages or replicas that differ, the compute orders are compared on these, with the plan's own
    passes. Each program is proved and simulated at full size; an order that does not repeat (gpipe,
    breadth-first) is left out where it is very long. An interleaved order gets two stages per rank
    if the layout has one.

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
    from ratrain.cli.terminal.progress import progress
    from ratrain.plan.orders import Limits, compare, search_compared
    from ratrain.plan.words import compared_json, compared_text, order_found_json, order_found_text
    from ratrain.readers.writing import write_whole

    _require_searched(save, evaluations, search)
    subject, asked = _subject(job, overrides)
    with progress("simulating", "schedules") as report:
        compared = compare(subject, report)
    result = None
    if search:
        with progress("searching", "s") as report:
            result = search_compared(compared, Limits(seconds, evaluations), seed, report)
        if save is not None and result.order is not None:
            write_whole(save, result.order.csv)
    if as_json:
        body = compared_json(compared)
        if result is not None:
            body["search"] = order_found_json(result, compared, asked, save)
        print_json("schedules", body)
        return
    click.echo("\n".join(compared_text(compared)))
    if result is not None:
        click.echo("")
        click.echo("\n".join(order_found_text(result, compared, asked, save)))


def _subject(file: Path, overrides: tuple[str, ...]) -> tuple[LaidOut, JobSpec]:
    """What orders are compared on, and the job as its file, or the plan, has it."""
    from ratrain.cli.terminal.progress import progress
    from ratrain.plan import load_job, load_plan, plan_of_file
    from ratrain.plan.orders import LaidOut, laid_out

    if file.suffix == ".json":
        refuse_overrides(file, overrides)
        plan = plan_of_file(load_plan(file), str(file))
        return LaidOut(plan.job, file, plan), plan.job
    asked = load_job(file, overrides)
    with progress("planning", "plans") as report:
        return laid_out(asked, report), asked


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
