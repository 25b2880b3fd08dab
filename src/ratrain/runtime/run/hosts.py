"""Which of a run's ranks belong on which host, as its job's cluster and its plan say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratrain.corpus.sources import sources_of
from ratrain.describe.cluster import numbered
from ratrain.describe.job import JobSpec
from ratrain.describe.overrides import with_overrides
from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.plan import load_job
from ratrain.readers.toml import read_toml
from ratrain.runtime.run_folder import RunFolder, RunSpec

_LOST = "cluster.lost"
"""The key of a job that says which hosts its run has lost."""


@dataclass(frozen=True)
class RunHost:
    """A host, by the name of the cluster file; where that has several of a name, numbered from 1.
    `ranks`: () where the run leaves it idle."""

    name: str
    device: str  # what kind its devices are
    ranks: tuple[int, ...]


def hosts_of(job: JobSpec, spec: RunSpec) -> list[RunHost]:
    """All hosts of the job's cluster, with the ranks that the run has there."""
    return cluster_hosts(job, spec.device_numbers)


def cluster_hosts(job: JobSpec, device_numbers: Sequence[int] = ()) -> list[RunHost]:
    """All hosts of a cluster, in its order; of one that has as many as a job asks for, those of
    the job. `device_numbers`: of each rank its device."""
    cluster = job.cluster.spec
    devices = cluster.devices(cluster.size) if cluster.size else job.cluster.members()
    first = {device.host: device for device in reversed(devices)}
    ranks: dict[int, list[int]] = {host: [] for host in sorted(first)}
    for rank, number in enumerate(device_numbers):
        ranks[devices[number].host].append(rank)
    names = numbered([first[host].host_kind.name for host in ranks])
    return [
        RunHost(name, first[host].kind.name, tuple(ranks[host]))
        for name, host in zip(names, ranks, strict=True)
    ]


def all_hosts_of(spec: RunSpec) -> dict[str, str]:
    """The hosts of a run's cluster, those that its program does without among them: of each the
    kind of its devices."""
    return {host.name: host.device for host in cluster_hosts(as_asked(spec))}


def as_asked(spec: RunSpec) -> JobSpec:
    """The run's job, for all hosts that it was to have: with those that it has lost."""
    kept = [each for each in spec.overrides if each.partition("=")[0].strip() != _LOST]
    return load_job(Path(spec.job_path), kept)


def without(lost: Sequence[str]) -> str:
    """The override by which a run does without the hosts that it has lost."""
    return f"{_LOST}={json.dumps(list(lost))}"


def host_called(hosts: list[RunHost], name: str) -> RunHost:
    """The host of that name, which has ranks."""
    host = next((host for host in hosts if host.name == name), None)
    if host is None:
        known = [host.name for host in hosts if host.ranks]
        raise SpecError(f"the run has no host {name!r}", place="--host", fix=nearest(name, known))
    if not host.ranks:
        raise SpecError(
            f"the run leaves {name} idle", place="--host", fix="start the other hosts only"
        )
    return host


def files_of(job: JobSpec, folder: RunFolder, overrides: tuple[str, ...]) -> list[Path]:
    """What ranks read, besides the run's folder: the job, and what it names."""
    path = job.path or folder.path / "job.toml"
    base = path.parent
    table, _ = with_overrides(*read_toml(path), overrides)
    files = [path]
    if job.model.file is not None:
        files.append(job.model.file)
    cluster = str(table.get("cluster", {}).get("name", ""))
    if cluster.endswith(".toml"):
        files.append(base / cluster)
    if job.data is not None:
        named = (*job.data.files, *(job.data.validation or ()))
        files += [source.path for source in sources_of(named, base)]
        if job.data.tokenizer != "bytes":
            files.append(base / job.data.tokenizer)
    if job.train.prompts_file is not None:
        files.append(base / job.train.prompts_file)
    if job.train.weights is not None:
        files.append(base / job.train.weights)
    return list(dict.fromkeys(file.resolve() for file in files))
