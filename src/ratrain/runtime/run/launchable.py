"""A prepared run as engines start it."""

from __future__ import annotations

from pathlib import Path

from ratrain.describe.runs_on import is_gpu
from ratrain.engines.groups import Launchable, groups_of
from ratrain.plan import load_job
from ratrain.runtime.device_kinds import device_kinds
from ratrain.runtime.run.hosts import hosts_of
from ratrain.runtime.run_folder import RunFolder


def launchable_run(folder: RunFolder, python: str) -> Launchable:
    """`python`: the hosts' own that has RATrain."""
    spec = folder.read_spec()
    job = load_job(Path(spec.job_path), spec.overrides)
    hosts = hosts_of(job, spec)
    sizes = {(host.device, len(host.ranks)) for host in hosts if host.ranks}
    return Launchable(
        folder.path.name,
        str(folder.path),
        groups_of((host.device, len(host.ranks)) for host in hosts),
        python,
        spec.threads or 1,
        any(map(is_gpu, device_kinds(job, spec))),
        len(job.cluster.spec.device),
        replans=job.checkpoint.disks == "shared"
        and sum(bool(host.ranks) for host in hosts) > 1
        and len({kind for kind, _ in sizes}) == len(sizes),
    )


def host_names(folder: RunFolder) -> list[str]:
    """The hosts of a run that have ranks, in the order of `Launchable.groups`."""
    spec = folder.read_spec()
    hosts = hosts_of(load_job(Path(spec.job_path), spec.overrides), spec)
    groups = groups_of((host.device, len(host.ranks)) for host in hosts)
    alike = {(group.kind, group.ranks_each): list[str]() for group in groups}
    for host in hosts:
        if host.ranks:
            alike[host.device, len(host.ranks)].append(host.name)
    return [name for names in alike.values() for name in names]
