"""The mesh: its shape, its routers and its physical networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ratrain.errors import SpecError

Reduction = Literal["rtl080", "lossy", "kinput", "ideal"]
Fork = Literal["async", "lockstep"]
MAX_FLIT_BYTES = 128


@dataclass(frozen=True)
class RouterSpec:
    """One router. The defaults are the published RTL (FlooNoC v0.8.0) as benchmarked."""

    input_fifo_flits: int = 2
    """Depth of each input queue."""
    output_fifo_flits: int = 2
    """Depth of each output queue."""
    virtual_channels: int = 1
    """Queues that share one physical link; a message names its own. Reductions use number 0."""
    link_stages: int = 0
    """Relay stages on every link: extra cycles per hop, still one flit per cycle."""
    dca: bool = True
    """Direct Compute Access: routers borrow the core's FPUs for arithmetic reductions."""
    reduction_latency_cycles: int = 4
    """Cycles a combination spends in the arithmetic pipe."""
    reduction: Reduction = "rtl080"
    """rtl080: two inputs, a third is an error; lossy: the RTL as it is, a third is lost;
    kinput: m inputs take m-1 issue slots; ideal: any number in one slot."""
    fork: Fork = "async"
    """async: the branches of a multicast may leave in different cycles; lockstep: together."""
    core_fpu_load: float = 0.0
    """Share of issue slots that the core's own FPU work takes away from the reduction unit."""

    def __post_init__(self) -> None:
        limits = {
            "input_fifo_flits": (1, 64),
            "output_fifo_flits": (1, 64),
            "virtual_channels": (1, 4),
            "link_stages": (0, 16),
            "reduction_latency_cycles": (0, 64),
            "core_fpu_load": (0, 0.999),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise SpecError(
                    f"{name} is {value}, outside {low}..{high}",
                    place="router",
                    fix=f"choose a value from {low} to {high}",
                )


@dataclass(frozen=True)
class Plane:
    """One physical network: its own routers and links, of one width."""

    name: str
    flit_bytes: int


@dataclass(frozen=True)
class MeshSpec:
    """A mesh of `columns` x `rows` nodes; x starts at `origin_x` so that groups can be aligned."""

    columns: int
    rows: int
    planes: tuple[Plane, ...] = (Plane("wide", 64),)
    router: RouterSpec = field(default_factory=RouterSpec)
    origin_x: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.columns <= 1024 and 1 <= self.rows <= 1024):
            raise SpecError(
                f"a mesh of {self.columns}x{self.rows} cannot be built",
                place="mesh",
                fix="give 1 to 1024 columns and rows, such as 4x4",
            )
        if not 1 <= len(self.planes) <= 8:
            raise SpecError("a mesh has 1 to 8 planes", place="mesh", fix="use fewer planes")
        for plane in self.planes:
            if not 8 <= plane.flit_bytes <= MAX_FLIT_BYTES or plane.flit_bytes % 8:
                raise SpecError(
                    f"flits of {plane.flit_bytes} bytes",
                    place=f"plane {plane.name}",
                    fix=f"use a multiple of 8 up to {MAX_FLIT_BYTES}",
                )

    @property
    def nodes(self) -> int:
        return self.columns * self.rows

    def node(self, x: int, y: int) -> int:
        """The index of the node at (x, y)."""
        if not (self.origin_x <= x < self.origin_x + self.columns and 0 <= y < self.rows):
            raise SpecError(
                f"({x},{y}) is not on the {self.columns}x{self.rows} mesh",
                place="mesh",
                fix=f"x runs from {self.origin_x} to {self.origin_x + self.columns - 1}, "
                f"y from 0 to {self.rows - 1}",
            )
        return y * self.columns + x - self.origin_x

    def place(self, node: int) -> tuple[int, int]:
        """The (x, y) of a node index."""
        return node % self.columns + self.origin_x, node // self.columns

    def plane(self, name: str) -> int:
        """The index of the plane called `name`."""
        for index, plane in enumerate(self.planes):
            if plane.name == name:
                return index
        raise SpecError(
            f"unknown plane {name!r}",
            place="mesh",
            fix="use one of " + ", ".join(p.name for p in self.planes),
        )


def masked(at: int, mask: int) -> list[int]:
    """The coordinates that equal `at` in every bit not set in `mask`, ascending: 2^bits of them."""
    values = [at & ~mask]
    bit = 1
    while bit <= mask:
        if mask & bit:
            values += [value | bit for value in values]
        bit <<= 1
    return sorted(values)
