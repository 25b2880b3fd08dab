"""The nodes of a Slurm allocation as the hosts of a run, from inside its batch script. Each is
reached by a step of its own: the loss of a node ends no step of another."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ratrain.engines.host_lists import hosts
from ratrain.engines.places import slurm_features, slurm_port
from ratrain.errors import SpecError

ANSWER_S = 8.0
"""How long a node may take to answer: a step is begun for it, by a controller that may be busy."""
_ASK_S = 60.0


@dataclass(frozen=True)
class Node:
    """A node of the allocation. `group`: of a het job, its component's number."""

    name: str
    group: str = ""

    def reached(self, cpus: int) -> list[str]:
        """What runs the command line behind it there, beside the node's other steps."""
        group = [f"--het-group={self.group}"] if self.group else []
        return [
            *("srun", "--overlap", *group, "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
            *(f"--cpus-per-task={cpus}", "--unbuffered", f"--nodelist={self.name}"),
            *("sh", "-c", 'eval "exec $1"', "sh"),  # a shell that stays would end by SIGTERM
        ]


@dataclass(frozen=True)
class Allocation:
    """`port`: at which rank 0 is met, another one for each of the jobs that a node may have."""

    nodes: tuple[Node, ...]
    port: int


def allocation_of(environ: Mapping[str, str]) -> Allocation:
    """That which this process is in."""
    port = slurm_port({"SLURM_STEP_ID": "0", **environ})
    if port is None or "SLURM_JOB_NODELIST" not in environ:
        raise SpecError(
            "no Slurm allocation: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set",
            place="--slurm",
            fix="type it behind salloc, or in a script: `ratrain launch slurm RUN` writes one",
        )
    groups = int(environ.get("SLURM_HET_SIZE", "1"))
    if groups == 1:
        nodes = [Node(name) for name in hosts(environ["SLURM_JOB_NODELIST"])]
    else:
        nodes = [
            Node(name, str(group))
            for group in range(groups)
            for name in hosts(environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", ""))
        ]
    return Allocation(tuple(nodes), port)


def node_of_hosts(
    wanted: Sequence[tuple[str, str]], nodes: Sequence[Node], kinds: Collection[str]
) -> dict[str, Node]:
    """For hosts, with their kinds of device, in order, a node each: of its kind, where there are
    several `kinds` and a node's features say which it is. Without one where there are no more."""
    features = {
        node: set(slurm_features({"SLURMD_NODENAME": node.name}).split(",")) & {*kinds}
        for node in nodes
        if len(kinds) > 1
    }
    left, found = list(nodes), dict[str, Node]()
    for host, kind in wanted:
        fitting = (node for node in left if not features.get(node) or kind in features[node])
        node = next(fitting, None)
        if node is not None:
            left.remove(node)
            found[host] = node
    return found


def queue_again(environ: Mapping[str, str]) -> None:
    """From a node that is left, where the one with the batch script was lost: with `--no-kill` the
    job would keep its nodes, and nothing would run there."""
    job = environ.get("SLURM_JOB_ID", "")
    with suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%T"], capture_output=True, timeout=_ASK_S
        )
        if told.stdout.strip() == b"RUNNING":
            subprocess.run(["scontrol", "requeue", job], capture_output=True, timeout=_ASK_S)
