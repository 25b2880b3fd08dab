"""`ratrain noc`: the group; its commands are in noc_run and noc_models."""

from __future__ import annotations

import click

from ratrain.cli.chips.noc_models import costs, gemm, reproduce
from ratrain.cli.chips.noc_run import collective, sweep


@click.group()
def command() -> None:
    """Simulate a chip's mesh network with multicast, reductions and barriers.

    A cycle-exact simulator of the routers, and published models to compare with.

    \b
    Examples (each takes --json):
      ratrain noc collective reduce --shape 4x4 --size 8KiB
      ratrain noc sweep --mesh 8x8
      ratrain noc gemm summa
      ratrain noc costs
      ratrain noc reproduce
    """


for _verb in (sweep, collective, gemm, costs, reproduce):
    command.add_command(_verb)
