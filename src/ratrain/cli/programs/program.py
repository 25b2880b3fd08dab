"""`ratrain program`: build the program of a job and show it."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.terminal import completion
from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH


@click.command()
@click.argument("job", metavar="JOB|PLAN", type=PATH)
@click.option(
    "--schedule",
    metavar="NAME",
    shell_complete=completion.schedules,
    help="Use this schedule instead of the job's.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="PASS",
    shell_complete=completion.passes,
    help="Leave out a pass, as in `simulate`.",
)
@click.option(
    "--form",
    type=click.Choice(["picture", "text", "csv", "csv-comms"]),
    default="picture",
    show_default=True,
    help="picture: a row per rank; text: complete, for `verify`; csv: for PyTorch pipelining.",
)
@click.option("-o", "--output", type=PATH, help="Write to a file.")
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    job: Path,
    schedule: str | None,
    without: tuple[str, ...],
    form: str,
    output: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Build the program of a job (.toml) or a plan (.json): every op of one step, by rank and
    lane (a queue of ops, like a CUDA stream).

    \b
    Examples:
      ratrain program examples/small.toml
      ratrain program examples/small.toml --form text -o small.program
      ratrain verify small.program
    """
    from ratrain.cli.terminal.jobs import case_of_file
    from ratrain.cli.terminal.progress import progress
    from ratrain.describe.units import counted
    from ratrain.program.pipelining.csv import write_csv
    from ratrain.program.text import write_text
    from ratrain.program.text.grid import draw
    from ratrain.readers.writing import write_whole

    case = case_of_file(job, schedule, without, overrides)
    with progress("building the program"):
        proved = case.proved
        program = proved.short if form == "text" else case.program
    if form == "text":
        text = write_text(proved.program)
    elif form == "picture":
        text = "\n".join([*case.headline(), "", *draw(program)])
    else:
        text = write_csv(program, comms=form == "csv-comms")
    if output is not None:
        write_whole(output, text + "\n" * (not text.endswith("\n")))
    if as_json:
        body = {
            "job": case.facts(),
            "passes": list(program.passes),
            "ops": proved.program_ops,
            "ranks": program.setup.ranks,
            "form": form,
            "output": str(output) if output else None,
            "program": text,
        }
        print_json("program", body)
    elif output is None:
        click.echo(text.rstrip("\n"))
    else:
        ranks = counted(program.setup.ranks, "rank")
        click.echo(f"wrote {output}: {counted(proved.program_ops, 'op')} of {ranks}")
