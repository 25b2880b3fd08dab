"""Where one rank lives in a lab, how its process learns that, and how it enters.

This module imports nothing heavy: a rank reads it before anything else.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.json import as_table, parse_json

NETWORKS = Path("/run/netns")  # where `ip netns` keeps its names
VARIABLE = "RATRAIN_LAB_PLACE"
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Place:
    """One rank's place: its network namespace, its address there, its control groups."""

    rank: int
    host: int  # of the cluster; ranks of one host may share a namespace
    namespace: str
    address: str  # on the lab's slow network
    interface: str  # of that address, inside the namespace
    cgroups: tuple[str, ...]  # folders to join
    cpus: float
    memory_bytes: int


def place_to_env(place: Place) -> dict[str, str]:
    """The environment variable that tells a child process its place."""
    return {VARIABLE: json.dumps(asdict(place))}


def place_from_env(environ: Mapping[str, str]) -> Place | None:
    """The place that the environment gives; None where the process is in no lab."""
    text = environ.get(VARIABLE)
    if text is None:
        return None
    try:
        return load(Place, *as_table(*parse_json(text, VARIABLE)))
    except SpecError as error:
        raise SpecError(
            f"not a place of a lab: {error.what}",
            place=error.place,
            fix="use what place_to_env returns",
        ) from error


def enter(place: Place) -> None:
    """Move this process into its network namespace and control groups, for good.

    Only the calling thread changes its network, and threads started later inherit it, so the
    process must have one thread: call it before numpy or torch is imported. Once in, calling
    again with the same place does nothing.
    """
    network = NETWORKS / place.namespace
    if not network.exists():
        raise SpecError(
            "the lab is gone", place=f"namespace {place.namespace}", fix="start the lab again"
        )
    groups = Path("/proc/self/cgroup").read_text()
    if _has_joined(place, groups) and _is_in(network):
        return
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise SpecError(
            f"a process with {threads} threads cannot enter a lab: all but one would stay outside",
            place=f"rank {place.rank}",
            fix="call enter before numpy or torch is imported",
        )
    if "/ratlab-" in groups:
        raise SpecError(
            "this process is already at another place in a lab",
            place=f"rank {place.rank}",
            fix="start one process for each place",
        )
    try:
        for group in place.cgroups:
            (Path(group) / "cgroup.procs").write_text("0")  # 0: whoever writes
        join_network(network)
    except OSError as error:
        raise SpecError(
            f"cannot enter the lab: {error.strerror}",
            place=f"rank {place.rank}",
            fix="run as root, while the lab exists",
        ) from error


def _has_joined(place: Place, groups: str) -> bool:
    """Whether the kernel's list of this process's groups ends with the place's own."""
    joined = {"/".join(line.split("/")[-2:]) for line in groups.splitlines()}
    return all("/".join(Path(group).parts[-2:]) in joined for group in place.cgroups)


def _is_in(network: Path) -> bool:
    current, target = Path("/proc/thread-self/ns/net").stat(), network.stat()
    return (current.st_dev, current.st_ino) == (target.st_dev, target.st_ino)


def join_network(network: Path) -> None:
    """Move the calling thread there. `os.setns` exists from Python 3.12 on; this is C's."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(handle, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(handle)
