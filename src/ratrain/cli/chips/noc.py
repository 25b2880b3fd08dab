"""`ratrain noc`: the group; its commands are in noc_run, noc_models and noc_topology."""

from __future__ import annotations

import click

from ratrain.cli.chips.noc_models import costs, gemm, reproduce
from ratrain.cli.chips.noc_run import collective, sweep
from ratrain.cli.chips.noc_topology import topology


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
      ratrain noc topology chip.graphml --routes routes.csv
      ratrain noc reproduce
    """


for _verb in (sweep, collective, gemm, costs, topology, reproduce):
    command.add_command(_verb)
