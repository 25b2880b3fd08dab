"""The network that a rank's tensors go over: which one, and how it comes about."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import torch

from ratrain.describe.train import TrainSpec
from ratrain.errors import SpecError
from ratrain.program.program import Program
from ratrain.runtime.rank.company import Company
from ratrain.runtime.rank.meeting import Meeting
from ratrain.runtime.rank.mesh import connect_all
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.links import Routes, all_needs, routes_of, word_needs
from ratrain.runtime.step.network import Network
from ratrain.runtime.step.socket_network import SocketNetwork

_ONLY = {"sockets": "cpu", "gloo": "cpu", "nccl": "cuda"}


def network_of(
    folder: RunFolder,
    train: TrainSpec,
    program: Program,
    seats: Seats,
    seat: Seat,
    device: torch.device,
    meeting: Meeting,
    hosts: Sequence[int],
) -> Network:
    """The job's network, else that of the device's kind: sockets of our own, or NCCL. All ranks
    call this together. `hosts`, by world rank: the number of its host."""
    name, routes = chosen(train.network, device.type), routes_of(program.setup, seats)
    ranks = folder.path / "ranks"
    return network_named(name, ranks, seats, seat, routes, meeting, train.timeout_s, hosts)


def network_named(
    name: str,
    folder: Path,
    seats: Seats,
    seat: Seat,
    routes: Routes,
    meeting: Meeting,
    timeout_s: float,
    hosts: Sequence[int] = (),
) -> Network:
    """A rank's network by its kind's name. `folder`: one that all ranks see; `hosts`, by world
    rank: the number of its host; left out, all are on one."""
    hosts = hosts or (0,) * seats.world_size
    if name == "sockets":
        needs = all_needs(seats, seat, routes)
        links, divides_rows = connect_all(meeting, needs, timeout_s), routes.divides_rows
        return SocketNetwork(seats, seat, links, hosts, divides_rows=divides_rows)
    from ratrain.runtime.step.torch_network import TorchNetwork

    links = connect_all(meeting, word_needs(seats, seat, routes.hops), timeout_s)
    _join_torch(folder, name, meeting, timeout_s)
    return TorchNetwork(seats, seat, routes, links, hosts, backend=name, timeout_s=timeout_s)


def chosen(name: str, device: str) -> str:
    """The network's name for a kind of device."""
    if name == "auto":
        return "nccl" if device == "cuda" else "sockets"
    if _ONLY[name] != device:
        raise SpecError(
            f"{name} cannot transfer tensors on {device} devices",
            place="[train] network",
            fix='leave it out, or write "auto"',
        )
    return name


def require_network(train: TrainSpec, device: torch.device, company: Company) -> None:
    """Refuses a network that cannot be set up on these disks."""
    name = chosen(train.network, device.type)
    if len(company.disks) > 1 and name != "sockets":
        raise SpecError(
            f"ranks that use {name} meet through a file in the run's folder, but "
            f"{company.place(0)} and {company.place(company.disks[1])} have separate folders",
            place="[checkpoint] disks",
            fix="put the run's folder on a disk that all hosts share",
        )


def leave(folder: RunFolder, meeting: Meeting) -> None:
    """Ends what a network has besides connections, when all communication is over."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        _store(folder.path / "ranks", meeting).unlink(missing_ok=True)


def _join_torch(folder: Path, backend: str, meeting: Meeting, timeout_s: float) -> None:
    """Makes torch's default group. Its store is a file, for the owner's eyes alone, so no store
    listens anywhere."""
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    if meeting.book[0][0].startswith("127."):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    path = _store(folder, meeting)
    if meeting.rank == 0:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    meeting.everybody("")  # the file is there
    dist.init_process_group(
        backend,
        store=FileStore(str(path), meeting.world_size),
        rank=meeting.rank,
        world_size=meeting.world_size,
        timeout=timedelta(seconds=timeout_s),
    )


def _store(folder: Path, meeting: Meeting) -> Path:
    """A name that this attempt alone has; the key cannot be derived from it."""
    return folder / f"torch-{sha256(meeting.key).hexdigest()[:16]}"
