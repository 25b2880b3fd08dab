"""The batch shared out anew among the shapes of a draft."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import pytest
from test_left_out import job_file

from ratrain.plan.draft.draft import Draft, shared
from ratrain.plan.draft.parts import part_of
from ratrain.plan.draft.pools import Post, Shape, pipeline_of, pools_of
from ratrain.plan.draft.space import Space
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, divisors_of
from ratrain.plan.layout.jobs import load_job, strategy_of
from ratrain.plan.search.limits import MOST_SEQUENCES
from ratrain.plan.search.moves_of_work import all_shares
from ratrain.program.replicas import Recovery

LEVEL_1 = StateMode(1, False)


def stages_of(folder: Path, sequences: int) -> Stages:
    spec = load_job(
        job_file(folder, sequences=sequences, fast=(40, 2), middle=(20, 1), slow=(10, 1))
    )
    return Stages(spec, pools_of(spec.cluster.members()), strategy_of(spec), [Recovery.NONE])


def draft(stages: Stages, shapes: list[Shape], shares: list[int], sizes: list[int]) -> Draft:
    parts = [
        part_of(stages, pipeline_of(shape), size, len(shapes), LEVEL_1)
        for shape, size in zip(shapes, sizes, strict=True)
    ]
    return shared(stages, [part for part in parts if part is not None], shares, LEVEL_1)


def every_share(stages: Stages, shapes: list[Shape]) -> Iterator[Draft]:
    """Every way to share out the batch, in micro-batches of every size."""
    whole = stages.job.batch.sequences
    for ends in product(range(1, whole), repeat=len(shapes) - 1):
        counts = [end - begin for begin, end in pairwise((0, *ends, whole))]
        if min(counts) > 0:
            for sizes in product(*map(divisors_of, counts)):
                shares = [count // size for count, size in zip(counts, sizes, strict=True)]
                yield draft(stages, shapes, shares, list(sizes))


@pytest.mark.parametrize(
    "pools", [((0,), (1,)), ((0, 2), (1,)), ((0,), (0,), (1, 2)), ((0, 1), (0, 2))]
)
def test_no_shares_in_micro_batches_of_any_sizes_end_sooner(
    pools: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    stages = stages_of(tmp_path, 9)
    shapes = [tuple(Post(pool, 1) for pool in shape) for shape in pools]
    alike = draft(stages, shapes, [1] * (len(pools) - 1) + [10 - len(pools)], [1] * len(pools))
    made = next(all_shares(Space(stages, (LEVEL_1,)), alike))
    assert made is not None and [part.shape for part in made.parts] == shapes
    assert sum(n * part.micro_batch for n, part in zip(made.shares, made.parts, strict=True)) == 9
    least_s = min(other.alone_s for other in every_share(stages, shapes))
    assert made.alone_s == pytest.approx(least_s, rel=1e-12)


def test_a_batch_of_many_sequences_is_left_as_it_is(tmp_path: Path) -> None:
    stages = stages_of(tmp_path, MOST_SEQUENCES + 1)
    shapes: list[Shape] = [(Post(0, 1),), (Post(1, 1),)]
    begun = draft(stages, shapes, [MOST_SEQUENCES, 1], [1, 1])
    assert not list(all_shares(Space(stages, (LEVEL_1,)), begun))
