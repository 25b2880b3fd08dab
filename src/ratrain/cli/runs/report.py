"""`ratrain report`: a run, a plan or a job as a page to look at."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, RUN

if TYPE_CHECKING:
    from ratrain.report.contents import Contents


@click.command()
@click.argument("subject", metavar="RUN|PLAN|JOB", type=RUN)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Where to write it. [default: RUN/report.html, or ./NAME-report.html]",
)
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    subject: Path, output: Path | None, show: bool, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Write a page about a run's folder, a plan (.json) or a job (.toml): one HTML
    file that needs no network, in light and dark.

    It shows the plan on its devices, the timeline (predicted over measured),
    where the step's time goes, memory against the budget, loss and throughput,
    what limits it and what would help, other layouts of the job, checkpoints and
    versions. `ratrain train` writes one at the end of every run.

    The exit status is 3 where the plan or job does not fit.

    \b
    Examples:
      ratrain report runs/quickstart-ratrain --open
      ratrain report examples/qwen32b-mt3000.toml -o qwen.html
    """
    import webbrowser

    from ratrain.cli.terminal.jobs import refuse_overrides
    from ratrain.cli.terminal.progress import progress
    from ratrain.report.page import write_page
    from ratrain.report.read import contents_of, page_path

    if subject.suffix != ".toml" or subject.is_dir():
        refuse_overrides(subject, overrides)
    with progress("simulating", "plans") as report:
        contents = contents_of(subject, report, overrides)
    path = output or page_path(subject)
    size_bytes = write_page(contents, path)
    if as_json:
        print_json("report", _body(contents, path, size_bytes))
    else:
        click.echo("\n".join(_lines(contents, path, size_bytes)))
        for finding in contents.verdict.findings[:5]:
            click.echo(fill(finding, 80, subsequent_indent="  "), err=True)
    if show and not webbrowser.open(path.resolve().as_uri()):
        click.echo(f"no browser could be started; open {path.resolve().as_uri()}", err=True)
    if contents.verdict.tone == "bad" and contents.kind != "run":
        raise SystemExit(3)


def _lines(contents: Contents, path: Path, size_bytes: int) -> list[str]:
    from textwrap import wrap

    from ratrain.describe.units import format_bytes

    lines = [*wrap(contents.verdict.text, 80), ""]
    for reason in contents.left_out:
        lines += wrap(f"left out: {reason}", 80, subsequent_indent="  ")
    return [*lines, f"page {path} ({format_bytes(size_bytes)})"]


def _body(contents: Contents, path: Path, size_bytes: int) -> dict[str, Any]:
    return {
        "page": str(path),
        "size_bytes": size_bytes,
        "kind": contents.kind,
        "title": contents.title,
        "verdict": {"tone": contents.verdict.tone, "text": contents.verdict.text},
        "figures": [
            {"label": tile.label, "value": tile.value, "note": tile.note} for tile in contents.tiles
        ],
        "left_out": list(contents.left_out),
    }
