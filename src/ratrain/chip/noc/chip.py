"""One accelerator: clusters on a mesh, memory tiles on its west side, and their endpoints.

A device of `ratrain.describe` can name a `ChipSpec`; nothing here depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ratrain.chip.noc.spec import MeshSpec, Plane, RouterSpec
from ratrain.chip.noc.workload import Place
from ratrain.errors import SpecError

Reads = Literal["shared", "virtual channel", "separate link"]


@dataclass(frozen=True)
class EndpointSpec:
    """Cluster and memory tile, in cycles. Each constant says where it comes from."""

    dma_setup_cycles: int = 8
    """Before the first flit of a DMA transfer; gives the published alpha 17 at one hop."""
    collective_setup_cycles: int = 8
    """More for a multicast or reduction; gives the published 33 + n on a row of four."""
    memory_latency_cycles: int = 15
    """Of a memory tile; gives the published alpha 30 from memory to a cluster."""
    store_cycles: int = 14
    """Store, fence and wake-up of a barrier; gives 20 + 4 cycles per hop."""
    iteration_cycles: int = 13
    """Loop overhead of one step of a software pipeline: published alpha 30 instead of 17."""
    atomic_cycles: int = 3
    """One atomic add at the counter of a software barrier; they are served one by one."""
    poll_cycles: int = 12
    """Cluster 0 sees the counter, resets it, fences and writes the interrupt (our choice)."""
    reduce_setup_cycles: int = 15
    """Software addition of n beats on 8 cores takes this plus 1.16 n (energy model's 52 at 32)."""
    reduce_cycles_per_beat: float = 1.16
    outstanding: int = 32
    """Transactions that one network interface keeps in flight."""
    burst_bytes: int = 4096
    """Largest AXI burst: one address flit and up to 64 beats of 64 bytes."""


@dataclass(frozen=True)
class ChipSpec:
    """Clusters `columns` x `rows`, one memory tile west of every row. Defaults: Snitch clusters."""

    columns: int = 4
    rows: int = 4
    router: RouterSpec = field(default_factory=lambda: RouterSpec(reduction_latency_cycles=5))
    """Five cycles in the borrowed FPU path: the depth configured in the published chip."""
    endpoint: EndpointSpec = field(default_factory=EndpointSpec)
    reads: Reads = "separate link"
    """How read data and write data share the wide network."""
    wide_bytes: int = 64
    narrow_bytes: int = 8
    clock_hz: float = 1e9
    flop_per_cycle: int = 16
    """Peak of one cluster in fp64: 8 cores, one fused multiply-add each."""
    gemm_utilisation: float = 0.981
    """Median share of the peak that one cluster's matrix multiply reaches (arXiv 2506.10921)."""
    l1_bytes: int = 128 * 1024
    tile_buffer_bytes: int = 16 * 1024
    """What the published GEMM experiments give to the six tile buffers."""

    def __post_init__(self) -> None:
        for name in ("columns", "rows"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise SpecError(
                    f"{name} is {value}",
                    place="chip",
                    fix="a group that a mask can address needs a power of two",
                )
        if self.reads == "virtual channel" and self.router.virtual_channels < 2:
            raise SpecError(
                "reads need a second virtual channel",
                place="chip",
                fix="give the router virtual_channels=2",
            )

    @property
    def mesh(self) -> MeshSpec:
        """Memory tiles at x = columns - 1, clusters at columns .. 2 columns - 1: aligned."""
        planes = [Plane("req", self.narrow_bytes), Plane("rsp", self.narrow_bytes)]
        planes.append(Plane("wide", self.wide_bytes))
        if self.reads == "separate link":
            planes.append(Plane("wide reads", self.wide_bytes))
        return MeshSpec(
            self.columns + 1,
            self.rows,
            planes=tuple(planes),
            router=self.router,
            origin_x=self.columns - 1,
        )

    def cluster(self, column: int, row: int) -> Place:
        """The mesh coordinates of a cluster."""
        return self.columns + column, row

    def memory_tile(self, row: int) -> Place:
        return self.columns - 1, row

    @property
    def clusters(self) -> list[Place]:
        return [self.cluster(x, y) for y in range(self.rows) for x in range(self.columns)]
