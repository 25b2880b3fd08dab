"""`ratrain plan`: find a layout that fits and is fast."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, Whole
from ratrain.cli.terminal.untrainable import notes, untrainable


@click.command()
@click.argument("job", type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Write the fastest plan that `ratrain train` can run to a file (JSON).",
)
@click.option(
    "--fastest",
    type=PATH,
    help="Write the fastest plan of all, even one that can only be simulated, not trained yet.",
)
@click.option(
    "--top",
    type=Whole(1, 24),
    default=5,
    show_default=True,
    metavar="N",
    help="Show at most the N fastest plans. Five to ten are proved, fewer if fewer fit.",
)
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    job: Path,
    output: Path | None,
    fastest: Path | None,
    top: int,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find a layout that fits and is fast: pipeline, data and tensor degrees, layers per
    stage, micro-batch, sharding level, and which activations are kept or recomputed.

    JOB is a job file (.toml). Its [layout] and micro-batch are ignored; its [schedule] is kept.
    Where devices are of unequal kinds some may stay idle, and where they are at most 256, plans
    whose stages and replicas differ are searched for too. The plan is proved to fit. A plan file
    may be edited; `ratrain simulate` and `ratrain train --plan` take it. The exit status is 3 if
    nothing fits.

    \b
    Examples:
      ratrain plan examples/qwen32b-mt3000.toml -o qwen32b.json
      ratrain plan examples/qwen32b-mt3000.toml --set cluster.devices=128
      ratrain simulate qwen32b.json
      ratrain explain qwen32b.json
    """

    from ratrain.cli.terminal.progress import progress
    from ratrain.plan import every_plan, load_job_to_plan, write_plan
    from ratrain.plan.words import every_json, every_text
    from ratrain.readers.writing import write_whole

    described = load_job_to_plan(job, overrides)
    with progress("simulating", "plans") as report:
        plans_found = every_plan(described, report)
    for path, of_all in ((output, False), (fastest, True)):
        if path is not None:
            write_whole(path, write_plan(plans_found.file(fastest=of_all)))
    why = untrainable(described)
    if as_json:
        body = every_json(plans_found, top)
        print_json("plan", {**body, "untrainable": why, "unused": described.unused})
    else:
        click.echo("\n".join([*notes(described, why), *every_text(plans_found, top)]))
        for path in (output, fastest):
            if path is not None:
                click.echo(f"wrote {path}; see why with: ratrain explain {path}")
