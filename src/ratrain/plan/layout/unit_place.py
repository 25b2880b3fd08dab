"""A unit where a plan places it: all that the costs of its ops depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ratrain.cost.blocks import BlockKind
from ratrain.cost.collectives import Transfer
from ratrain.cost.compute import BlockTimes
from ratrain.describe.cluster import Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import LayoutSpec


class Half(Protocol):
    """A reduce-scatter or all-gather, for the bytes that one rank has of it."""

    def __call__(self, size_bytes: float, widened: float = 1.0, /) -> Transfer:
        """`widened`: how many times as long a sum's element is on its way as a rank's own."""
        ...


@dataclass(frozen=True)
class StageMessage:
    """A tensor for a member of a neighbouring stage: to which program rank, over which link, what
    it sends. `serves`: the micro-batches that go there; None: all."""

    rank: int
    link: Link
    sent: Transfer
    serves: tuple[int, ...] | None = None


@dataclass(frozen=True)
class OtherEnd:
    """The rank that holds the other copy of a tied matrix, and the link to it. `tensor`: the
    smaller degree of both ends, which share the matrix among so many."""

    rank: int
    link: Link
    tensor: int


@dataclass(frozen=True)
class DataGroup:
    """The ranks that hold a unit: what their collectives take of one of them, over which link, and
    by which algorithm, for the same figures as `half`."""

    half: Half
    link: Link
    chosen: Callable[[float, float], str]


@dataclass(frozen=True)
class UnitPlace:
    """A unit in its place."""

    rank: int  # of the program
    kind: BlockKind
    device: DeviceKind
    layout: LayoutSpec  # with its own tensor degree
    times: BlockTimes
    params: float  # on one rank of a tensor group
    view_bytes: float  # its weights there
    reduced_bytes: float  # its gradient there, as reductions send it
    boundary_bytes: int
    previous: tuple[StageMessage, ...]  # to members of the stage before, if elsewhere
    following: tuple[StageMessage, ...]
    sums_link: Link | None  # of its tensor group; None: it is alone
    group: DataGroup | None  # that adds up its gradient; None: no other rank does
    across: DataGroup | None  # that averages its weights, where ranks update it apart
    other_end: OtherEnd | None  # of a tied matrix, where it is on another rank
    holders: int  # ranks that add up its gradient, this one among them
