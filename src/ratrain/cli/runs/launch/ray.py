"""`ratrain launch ray`: a run on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.runs.launch.prepared import Asked, launchable, run_options
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import Whole

if TYPE_CHECKING:
    from ratrain.engines.groups import Launchable


@click.command("ray")
@run_options
@click.option(
    "--address", metavar="HOST:PORT", help="The cluster. [default: this machine's, or RAY_ADDRESS]"
)
@click.option(
    "--restarts",
    type=Whole(0, 1_000_000),
    default=3,
    show_default=True,
    help="How often ranks are started again after a failure.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what it asks Ray for, start nothing.")
def command(address: str | None, restarts: int, as_json: bool, **asked: Any) -> int:
    """Run JOB, or the prepared RUN, on a Ray cluster, to its end.

    Each host of the plan is a bundle of one placement group, as large as its ranks need. Of
    a cluster of several kinds a bundle goes to nodes whose label `kind` is the device's name
    (`ray start --labels kind=NAME`). Ctrl-C or SIGTERM saves and stops; a rank, actor or
    node that is lost starts all ranks again from the latest checkpoint; where a node is
    drained they save first. The run is then planned anew for the hosts that there is room
    for.

    \b
    Examples:
      ratrain launch ray job.toml --run /shared/run
      ratrain launch ray /shared/run --address 10.0.0.1:6379 --restarts 10
    """
    from ratrain.cli.runs.run_report import show_launched
    from ratrain.cli.runs.train import prepare_data
    from ratrain.engines.ray import bundles_of, connect, ray_module
    from ratrain.runtime.run.launchable import host_names, launchable_run
    from ratrain.runtime.run.on_ray import run_on_ray
    from ratrain.runtime.run.ready import Launcher
    from ratrain.runtime.run.survive import FolderPlanning
    from ratrain.runtime.run_folder import RunFolder

    if as_json:
        run = launchable(Asked(**asked))
        print_json("launch ray", {"run": run.run, "ranks": run.ranks, "bundles": bundles_of(run)})
        return 0
    ray_module()  # before anything is planned for it
    run = launchable(Asked(**asked))
    connect(address)

    def replanned(without: Sequence[int]) -> Launchable:
        folder = RunFolder(Path(run.run))
        launcher = partial(
            *(Launcher, "ratrain launch ray", say, prepare_data, ExitStack()), starts_here=False
        )
        names = host_names(folder)
        gone = FolderPlanning(folder, launcher, say)
        gone.plan(tuple({*gone.left_out, *(names[number] for number in without)}))
        return launchable_run(folder, run.python)

    return show_launched(Path(run.run), run_on_ray(run, restarts, say, replanned))


def say(line: str) -> None:
    click.echo(line, err=True)
