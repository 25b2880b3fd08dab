"""`ratrain schedules`: every compute order on one job."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.jobs import set_values
from ratrain.cli.json_output import print_json
from ratrain.cli.options import PATH


@click.command()
@click.argument("job", type=PATH)
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(job: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Compare all schedules (compute orders with their passes) on a job, in one table:
    predicted step time, proven memory, and whether it fits.

    JOB is a job file (.toml). All schedules get the job's layout, batch and memory budget; a
    job without a layout is planned first. Each program is proved and simulated at full size; an
    order that does not repeat (gpipe, breadth-first) is left out where it is very long.
    An interleaved order gets two stages per rank if the layout has one.

    \b
    Examples:
      ratrain schedules examples/small.toml
      ratrain schedules examples/small.toml --json
    """
    from ratrain.cli.progress import progress
    from ratrain.describe.job import load_job
    from ratrain.plan.schedules import compare_schedules, comparison_json, comparison_text

    described = load_job(job, overrides)
    with progress("simulating", "schedules") as report:
        comparison = compare_schedules(described, report)
    if as_json:
        print_json("schedules", comparison_json(comparison))
    else:
        click.echo("\n".join(comparison_text(comparison)))
