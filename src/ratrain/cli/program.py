"""`ratrain program`: build the program of a job and show it."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--schedule", metavar="NAME", help="Another strategy than the job's, by name.")
@click.option("--without", multiple=True, metavar="PASS", help="Leave a pass out.")
@click.option(
    "--form",
    type=click.Choice(["picture", "text", "csv", "csv-comms"]),
    default="picture",
    show_default=True,
    help="picture: rank by time; text: all of it, parses back; csv: for PyTorch pipelining.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(
    job: Path,
    schedule: str | None,
    without: tuple[str, ...],
    form: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Build the program of a job: every op of one step, rank by rank and lane by lane.

    \b
    Examples:
      ratrain program examples/small.toml
      ratrain program examples/small.toml --form text -o small.program
      ratrain verify small.program
    """
    from ratrain.cli.jobs import case_of_file
    from ratrain.program.csv import write_csv
    from ratrain.program.grid import draw
    from ratrain.program.text import write_text
    from ratrain.timeline.timeline import write_whole

    case = case_of_file(job, schedule, without)
    program = case.program
    if form == "text":
        shown = write_text(program)
    elif form == "picture":
        shown = "\n".join([*case.headline(), "", *draw(program)])
    else:
        shown = write_csv(program, comms=form == "csv-comms")
    if output is not None:
        write_whole(output, shown + "\n" * (not shown.endswith("\n")))
    if as_json:
        body = {
            "job": case.facts(),
            "passes": list(program.passes),
            "ops": len(program.table),
            "ranks": program.setup.ranks,
            "form": form,
            "output": str(output) if output else None,
            "program": shown,
        }
        click.echo(json.dumps(body, indent=2))
    elif output is None:
        click.echo(shown.rstrip("\n"))
    else:
        click.echo(f"{len(program.table):,} ops of {program.setup.ranks} ranks in {output}")
