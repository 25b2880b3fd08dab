"""`ratrain train` starts all ranks where it is typed: not what one wants where an engine has given
a job several hosts, or has started the command several times."""

from __future__ import annotations

from collections.abc import Mapping

from ratrain.engines.places import ENGINES, place_of
from ratrain.errors import SpecError
from ratrain.readers.numbers import is_number

_INTERACTIVE = "4294967290"
"""The step of a shell that salloc has opened on the first node: one task that may start others."""


def require_one_host(environ: Mapping[str, str], job: str) -> None:
    """Refuses where the ranks would all be on one of an allocation's hosts, or be started by each
    of an engine's processes."""
    in_step = environ.get("SLURM_STEP_ID", _INTERACTIVE) != _INTERACTIVE
    if "SLURM_JOB_ID" in environ and not in_step:
        nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
        hets = environ.get("SLURM_HET_SIZE", "1")
        if nodes != "1" or hets != "1":
            raise SpecError(
                f"the job has {_hosts(nodes, hets)}; `ratrain train` would use this one alone",
                place=f"Slurm job {environ['SLURM_JOB_ID']}",
                fix=f"type `ratrain train {job} --run RUN --prepare-only`, then `srun -n RANKS "
                f"ratrain rank RUN`, or outside the job `ratrain launch slurm {job} --submit`; for "
                f"this node alone: `srun -N1 -n1 ratrain train {job}`",
            )
        return
    engine = next((name for name in ENGINES if all(map(environ.get, ENGINES[name].marks))), None)
    if engine is None:
        return
    place = place_of(environ)
    if place.world_size > 1:
        raise SpecError(
            f"{place.engine} has started this command {place.world_size} times; each would start "
            "all ranks",
            place="ratrain train",
            fix=f"prepare the run once: `ratrain train {job} --run RUN --prepare-only`, and start "
            "`ratrain rank RUN` in its place",
        )


def _hosts(nodes: str, groups: str) -> str:
    if groups != "1" and is_number(groups):
        return f"{groups} groups of nodes"
    return f"{nodes} nodes"
