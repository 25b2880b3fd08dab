"""`ratrain validate`: the cost model scored on published measurements, or on a table of yours."""

from __future__ import annotations

import click

from ratrain.cli.terminal.json_output import print_json


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE|FILE.csv]...")
@click.option("--rows", is_flag=True, help="Print every row: measured, predicted, error.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors are fractions.")
def command(tables: tuple[str, ...], rows: bool, as_json: bool) -> None:
    """Score the cost model against measured step times and memory peaks: one description per
    machine, nothing tuned per row. Each prediction is a simulation of the run's own program.

    Your own table is a CSV file with one run per line: iter_s (or iter_ms), gpus, gbs, and any of
    mbs, tp, pp, dp, model, layers, hidden, heads, vocab, sequence, recompute,
    sequence_parallel, vstage_layers, cluster. A run on unequal devices names a plan file in the
    column plan instead. docs/explanation/accuracy.md explains each.

    With --rows, a star marks the rows that were used for calibration.

    \b
    Examples: ratrain validate
              ratrain validate vtrain_multi_node --rows
              ratrain validate my-runs.csv --json
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.describe.lines import wrapped
    from ratrain.validate.report import HEADER, LEGEND, lines, reports
    from ratrain.validate.report import as_json as report_json

    with progress("predicting", "rows") as tick:
        scored = list(reports(tables, tick))
    if as_json:
        print_json("validate", {"tables": [report_json(report) for report in scored]})
        return
    click.echo(HEADER)
    for report in scored:
        for line in lines(report, rows=rows):
            click.echo(line)
    click.echo("\n".join(["", *wrapped(LEGEND, "")]))
