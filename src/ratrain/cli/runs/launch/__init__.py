"""`ratrain launch`: a run on hosts of its cluster over ssh, or by an engine."""

from __future__ import annotations

import click

from ratrain.cli.runs.launch.hosts import command as hosts
from ratrain.cli.runs.launch.kubernetes import command as kubernetes
from ratrain.cli.runs.launch.ray import command as ray
from ratrain.cli.runs.launch.slurm import command as slurm


class _Launch(click.Group):
    """A group whose first word may be a run's folder: then it is that of `hosts`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args != ["--help"]:
            args = ["hosts", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Launch)
def command() -> None:
    """Start the ranks of a run: over ssh on the hosts of its cluster, or by an engine.

    `ratrain launch RUN` is `ratrain launch hosts RUN`, for a run that `ratrain train JOB
    --prepare-only` has made. The engines take a JOB as well, and plan and prepare it first.

    \b
    Examples:
      ratrain launch /shared/run
      ratrain launch slurm job.toml --run /shared/run --submit
    """


for _verb in (hosts, slurm, ray, kubernetes):
    command.add_command(_verb)
