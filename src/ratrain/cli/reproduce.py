"""`ratrain reproduce`: the RATrain paper's tables beside ours."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ratrain.reproduce.ratrain_paper import Row


@click.command()
@click.argument("section", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(section: str | None, as_json: bool) -> None:
    """Run the RATrain paper's evaluation through the simulator, with one mt3000 preset and no
    knob per row: published value, ours, difference. Nothing is hidden; docs/reproduction.md says
    why ours and theirs part.

    SECTION is one of main, ablation, memory, scale-out, planner, sensitivity; all if left out.

    \b
    Example: ratrain reproduce memory
    """
    from ratrain.cli.progress import progress
    from ratrain.describe.strict import nearest
    from ratrain.errors import SpecError
    from ratrain.reproduce.ratrain_paper import ASSUMED, SECTIONS

    if section is not None and section not in SECTIONS:
        raise SpecError(f"no section {section!r}", fix=nearest(section, list(SECTIONS)))
    names = [section] if section else list(SECTIONS)
    rows: list[Row] = []
    with progress("reproducing", "sections") as report:
        for done, name in enumerate(names):
            report(done, len(names))
            rows += SECTIONS[name]()
    if as_json:
        body = [{**asdict(row), "difference": row.difference} for row in rows]
        click.echo(json.dumps({"rows": body, "assumed": list(ASSUMED)}, indent=2))
        return
    title = ""
    for row in rows:
        if row.table != title:
            title = row.table
            click.echo(f"\n{title:<47}{'published':>11}{'ours':>11}{'difference':>11}")
        click.echo(_line(row))
    click.echo("\nassumed where the paper is silent:")
    for text in ASSUMED:
        click.echo(_wrapped(text))


def _line(row: Row) -> str:
    from textwrap import fill

    def number(value: float | None) -> str:
        if value is None:
            return "-"
        return (
            f"{value:,.3f}" if value < 10 else f"{value:,.2f}" if value < 1e4 else f"{value:,.0f}"
        )

    difference = "" if row.difference is None else f"{100 * row.difference:+.1f} %"
    label = f"{row.label} [{row.unit}]"
    line = f"  {label:<45}{number(row.published):>11}{number(row.ours):>11}{difference:>11}"
    if len(label) > 45:
        line = (
            f"  {label}\n{'':47}{number(row.published):>11}{number(row.ours):>11}{difference:>11}"
        )
    if row.note:
        line += "\n" + fill(row.note, 78, initial_indent="      ", subsequent_indent="      ")
    return line


def _wrapped(text: str) -> str:
    from textwrap import fill

    return fill(text, 78, initial_indent="  - ", subsequent_indent="    ")
