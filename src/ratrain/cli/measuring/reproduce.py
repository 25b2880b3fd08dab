"""`ratrain reproduce`: the RATrain paper's tables beside ours."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.json_output import print_json

if TYPE_CHECKING:
    from ratrain.reproduce.ratrain_paper import Row


@click.command()
@click.argument("section", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(section: str | None, as_json: bool) -> None:
    """Simulate the RATrain paper's evaluation with one mt3000 preset and nothing tuned per row;
    print the published value, ours, and the difference. docs/notes/reproduction.md explains the
    differences.

    SECTION is main, ablation, memory, as-trained, scale-out, planner or
    sensitivity. [default: all]

    \b
    Example: ratrain reproduce memory
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.describe.strict import nearest
    from ratrain.errors import SpecError
    from ratrain.reproduce.ratrain_paper import ASSUMED, ROWS, SECTIONS

    if section is not None and section not in SECTIONS:
        raise SpecError(
            f"unknown section {section!r}",
            place="SECTION",
            fix=nearest(section, list(SECTIONS)),
        )
    names = [section] if section else list(SECTIONS)
    rows: list[Row] = []
    total = sum(ROWS[name] for name in names)
    with progress("reproducing", "rows") as report:
        report(0, total)
        for row in chain.from_iterable(SECTIONS[name]() for name in names):
            rows.append(row)
            report(len(rows), total)
    if as_json:
        body = [{**asdict(row), "difference": row.difference, "fit": row.fit} for row in rows]
        print_json("reproduce", {"rows": body, "assumed": list(ASSUMED)})
        return
    title = ""
    for row in rows:
        if row.table != title:
            title = row.table
            click.echo(f"\n{title:<47}{'published':>11}{'ours':>11}{'difference':>11}")
        click.echo(_line(row))
    click.echo()
    for text in _scores(rows):
        click.echo(text)
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
    mark = "*" if row.fit else " "
    numbers = f"{number(row.published):>11}{number(row.ours):>11}{difference:>11}"
    line = f"{mark} {label:<45}{numbers}"
    if len(label) > 45:
        line = f"{mark} {label}\n{'':47}{numbers}"
    if row.note:
        line += "\n" + fill(row.note, 78, initial_indent="      ", subsequent_indent="      ")
    return line


def _scores(rows: list[Row]) -> list[str]:
    """How far off predictions are, and rows marked as fits, with what was chosen by them."""
    from ratrain.validate.score import Pair, score

    lines: list[str] = []
    for fits, name in ((False, "predictions"), (True, "fits, marked *")):
        pairs = [
            Pair(f"{row.table}, {row.label}", row.published, row.ours)
            for row in rows
            if bool(row.fit) is fits and row.published is not None and row.ours is not None
        ]
        if not pairs:
            continue
        of_all = score(pairs)
        lines.append(
            f"{of_all.rows} {name}: mean error {of_all.mean_error:.1%}, bias {of_all.bias:+.1%}"
        )
        lines.append(_wrapped(f"worst {of_all.worst.error:+.1%}: {of_all.worst.label}"))
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.fit:
            reasons.setdefault(row.fit, []).append(row.table)
    for why, tables in reasons.items():
        lines.append(_wrapped(f"{', '.join(dict.fromkeys(tables))}: {why}"))
    return lines


def _wrapped(text: str) -> str:
    from textwrap import fill

    return fill(text, 78, initial_indent="  - ", subsequent_indent="    ")
