"""`ratrain validate`: the cost model scored on published measurements, or on a table of yours."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE|FILE.csv]...")
@click.option("--rows", is_flag=True, help="Print every row: measured, predicted, error.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors are fractions.")
def command(tables: tuple[str, ...], rows: bool, as_json: bool) -> None:
    """Score the cost model on measured steps and memory peaks: one description per machine, no
    knob per row. Each prediction is the product's own program on the simulator's clock.

    A table of your own is a CSV file, one run a line: iter_s (or iter_ms), gpus, gbs, and what
    of mbs, tp, pp, dp, model, layers, hidden, heads, vocab, sequence, recompute,
    sequence_parallel, vstage_layers, cluster it needs. docs/accuracy.md explains each.

    In --rows a star marks rows that constants were fitted on.

    \b
    Examples: ratrain validate
              ratrain validate vtrain_multi_node --rows
              ratrain validate my-runs.csv --json
    """
    from ratrain.cli.progress import progress
    from ratrain.validate.report import HEADER, lines, reports
    from ratrain.validate.report import as_json as report_json

    with progress("predicting", "rows") as tick:
        found = list(reports(tables, tick))
    if as_json:
        click.echo(json.dumps({"tables": [report_json(report) for report in found]}, indent=2))
        return
    click.echo(HEADER)
    for report in found:
        for line in lines(report, rows=rows):
            click.echo(line)
