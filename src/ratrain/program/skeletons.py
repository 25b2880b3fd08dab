"""Skeletons: the compute order of a pipeline, and nothing else.

A skeleton yields, for one rank, (kind, stage, micro-batch) in the order in which the rank
computes. Messages, state work and everything else come from `plain_program` and from passes.
To write a schedule: write a function like `one_f_one_b`, add it to `SKELETONS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ratrain.errors import ProgramError
from ratrain.program.actions import Kind
from ratrain.program.program import Program, plain_program
from ratrain.program.setup import Replica, Setup

Steps = Iterator[tuple[Kind, int, int]]
F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741


@dataclass(frozen=True)
class Place:
    """Where in the pipeline a rank stands."""

    rank: int
    ranks: int
    chunks: int  # stages a rank holds; stage numbers are rank, rank + ranks, ...
    micro_batches: int


def gpipe(place: Place) -> Steps:
    """All forwards, then all backwards. Huang et al. 2019, arXiv 1811.06965."""
    for micro_batch in range(place.micro_batches):
        yield F, place.rank, micro_batch
    for micro_batch in range(place.micro_batches):
        yield B, place.rank, micro_batch


def one_f_one_b(place: Place) -> Steps:
    """As many forwards ahead as stages follow, then one forward, one backward in turn.

    PipeDream-flush, Narayanan et al. 2021, arXiv 2006.09503. Stage s holds at most
    min(stages - s, micro-batches) micro-batches.
    """
    ahead = min(place.ranks - place.rank - 1, place.micro_batches)
    for micro_batch in range(ahead):
        yield F, place.rank, micro_batch
    for micro_batch in range(ahead, place.micro_batches):
        yield F, place.rank, micro_batch
        yield B, place.rank, micro_batch - ahead
    for micro_batch in range(place.micro_batches - ahead, place.micro_batches):
        yield B, place.rank, micro_batch


def interleaved(place: Place) -> Steps:
    """1F1B over several stages a rank, micro-batches in groups of the pipeline's length.

    Narayanan et al. 2021, arXiv 2104.04473, section 2.2. Shorter ramps, more messages.
    """
    if place.micro_batches % place.ranks:
        raise ProgramError(
            f"interleaved 1F1B needs micro-batches in multiples of {place.ranks} ranks, "
            f"not {place.micro_batches}",
            fix=f"use {-(-place.micro_batches // place.ranks) * place.ranks} micro-batches",
        )
    total = place.micro_batches * place.chunks
    group = place.ranks * place.chunks

    def step(index: int, *, forward: bool) -> tuple[int, int]:
        chunk = index % group // place.ranks
        if not forward:
            chunk = place.chunks - 1 - chunk
        micro_batch = index // group * place.ranks + index % place.ranks
        return chunk * place.ranks + place.rank, micro_batch

    ahead = (place.chunks - 1) * place.ranks + 2 * (place.ranks - 1 - place.rank)
    ahead = min(ahead, total)
    for index in range(ahead):
        yield F, *step(index, forward=True)
    for index in range(ahead, total):
        yield F, *step(index, forward=True)
        yield B, *step(index - ahead, forward=False)
    for index in range(total - ahead, total):
        yield B, *step(index, forward=False)


def zb_h1(place: Place) -> Steps:
    """1F1B with backward split: the input gradient leaves at once, weight gradients fill waits.

    Qi et al. 2023, arXiv 2401.10241, section 3.1. Rank i keeps i weight gradients outstanding,
    so that it holds no more activations than 1F1B's first stage does.
    """
    waiting: deque[int] = deque()

    def backward(micro_batch: int) -> Steps:
        yield I, place.rank, micro_batch
        waiting.append(micro_batch)
        if len(waiting) > place.rank:
            yield W, place.rank, waiting.popleft()

    for kind, _, micro_batch in one_f_one_b(place):
        if kind is F:
            yield F, place.rank, micro_batch
        else:
            yield from backward(micro_batch)
    while waiting:
        yield W, place.rank, waiting.popleft()


@dataclass(frozen=True)
class Skeleton:
    """A compute order by name. `split_backward`: it uses I and W in place of B."""

    order: Callable[[Place], Steps]
    split_backward: bool = False
    chunks: bool = False  # whether a rank may hold several stages


SKELETONS: dict[str, Skeleton] = {
    "gpipe": Skeleton(gpipe),
    "1f1b": Skeleton(one_f_one_b),
    "interleaved": Skeleton(interleaved, chunks=True),
    "zb-h1": Skeleton(zb_h1, split_backward=True),
}


def build(name: str, setup: Setup) -> Program:
    """The plain program of a skeleton for a setup."""
    skeleton = SKELETONS[name]
    orders: dict[int, Steps] = {}
    for index, replica in enumerate(setup.replicas):
        chunks = _chunks(name, skeleton, replica)
        for rank in range(replica.ranks):
            place = Place(rank, replica.ranks, chunks, replica.micro_batches)
            orders[setup.first_rank[index] + rank] = skeleton.order(place)
    if setup.split_backward != skeleton.split_backward:
        raise ProgramError(
            f"{name} {'splits' if skeleton.split_backward else 'does not split'} backward",
            fix=f"set split_backward to {skeleton.split_backward}",
        )
    return plain_program(setup, orders, name)


def _chunks(name: str, skeleton: Skeleton, replica: Replica) -> int:
    stages, ranks = len(replica.stages), replica.ranks
    if any(stage.rank != number % ranks for number, stage in enumerate(replica.stages)):
        raise ProgramError("stages must go round the ranks in order")
    if stages % ranks or (stages > ranks and not skeleton.chunks):
        raise ProgramError(
            f"{name} cannot place {stages} stages on {ranks} ranks",
            fix="use one stage a rank, or the interleaved skeleton",
        )
    return stages // ranks
