"""`ratrain verify`: prove that a program is sound and fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import click

from ratrain.cli.programs.verify_schedule import (
    refuse_schedule_options,
    schedule_options,
    show_check,
    times_of,
    write_repaired,
)
from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH

if TYPE_CHECKING:
    from ratrain.program.pipelining.check import Check
    from ratrain.program.settled import Proved

MOST_DRAWN = 200_000
"""Ops of a program whose findings are also shown in a picture: that of a longer one takes longer
than its proof."""


@click.command()
@click.argument("file", metavar="PROGRAM|JOB|PLAN|CSV", type=PATH)
@schedule_options
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    file: Path,
    messages: str | None,
    times: str | None,
    repair: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Prove a program: every send has its receive, nothing deadlocks, nothing is read before it
    is written or after it is freed, every gradient is complete, and memory stays within the
    budget in whatever order the ops run.

    Takes a program (from `ratrain program --form text`), a job (.toml), a plan (.json), or a
    PyTorch pipelining schedule (.csv). A schedule that says what is sent is checked as written:
    every message, gather and reduction, and whether the messages of a rank can block each other
    in their queues. Of one that says nothing but what is computed, messages are derived. The exit
    status is 0 if all is proved, 3 if only memory is over its budget, else 4.

    \b
    Examples:
      ratrain program examples/small.toml --form text -o small.program
      ratrain verify small.program
      ratrain verify schedule.csv --messages pair
      ratrain verify schedule.csv --repair repaired.csv
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.describe.units import counted, format_bytes
    from ratrain.program.file import DERIVED, NO_BYTES, SCHEDULE
    from ratrain.program.settled import Proved
    from ratrain.program.text.grid import draw
    from ratrain.program.verify import Rule

    given = {"messages": messages, "times": times, "repair": repair}
    if file.suffix != SCHEDULE:
        refuse_schedule_options(file, given, "is no PyTorch schedule (.csv)")
    taken = times_of(times)
    with progress("proving"):
        proved = _proved(file, overrides, taken)
    repaired = write_repaired(file, repair, taken) if repair is not None else None
    if not isinstance(proved, Proved):
        show_check(proved, messages, taken, repaired, as_json=as_json)
        return
    derived = file.suffix == SCHEDULE
    if derived:
        del given["repair"]
        refuse_schedule_options(file, given, "has no messages, only what is computed")
    verdict, program = proved.verdict, proved.short
    table = program.table
    if as_json:
        body = {
            "sound": verdict.sound,
            "messages": "derived" if derived else None,
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
                if not derived
            ],
            "schedule": None,
            "repaired": repaired,
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
        if derived:
            click.echo(f"{DERIVED}\n{NO_BYTES}")
        elif verdict.bounds:
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


def _proved(file: Path, overrides: tuple[str, ...], times: Mapping[str, float]) -> Proved | Check:
    """The proof of what a file holds, or what was found of a schedule as written."""
    from ratrain.cli.terminal.jobs import case_of_file, refuse_overrides
    from ratrain.program.file import proof_of_file

    if file.suffix in (".toml", ".json"):
        return case_of_file(file, overrides=overrides).proved
    refuse_overrides(file, overrides)
    return proof_of_file(file, times)
