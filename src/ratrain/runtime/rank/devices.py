"""Which device a rank computes on: as the job or the command line says, else its cluster's file."""

from __future__ import annotations

from collections.abc import Mapping

from ratrain.describe.job import JobSpec
from ratrain.devices import Device, device_of_kind, gpus_here
from ratrain.readers.numbers import is_number
from ratrain.runtime.device_kinds import device_kinds
from ratrain.runtime.run_folder import RunSpec


def own_device(job: JobSpec, spec: RunSpec, rank: int, environment: Mapping[str, str]) -> Device:
    """A rank's device. Those of one kind on a host are given to its ranks in order."""
    kinds = device_kinds(job, spec)
    local = environment.get("LOCAL_RANK", "")
    first = rank - int(local) if is_number(local) else 0
    number = kinds[max(first, 0) : rank].count(kinds[rank])
    if job.train.share_gpu and kinds[rank] == "cuda":
        number %= max(1, gpus_here())
    return device_of_kind(kinds[rank], number)
