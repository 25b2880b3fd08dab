"""`ratrain plan`: find a layout that fits and is fast."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the plan (JSON).")
@click.option("--top", type=click.IntRange(1, 24), default=5, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(job: Path, output: Path | None, top: int, as_json: bool) -> None:
    """Find how to lay a job out: pipeline, data and tensor degrees, layers per stage,
    micro-batch, who owns which state, and what each stage keeps or computes again.

    JOB is a job file (.toml). Its [layout] and micro-batch are ignored: they are what is looked
    for. What [schedule] says is kept. The plan is proved to fit; `ratrain simulate PLAN.json`
    takes it as it is, and it may be edited. The exit status is 3 where nothing fits.

    \b
    Examples:
      ratrain plan examples/qwen32b-mt3000.toml -o qwen32b.json
      ratrain simulate qwen32b.json
      ratrain explain qwen32b.json
    """
    from dataclasses import replace

    from ratrain.cli.progress import progress
    from ratrain.describe.job import load_job
    from ratrain.plan.plan_file import Predicted, plan_of, write_plan
    from ratrain.plan.planned import planned
    from ratrain.plan.tables import search_json, search_text
    from ratrain.timeline.timeline import write_whole

    described = replace(load_job(job), layout=None)
    with progress("simulating", "plans") as report:
        found = planned(described, report)
    if output is not None:
        best = found.best
        written = plan_of(best.candidate, Predicted(best.step_s, best.bound_bytes))
        write_whole(output, write_plan(written))
    if as_json:
        click.echo(json.dumps(search_json(found, top), indent=2))
    else:
        click.echo("\n".join(search_text(found, top)))
        if output is not None:
            click.echo(f"written to {output}; explain it with: ratrain explain {output}")
