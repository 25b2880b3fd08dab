"""`ratrain verify`: prove that a program is sound and fits."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import click

from ratrain.cli.jobs import set_values
from ratrain.cli.json_output import print_json
from ratrain.cli.options import PATH

if TYPE_CHECKING:
    from ratrain.program.settled import Proved

MOST_DRAWN = 200_000
"""Ops of a program whose findings are also shown in a picture: that of a longer one takes longer
than its proof."""


@click.command()
@click.argument("file", metavar="PROGRAM|JOB|PLAN|CSV", type=PATH)
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(file: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Prove a program: every send has its receive, nothing deadlocks, nothing is read before it
    is written or after it is freed, every gradient is complete, and memory stays within the
    budget in whatever order the ops run.

    Takes a program (from `ratrain program --form text`), a job (.toml), a plan (.json), or the
    compute order of a PyTorch pipelining schedule (.csv). The exit status is 0 if all is proved,
    3 if only memory is over its budget, else 4.

    \b
    Example:
      ratrain program examples/small.toml --form text -o small.program
      ratrain verify small.program
    """
    from ratrain.cli.progress import progress
    from ratrain.describe.units import counted, format_bytes
    from ratrain.program.grid import draw
    from ratrain.program.verify import Rule

    with progress("proving"):
        proved = _proved(file, overrides)
    verdict, program = proved.verdict, proved.short
    table = program.table
    if as_json:
        body = {
            "sound": verdict.sound,
            "ops": proved.program_ops,
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
        print_json("verify", body)
    else:
        if verdict.findings and len(table) <= MOST_DRAWN:
            marked = {finding.op for finding in verdict.findings if finding.op >= 0}
            click.echo("\n".join(draw(program, marked)) + "\n")
        for finding in verdict.findings[:20]:
            click.echo(fill(f"{finding.rule}: {finding.message}", 80, subsequent_indent="  "))
        if len(verdict.findings) > 20:
            click.echo(f"... and {counted(len(verdict.findings) - 20, 'more finding')}")
        if verdict.bounds:
            worst = max(verdict.bounds, key=lambda bound: bound.total_bytes)
            budget = program.setup.budget_of(worst.rank)
            click.echo(
                f"proven peak {format_bytes(worst.total_bytes)} on rank {worst.rank}"
                + (f" (budget {format_bytes(budget)})" if budget else "")
            )
        if verdict.sound:
            ranks = counted(program.setup.ranks, "rank")
            ops = counted(proved.program_ops, "op")
            click.echo(f"sound: {ops} of {ranks}, checked over two steps")
    if not verdict.sound:
        only_memory = all(f.rule is Rule.OVER_BUDGET for f in verdict.findings)
        raise SystemExit(3 if only_memory else 4)


def _proved(file: Path, overrides: tuple[str, ...]) -> Proved:
    """The proof of what a file holds."""
    from ratrain.cli.jobs import case_of_file, refuse_overrides
    from ratrain.program.file import proof_of_file

    if file.suffix in (".toml", ".json"):
        return case_of_file(file, overrides=overrides).proved
    refuse_overrides(file, overrides)
    return proof_of_file(file)
