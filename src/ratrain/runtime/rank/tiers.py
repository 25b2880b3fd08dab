"""The memory tiers of one rank that its program uses, beside its device's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

from ratrain.describe.job import JobSpec
from ratrain.devices import Device
from ratrain.errors import Infeasible
from ratrain.program.program import Program
from ratrain.program.tiers import DISK, HOST, SETTINGS
from ratrain.runtime.seats import Seat
from ratrain.runtime.step.below import DiskTier, HostTier, Tier
from ratrain.storage import StoreLimits, TierStore, Traffic

SLOWEST_BYTES_PER_S = 10e6
"""A disk slower than this is said to hang."""


@contextmanager
def tiers_of(
    program: Program,
    seat: Seat,
    device: Device,
    folder: Callable[[], Path],
    run: str,
    *,
    timeout_s: float,
    say: Callable[[str], None],
) -> Iterator[Mapping[str, Tier]]:
    """Them by name; at the end nothing is left in them. `folder`: of the tier on disk."""
    tiers: dict[str, Tier] = {}
    store: TierStore | None = None
    held = program.held_by(seat.program_rank)
    used = {getattr(member, setting) for _, member in held for setting in SETTINGS}
    try:
        if HOST in used:
            tiers[HOST] = HostTier(device)
        if DISK in used:
            sizes = _sizes_on_disk(program, seat.program_rank)
            limits = StoreLimits(timeout_s=timeout_s + max(sizes, default=0) / SLOWEST_BYTES_PER_S)
            store = TierStore(folder(), run, seat.world_rank, limits=limits)
            tiers[DISK] = DiskTier(store, device)
            if store.note:
                say(store.note)
            store.require(sum(sizes), len(sizes))
        yield tiers
        if store is not None and seat.world_rank == 0:  # it speaks for all
            say(f"disk: {store.traffic.words}")
    finally:
        for tier in tiers.values():
            tier.close()


class MovedInSteps:
    """What steps move between a rank's device and its tiers: without what begins a run, or is
    between two steps."""

    def __init__(self, tiers: Mapping[str, Tier]) -> None:
        self._tiers = tiers
        self._moved = {name: Traffic() for name in tiers}
        self.steps = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What is moved inside is counted."""
        before = {name: replace(tier.traffic) for name, tier in self._tiers.items()}
        yield
        for name, tier in self._tiers.items():
            moved, now = self._moved[name], tier.traffic
            moved.add_read(now.read_bytes - before[name].read_bytes)
            moved.add_written(now.written_bytes - before[name].written_bytes)

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "tiers": {
                name: {"read_bytes": moved.read_bytes, "written_bytes": moved.written_bytes}
                for name, moved in self._moved.items()
            },
        }


def _sizes_on_disk(program: Program, rank: int) -> list[int]:
    """Bytes of each unit's states there that last; those that come and go say what they need when
    their places are made."""
    states = program.table.states
    there = states.persistent & states.in_tier(DISK) & (states.rank == rank)
    return states.size_bytes[there].tolist()


def disk_folder(job: JobSpec, device: int, run: Path) -> Path:
    """Where files of the tier on disk are made, of a device by its number in the cluster: as that
    says it now, in which the device need no longer be."""
    try:
        kind = job.cluster.spec.devices(device + 1)[-1].kind
    except Infeasible:
        return run / "tier"
    described = next((tier for tier in kind.tiers if tier.name == DISK), None)
    return Path(described.path) if described and described.path else run / "tier"


def run_name(run: Path) -> str:
    """A run among others that use the same disk."""
    return f"{run.name}-{crc32(str(run.resolve()).encode()):08x}"
