"""`ratrain verify`: prove that a program is sound and fits."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(file: Path, as_json: bool) -> None:
    """Prove a program: every send has its receive, nothing waits for ever, nothing is read before
    it is written or after it is freed, every gradient is complete, and memory fits on any timing.

    FILE is a program's text (from `ratrain program --form text`), a job (.toml), a plan (.json), or
    a PyTorch pipelining schedule (.csv), of which the compute order is taken. The exit status is 0
    where nothing is found, 3 where only memory is over its budget, else 4.

    \b
    Example:
      ratrain program examples/small.toml --form text -o small.program
      ratrain verify small.program
    """
    from ratrain.cli.jobs import case_of_file
    from ratrain.describe.units import format_bytes
    from ratrain.errors import SpecError
    from ratrain.program.csv import program_of_csv
    from ratrain.program.grid import draw
    from ratrain.program.setup import Unit
    from ratrain.program.text import read_text
    from ratrain.program.verify import Rule, verify

    try:
        if file.suffix in (".toml", ".json"):
            program = case_of_file(file).program
        elif file.suffix == ".csv":
            program = program_of_csv(file.read_text(), Unit("stage"), str(file))
        else:
            program = read_text(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read: {error}", place=str(file)) from error
    verdict = verify(program)
    table = program.table
    if as_json:
        body = {
            "sound": verdict.sound,
            "ops": len(table),
            "findings": [
                {
                    "rule": f.rule.value,
                    "rank": f.rank,
                    "op": table.word(f.op) if f.op >= 0 else None,
                    "state": f.state or None,
                    "message": f.message,
                }
                for f in verdict.findings
            ],
            "bounds": [
                {"rank": b.rank, "peak_bytes": b.total_bytes, "items_bytes": b.by_family}
                for b in verdict.bounds
            ],
        }
        click.echo(json.dumps(body, indent=2))
    else:
        if verdict.findings:
            marked = {finding.op for finding in verdict.findings if finding.op >= 0}
            click.echo("\n".join(draw(program, marked)) + "\n")
        for finding in verdict.findings[:20]:
            click.echo(fill(f"{finding.rule}: {finding.message}", 80, subsequent_indent="  "))
        if len(verdict.findings) > 20:
            click.echo(f"... and {len(verdict.findings) - 20} more findings")
        if verdict.bounds:
            worst = max(verdict.bounds, key=lambda bound: bound.total_bytes)
            budget = program.setup.budget_bytes
            click.echo(
                f"memory on any timing: at most {format_bytes(worst.total_bytes)} "
                f"(rank {worst.rank})" + (f" of {format_bytes(budget)}" if budget else "")
            )
        if verdict.sound:
            click.echo(
                f"sound: {len(table):,} ops of {program.setup.ranks} ranks, two steps walked"
            )
    if not verdict.sound:
        only_memory = all(f.rule is Rule.OVER_BUDGET for f in verdict.findings)
        raise SystemExit(3 if only_memory else 4)
