"""The kinds of device that the ranks of a run compute on. Needs no torch: the launcher asks too."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.describe.job import JobSpec
from ratrain.describe.runs_on import AS_CLUSTER
from ratrain.describe.train import DIRECT, SOCKETS
from ratrain.errors import SpecError
from ratrain.runtime.run_folder import RunSpec


def device_kinds(job: JobSpec, spec: RunSpec) -> list[str]:
    """Of each world rank."""
    if job.train.device != AS_CLUSTER:
        return [job.train.device] * spec.seats.world_size
    runs_on = [member.kind.runs_on for member in job.cluster.members()]
    # A run keeps its plan where its cluster file has become smaller.
    return [runs_on[number] if number < len(runs_on) else "cpu" for number in spec.device_numbers]


def require_one_kind(job: JobSpec, kinds: Sequence[str]) -> None:
    """Refuses a communicator of ranks on several kinds of device: no library has one."""
    several = sorted(set(kinds))
    if job.train.network == DIRECT and len(several) > 1:
        raise SpecError(
            f"ranks compute on {', '.join(several)}, and a communicator is of one kind of device",
            place=f"{job.path or 'job'} [train] network",
            fix=f'set network = "{SOCKETS}", or [train] device to one of them',
        )
