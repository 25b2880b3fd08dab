"""Which device a rank computes on: as the job or the command line says, else its cluster's file."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.describe.job import JobSpec
from ratrain.describe.runs_on import is_gpu
from ratrain.devices import CPU, Device, device_of_kind, gpus_here
from ratrain.runtime.device_kinds import device_kinds, require_one_kind
from ratrain.runtime.run_folder import RunSpec


def own_device(job: JobSpec, spec: RunSpec, rank: int, hosts: Sequence[int]) -> Device:
    """A rank's device. Those of one kind on a host are given to its ranks in order; `hosts`: the
    host of each rank."""
    kinds = device_kinds(job, spec)
    require_one_kind(job, kinds)
    place = hosts[rank], kinds[rank]
    number = [(hosts[other], kinds[other]) for other in range(rank)].count(place)
    if job.train.share_gpu and is_gpu(kinds[rank]):
        number %= max(1, gpus_here())
    return _as_checked(device_of_kind(kinds[rank], number), spec, rank)


def _as_checked(device: Device, spec: RunSpec, rank: int) -> Device:
    """The device, or for `ratrain check` what compares its operators or stands in for them."""
    if not spec.check:
        return device
    from ratrain.check.device import Checked
    from ratrain.check.scatter import Scattered

    if spec.check == "compare":
        return Checked(device, rank)
    _, _, draw = spec.check.partition(" ")
    seed = 1 + spec.seats.world_size * int(draw) + rank if draw else 0
    return Scattered(CPU, seed, device.narrow_terms)
