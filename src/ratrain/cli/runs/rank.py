"""`ratrain rank`: one rank of a run, or one host's, started by an engine."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH


@click.command()
@click.argument("run", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print this process's place, start nothing.")
def command(run: Path, as_json: bool) -> int:
    """Run this process's rank of RUN, which `ratrain train JOB --prepare-only` or
    `ratrain launch ENGINE JOB` has made.

    Which rank of how many, and where the others are, is what the engine has set: torchrun,
    Slurm (srun), Open MPI and other MPIs (mpirun), Kubernetes indexed Jobs and JobSets,
    SkyPilot, dstack, or a plugin's. Under SkyPilot and dstack, which start one process a
    host, it runs the host's share of the ranks.

    SIGTERM, SIGINT, SIGUSR1 or SIGUSR2 to any rank saves behind the current step and ends
    all of them with status 75; the same command resumes.

    \b
    Examples:
      srun -N4 -n4 ratrain rank /shared/run
      mpirun -np 4 --host oak,birch,ash,elm ratrain rank /shared/run
    """
    from ratrain.engines.places import place_of

    place, path = place_of(os.environ), run.resolve()
    if as_json:
        print_json("rank", {**asdict(place), "mark": place.mark})
        return 0
    if place.per_host:
        from ratrain.runtime.run.host_ranks import run_share
        from ratrain.runtime.run_folder import RunFolder

        return run_share(RunFolder(path), place)
    from ratrain.runtime.rank.__main__ import main  # it begins anew: no more is imported twice

    main(path)
    return 0
