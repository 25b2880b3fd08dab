"""What a run ends with: the report, and the page beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.json_output import print_json

if TYPE_CHECKING:
    from ratrain.runtime.run_folder import RunFolder


def show_report(folder: RunFolder, as_json: bool) -> None:
    """Writes and prints the report, and writes the page."""
    from ratrain.cli.terminal.progress import progress
    from ratrain.runtime.run.reports.report import write_report
    from ratrain.runtime.run.reports.report_text import report_text

    with progress("writing the report"):
        report = write_report(folder)
    with progress("writing the page"):
        page = write_run_page(folder.path)
    if as_json:
        print_json("train", {**report, "page": str(page) if page else None})
        return
    click.echo("\n".join(["", *report_text(report)]))
    if page is not None:
        click.echo(f"page         {page}")


def show_launched(run: Path, status: int) -> int:
    """The report of a run that engines' ranks have finished, where this disk has all of it; the
    status that they ended with."""
    from ratrain.errors import RatrainError
    from ratrain.runtime.run_folder import RunFolder

    if status == 0:
        try:
            show_report(RunFolder(run), as_json=False)
        except RatrainError as error:
            click.echo(f"no report was written: {error}", err=True)
    return status


def write_run_page(run: Path) -> Path | None:
    """Writes report.html; a run that has trained is not failed by a page that cannot be made."""
    from ratrain.errors import RatrainError
    from ratrain.report.page import write_page
    from ratrain.report.read import contents_of, page_path

    path = page_path(run)
    try:
        write_page(contents_of(run), path)
    except (RatrainError, OSError) as error:
        click.echo(f"no page was written: {error}", err=True)
        return None
    return path
