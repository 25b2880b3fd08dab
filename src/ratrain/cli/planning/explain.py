"""`ratrain explain`: why this plan, in words."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH


@click.command()
@click.argument("plan", metavar="PLAN|JOB", type=PATH)
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(plan: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Explain a plan: memory against the budget by stage and item, where the time goes, what
    limits it, how much slower the runners-up are, and the nearest plans that do not fit,
    each with the smallest change that would make it fit.

    Where devices, stages or replicas differ: what each kind of device holds, how busy it is, what
    binds it and what would help. On a mixed cluster also the heterogeneous speedup ratio (for
    which each kind is planned by itself), and what one more host of each kind would gain.

    Takes a plan file (.json) or a job file (.toml), which is planned first: what is explained is
    the plan that `ratrain plan` writes, also where its stages or replicas differ. The exit status
    is 3 if nothing fits, or if the plan itself does not.

    \b
    Examples:
      ratrain explain qwen32b.json
      ratrain explain examples/unequal.toml
      ratrain explain examples/unequal-replicas.json
    """

    from ratrain.cli.terminal.jobs import refuse_overrides
    from ratrain.cli.terminal.progress import progress
    from ratrain.plan import load_job_to_plan, load_plan, plan_of_file
    from ratrain.plan.search import plan_of_job, plans_beside
    from ratrain.plan.words import explanation_json, explanation_of, explanation_text

    with progress("simulating", "plans") as report:
        if plan.suffix == ".json":
            refuse_overrides(plan, overrides)
            subject = plan_of_file(load_plan(plan), str(plan))
            known = plans_beside(subject, report)
        else:
            subject, known = plan_of_job(load_job_to_plan(plan, overrides), report)
    explained = explanation_of(subject, known, lambda title: progress(title, "plans"))
    if as_json:
        print_json("explain", explanation_json(explained))
    else:
        click.echo("\n".join(explanation_text(explained)))
    if not explained.simulation.feasible:
        raise SystemExit(3)
