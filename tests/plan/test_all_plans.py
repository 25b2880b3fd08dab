"""The benchmark that looks at every plan of a small cluster: its bounds, and what it comes to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Part, part_of
from ratrain.plan.draft.pools import Shape, pipeline_of, used_of
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.tried import timed

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "unequal"
MODES = (StateMode(0, False), StateMode(1, False), StateMode(2, True), StateMode(3, False))


@pytest.fixture
def exhaustive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark's module, which stands in no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield import_module("exhaustive")
    for name in ("exhaustive", "all_plans", "loose", "random_clusters"):
        sys.modules.pop(name, None)


def random_draft(every: Any, rng: Random, state: StateMode) -> Draft | None:
    """Replicas of random shapes and cuts on some of the devices; None where the batch is not shared
    out among so many."""
    free, parts, shares = list(every._free), list[Part](), list[int]()
    shapes, data = every._shapes(sum(free)), rng.randint(1, 4)
    left = every.cluster.sequences
    while len(parts) < data:
        fitting = [
            s for s in shapes if all(a <= b for a, b in zip(used(s, free), free, strict=True))
        ]
        if not fitting or left < 1:
            return None
        shape = rng.choice(fitting)
        free = [b - a for a, b in zip(used(shape, free), free, strict=True)]
        ends = sorted(rng.sample(range(1, every.cluster.layers), len(shape) - 1))
        cut = tuple(b - a for a, b in zip([0, *ends], [*ends, every.cluster.layers], strict=True))
        part = part_of(every._stages, pipeline_of(shape), 1, data, state, cut)
        assert part is not None, "memory is ample"
        is_last = len(parts) == data - 1
        shares.append(left if is_last else rng.randint(1, left))
        parts.append(part)
        left -= shares[-1]
    return Draft(tuple(parts), tuple(shares), state, 0.0, trainable=True)


def used(shape: Shape, free: list[int]) -> tuple[int, ...]:
    return used_of(shape, len(free))


@pytest.mark.parametrize("seed", range(4))
def test_a_bound_is_never_above_the_step_of_its_plan(
    seed: int, exhaustive: Any, tmp_path: Path
) -> None:
    rng = Random(seed)
    cluster = exhaustive.random_cluster(rng, 8, 7)
    spec = load_job(exhaustive.write_job(tmp_path, cluster))
    every = exhaustive.AllPlans(spec, cluster, inf, inf)
    compared = 0
    while compared < 12:
        draft = random_draft(every, rng, MODES[compared % 4])
        plan = draft and timed(spec, every._stages.pools, draft, inf)[0]
        if draft is not None and plan is not None:
            every.check(draft, plan.step_s)
            compared += 1
    assert every.above <= exhaustive.SOUND


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("seed", [31000, 31001, 31002, 41000])
def test_looking_at_every_plan_from_a_slower_step_comes_to_the_same_best(
    seed: int, exhaustive: Any, tmp_path: Path
) -> None:
    cluster = exhaustive.random_cluster(Random(seed), 6)
    best_s = exhaustive.compare(cluster).best_s
    spec = load_job(exhaustive.write_job(tmp_path, cluster))
    every = exhaustive.AllPlans(spec, cluster, 1.04 * best_s, inf)
    every.search()
    assert every.best_s == pytest.approx(best_s, rel=1e-9)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("seed", [51001, 51002, 51003, 51004, 71021, 71122, 103020])
def test_the_plan_of_seven_or_eight_devices_is_within_one_percent_of_every_plan(
    seed: int, exhaustive: Any
) -> None:
    compared = exhaustive.compare(exhaustive.random_cluster(Random(seed), 8, 7))
    assert compared.is_whole and compared.loss <= exhaustive.WANTED, compared
