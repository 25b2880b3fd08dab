"""`ratrain launch slurm`: a run as a batch job."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import click

from ratrain.cli.runs.launch.prepared import Asked, from_here, launchable, run_options
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, Whole


@click.command("slurm")
@run_options
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", help="The script. [default: RUN/slurm.sbatch]"
)
@click.option(
    "--restarts",
    type=Whole(0, 1_000_000),
    default=3,
    show_default=True,
    help="How often ranks are started again inside the job after a failure.",
)
@click.option(
    "--warn",
    type=Whole(1, 65535),
    metavar="SECONDS",
    default=120,
    show_default=True,
    help="How long before the time limit ranks save and the job is queued again.",
)
@click.option("--submit", is_flag=True, help="Submit it with sbatch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("options", nargs=-1, metavar="[-- SBATCH OPTIONS]")
def command(
    output: Path | None,
    restarts: int,
    warn: int,
    submit: bool,
    as_json: bool,
    options: tuple[str, ...],
    **asked: Any,
) -> int:
    """Write a batch script that runs JOB, or the prepared RUN, on Slurm's nodes; with
    --submit, submit it.

    Hosts of several kinds become a het job: a component for each kind, whose name is the
    nodes' feature. When the job is preempted or its time is nearly up, ranks save, and it
    is queued again; it goes on without a node that is lost. What is behind -- becomes an
    #SBATCH line of every component.

    \b
    Examples:
      ratrain launch slurm job.toml --run /shared/run
      ratrain launch slurm /shared/run --submit -- --partition=low --time=4:00:00
    """
    from ratrain.engines.slurm import Batch, script
    from ratrain.readers.writing import write_whole

    run = launchable(Asked(**asked))
    path = output or Path(run.run) / "slurm.sbatch"
    write_whole(path, script(run, Batch(restarts, warn, options)))
    number = _submitted(path) if submit else None
    if as_json:
        body = {"run": run.run, "script": str(path), "ranks": run.ranks, "job": number}
        print_json("launch slurm", body)
    elif submit:
        click.echo(f"job {number}: {run.words}; its output: {run.run}/logs/slurm-{number}.txt")
    else:
        shown = from_here(path)
        click.echo(f"wrote {shown}: {run.words}\nsubmit it: sbatch {shown}")
    return 0


def _submitted(path: Path) -> int:
    """The number of the job that sbatch has made of a script."""
    from ratrain.errors import RunFailed

    fix = f"correct it, and submit it again: sbatch {path}"
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(path)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        problem = f"sbatch cannot be run: {error.strerror}"
        raise RunFailed(problem, place=str(path), fix="submit it on a host of Slurm's") from error
    if done.returncode:
        raise RunFailed(f"sbatch refused it: {done.stderr.strip()}", place=str(path), fix=fix)
    return int(done.stdout.split(";")[0])
