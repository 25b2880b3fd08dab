"""Which device a rank computes on: as the job or the command line says, else its cluster's file."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.describe.job import JobSpec
from ratrain.devices import Device, device_of_kind, gpus_here
from ratrain.runtime.device_kinds import device_kinds
from ratrain.runtime.run_folder import RunSpec


def own_device(job: JobSpec, spec: RunSpec, rank: int, hosts: Sequence[int]) -> Device:
    """A rank's device. Those of one kind on a host are given to its ranks in order; `hosts`: the
    host of each rank."""
    kinds = device_kinds(job, spec)
    place = hosts[rank], kinds[rank]
    number = [(hosts[other], kinds[other]) for other in range(rank)].count(place)
    if job.train.share_gpu and kinds[rank] == "cuda":
        number %= max(1, gpus_here())
    return device_of_kind(kinds[rank], number)
