"""Which stages and micro-batches there are, read from what is computed."""

from __future__ import annotations

from collections.abc import Iterable

from ratrain.errors import ProgramError


def ranks_of_stages(computed: Iterable[tuple[int, int]], place: str) -> tuple[int, ...]:
    """The rank of each stage, from the (stage, rank) of everything computed. An error where a
    stage is on two ranks, or left out."""
    rank_of: dict[int, int] = {}
    for stage, rank in computed:
        if rank_of.setdefault(stage, rank) != rank:
            raise ProgramError(
                f"stage {stage} is on rank {rank_of[stage]} and on rank {rank}",
                place=place,
                fix="keep a stage on one rank",
            )
    missing = sorted(set(range(max(rank_of, default=0) + 1)) - set(rank_of))
    if missing:
        names = f"stage {missing[0]}" if rank_of else "any stage"
        raise ProgramError(
            f"no rank computes {names}", place=place, fix="number stages from 0, leaving none out"
        )
    return tuple(rank_of[stage] for stage in range(len(rank_of)))


def micro_batches_of(computed: Iterable[int], place: str) -> int:
    """One more than the highest micro-batch computed. An error where there are more than actions:
    a slip of the pen must not become a schedule of millions."""
    numbers = list(computed)
    micro_batches = max(numbers, default=-1) + 1
    if micro_batches > len(numbers):
        raise ProgramError(
            f"micro-batch {micro_batches - 1:,} is named, and there are {len(numbers):,} actions",
            place=place,
            fix="number micro-batches from 0, leaving none out",
        )
    return micro_batches
