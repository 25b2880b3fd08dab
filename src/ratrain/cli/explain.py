"""`ratrain explain`: why this plan, in words."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(plan: Path, as_json: bool) -> None:
    """Say why a plan is as it is: memory against the budget stage by stage and item by item,
    where the time goes, what binds, the runner-up plans and what they lose, and the nearest
    rejected ones with the smallest change that would make them fit.

    PLAN is a plan file (.json) or a job file (.toml), which is planned first. The exit status is
    3 where nothing fits, or where the plan itself does not.

    \b
    Example: ratrain explain qwen32b.json
    """
    from dataclasses import replace

    from ratrain.cli.progress import progress
    from ratrain.describe.job import load_job
    from ratrain.plan.explain import explain, explanation_json, explanation_text
    from ratrain.plan.plan_file import load_plan, to_candidate
    from ratrain.plan.planned import planned
    from ratrain.plan.search import search

    with progress("simulating", "plans") as report:
        if plan.suffix == ".json":
            one = to_candidate(load_plan(plan), str(plan))
            found = search(replace(one.job, layout=None), report)
        else:
            found = planned(replace(load_job(plan), layout=None), report)
            one = found.best.candidate
    explained = explain(one, found)
    if as_json:
        click.echo(json.dumps(explanation_json(explained), indent=2))
    else:
        click.echo("\n".join(explanation_text(explained)))
    if not explained.simulation.feasible:
        raise SystemExit(3)
