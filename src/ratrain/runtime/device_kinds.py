"""The kinds of device that the ranks of a run compute on. Needs no torch: the launcher asks too."""

from __future__ import annotations

from ratrain.describe.job import JobSpec
from ratrain.describe.runs_on import AS_CLUSTER
from ratrain.runtime.run_folder import RunSpec


def device_kinds(job: JobSpec, spec: RunSpec) -> list[str]:
    """Of each world rank."""
    if job.train.device != AS_CLUSTER:
        return [job.train.device] * spec.seats.world_size
    runs_on = [member.kind.runs_on for member in job.cluster.members()]
    # A run keeps its plan where its cluster file has become smaller.
    return [runs_on[number] if number < len(runs_on) else "cpu" for number in spec.device_numbers]
