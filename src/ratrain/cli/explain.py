"""`ratrain explain`: why this plan, in words."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.jobs import set_values
from ratrain.cli.json_output import print_json
from ratrain.cli.options import PATH


@click.command()
@click.argument("plan", metavar="PLAN|JOB", type=PATH)
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(plan: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Explain a plan: memory against the budget by stage and item, where the time goes, what
    limits it, how much slower the runners-up are, and the nearest plans that do not fit,
    each with the smallest change that would make it fit.

    Takes a plan file (.json) or a job file (.toml), which is planned first. The exit status is
    3 if nothing fits, or if the plan itself does not.

    \b
    Example: ratrain explain qwen32b.json
    """
    from dataclasses import replace

    from ratrain.cli.jobs import refuse_overrides
    from ratrain.cli.progress import progress
    from ratrain.describe.job import load_job
    from ratrain.plan.explain import explain, explanation_json, explanation_text
    from ratrain.plan.plan_file import load_plan, to_candidate
    from ratrain.plan.planned import planned
    from ratrain.plan.search import search

    with progress("simulating", "plans") as report:
        if plan.suffix == ".json":
            refuse_overrides(plan, overrides)
            candidate = to_candidate(load_plan(plan), str(plan))
            plans = search(replace(candidate.job, layout=None), report)
        else:
            plans = planned(replace(load_job(plan, overrides), layout=None), report)
            candidate = plans.best.candidate
    explained = explain(candidate, plans)
    if as_json:
        print_json("explain", explanation_json(explained))
    else:
        click.echo("\n".join(explanation_text(explained)))
    if not explained.simulation.feasible:
        raise SystemExit(3)
