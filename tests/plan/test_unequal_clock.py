"""The time of a draft's step at the grain of stages, beside that of its whole program."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from drawn_clusters import drawn
from member_drafts import member_drafts
from random_jobs import job
from test_left_out import job_file

from ratrain.describe.job import JobSpec
from ratrain.plan.draft.clock import StageClock
from ratrain.plan.draft.draft import Draft, shared
from ratrain.plan.draft.parts import part_of
from ratrain.plan.draft.pools import Post, pipeline_of, pools_of
from ratrain.plan.draft.space import Space
from ratrain.plan.draft.stage_ops import kept_of, replica_ops
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import load_job, strategy_of
from ratrain.plan.layout.sizes import gathered_bytes_per_param
from ratrain.plan.search.beam import seeds
from ratrain.plan.search.tried import timed
from ratrain.program.replicas import Recovery
from ratrain.program.strategies import strategy

LEVEL_1 = StateMode(1, False)
MODES = (Recovery.NONE, Recovery.FORWARD, Recovery.BACKWARD)


def stages_of(spec: JobSpec, modes: tuple[Recovery, ...] = MODES) -> Stages:
    return Stages(spec, pools_of(spec.cluster.members()), strategy_of(spec), modes)


def unequal_job(folder: Path, *, link: str = "1Gbit/s", sequences: int = 24) -> JobSpec:
    path = job_file(folder, sequences=sequences, fast=(40, 2), middle=(20, 2), slow=(10, 1))
    text = (folder / "cluster.toml").read_text()
    (folder / "cluster.toml").write_text(text.replace("1Gbit/s", link))
    return load_job(path)


def random_draft(stages: Stages, rng: Random, state: StateMode = LEVEL_1) -> Draft | None:
    """Some of the devices in one to three replicas, their layers cut anyhow, shares at random."""
    layers, sequences = stages.job.model.spec.layers, stages.job.batch.sequences
    posts = [Post(number, 1) for number, pool in enumerate(stages.pools) for _ in pool.devices]
    rng.shuffle(posts)
    data = rng.randint(1, 3)
    ends = sorted(rng.sample(range(1, len(posts) + 1), data))
    parts = []
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        cuts = sorted(rng.sample(range(1, layers), min(end - first, layers) - 1))
        cut = tuple(b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True))
        shape = tuple(posts[first : first + len(cut)])
        parts.append(part_of(stages, pipeline_of(shape), 1, data, state, cut))
    shares = sorted(rng.sample(range(1, sequences), data - 1))
    shares = [b - a for a, b in zip([0, *shares], [*shares, sequences], strict=True)]
    fitting = [part for part in parts if part is not None]
    return shared(stages, fitting, shares, state) if len(fitting) == data else None


def gaps(stages: Stages, count: int, seed: int, state: StateMode = LEVEL_1) -> list[float]:
    """How far random drafts are off their whole programs, as a part of the step."""
    clock, rng, off = StageClock(stages), Random(seed), list[float]()
    while len(off) < count:
        draft = random_draft(stages, rng, state)
        plan = draft and timed(stages.job, stages.pools, draft, inf)[0]
        if draft is not None and plan is not None:
            stage_s = clock.step_s(draft)
            assert stage_s is not None
            off.append(abs(stage_s / plan.step_s - 1))
    return off


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_short_step_takes_as_long_as_its_whole_program(tmp_path: Path, level: int) -> None:
    stages = stages_of(unequal_job(tmp_path, sequences=8))
    assert max(gaps(stages, 8, level, StateMode(level, False))) < 1e-9


@pytest.mark.parametrize("level", [0, 1])
def test_error_feedback_takes_as_long_as_in_the_whole_program(tmp_path: Path, level: int) -> None:
    spec = unequal_job(tmp_path, sequences=8)
    spec = replace(spec, schedule=replace(spec.schedule, gradient_wire="bf16", error_feedback=True))
    assert max(gaps(stages_of(spec), 6, 13, StateMode(level, False))) < 1e-9


@pytest.mark.parametrize("without", [(), ("update-prefetch",)])
def test_stages_of_several_members_take_as_long_as_in_the_whole_program(
    tmp_path: Path, without: tuple[str, ...]
) -> None:
    """In one replica and in several, with members of any speed."""
    spec = unequal_job(tmp_path, sequences=8)
    spec = replace(spec, schedule=replace(spec.schedule, without=without))
    stages = stages_of(spec)
    space = Space(stages, (LEVEL_1,))
    drafts, dice = member_drafts(space, LEVEL_1), Random(3)
    alone = [draft for draft in drafts if len(draft.parts) == 1]
    several = [draft for draft in drafts if len(draft.parts) > 1]
    off: list[float] = []
    for draft in (*dice.sample(alone, 8), *dice.sample(several, 4)):
        plan, stage_s = timed(spec, stages.pools, draft, inf)[0], space.clock.step_s(draft)
        off.append(inf if plan is None or stage_s is None else abs(stage_s / plan.step_s - 1))
    assert sorted(off)[6] < 1e-9, off
    # Where members hand over to several, or a short step and a long one alternate:
    assert max(off) < (0.07 if without else 0.02), off


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("link", ["100Mbit/s", "1Gbit/s", "10Gbit/s"])
def test_a_long_step_whose_middle_is_left_out_is_within_two_percent(
    tmp_path: Path, link: str
) -> None:
    stages = stages_of(unequal_job(tmp_path, link=link, sequences=96))
    off = gaps(stages, 12, 3)
    assert max(off) < 0.02, off


@pytest.mark.parametrize("sequences", [8, 96])
def test_the_clock_knows_about_how_many_ops_its_program_has(tmp_path: Path, sequences: int) -> None:
    """What ends a search counts them, of a long step those that are kept; of a stage alone its
    messages too."""
    stages = stages_of(unequal_job(tmp_path, sequences=sequences))
    clock, rng = StageClock(stages), Random(7)
    for draft in filter(None, (random_draft(stages, rng) for _ in range(12))):
        sides = dict.fromkeys(zip(draft.parts, draft.shares, strict=True))
        kept = [kept_of("1f1b", len(part.shape), share) for part, share in sides]
        built = sum(
            len(replica_ops(stages, part, count, 1.0 * (count < share), 2, LEVEL_1))
            for (part, share), count in zip(sides, kept, strict=True)
        )
        assert 0.9 < clock.ops(draft) / built < 1.4


@pytest.mark.parametrize("mode", [Recovery.FORWARD, Recovery.BACKWARD])
def test_recovery_is_within_one_percent_of_the_whole_program(
    tmp_path: Path, mode: Recovery
) -> None:
    spec = unequal_job(tmp_path, sequences=8)
    spec = replace(spec, schedule=replace(spec.schedule, recovery="everywhere"))
    assert max(gaps(stages_of(spec, (mode,)), 6, 5)) < 0.01


def test_selective_recovery_takes_as_long_as_in_the_whole_program(tmp_path: Path) -> None:
    spec = unequal_job(tmp_path, sequences=8)
    schedule = replace(spec.schedule, attention="stored", recovery="selective")
    spec = replace(spec, schedule=schedule)
    assert max(gaps(stages_of(spec, (Recovery.SELECTIVE,)), 6, 11)) < 1e-9
    kept = stages_of(spec, (Recovery.NONE,)).row(Post(0, 1), 1, 1, True, True, 1, LEVEL_1)[4]
    again = stages_of(spec, (Recovery.SELECTIVE,)).row(Post(0, 1), 1, 1, True, True, 1, LEVEL_1)[4]
    assert kept is not None and again is not None
    assert again.backward_s > kept.backward_s


@pytest.mark.parametrize("without", [("update-prefetch",), ("layerwise-state-pipeline",)])
def test_barriers_are_where_the_whole_program_has_them(
    tmp_path: Path, without: tuple[str, ...]
) -> None:
    spec = unequal_job(tmp_path, sequences=8)
    spec = replace(spec, schedule=replace(spec.schedule, without=without))
    assert max(gaps(stages_of(spec), 6, 7)) < 1e-9


def test_clipping_waits_for_every_gradient_as_in_the_whole_program(tmp_path: Path) -> None:
    spec = unequal_job(tmp_path, sequences=8)
    spec = replace(spec, train=replace(spec.train, clip_norm=1.0))
    assert max(gaps(stages_of(spec), 6, 9)) < 1e-3


@pytest.mark.parametrize(
    "options", [{}, {"gradient_wire": "bf16", "error_feedback": True}], ids=["plain", "fed back"]
)
def test_a_draft_s_estimate_has_the_reductions_and_gathers_of_the_clock(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    spec = unequal_job(tmp_path)
    spec = replace(spec, schedule=replace(spec.schedule, collective="ring", **options))
    stages, post = stages_of(spec), Post(0, 1)
    clock, link = StageClock(stages), stages.links.slowest(frozenset({post.pool}))
    weight_bytes = gathered_bytes_per_param(spec, {stages.pools[post.pool].kind})
    for block, params in enumerate(stages.trained):
        sums = clock.collectives(((post, 2),), block, True, (2, 0, 0))
        known = stages.exchange_s(post, params, 2, link, weight_bytes)
        timed_s = [
            sent.alone_s(link.bandwidth_bytes_per_s) for sent in (sums.reduction, sums.gather)
        ]
        assert known[:2] == pytest.approx(timed_s, rel=1e-12)


def test_one_replica_is_timed_whatever_way_to_share_states_it_has_nobody_for(
    tmp_path: Path,
) -> None:
    stages = stages_of(unequal_job(tmp_path))
    members, clock = pipeline_of((Post(0, 1), Post(1, 1))), StageClock(stages)
    times_s = set[float | None]()
    for state in (LEVEL_1, StateMode(0, False), StateMode(3, True)):
        part = part_of(stages, members, 1, 1, state)
        assert part is not None
        times_s.add(clock.step_s(shared(stages, [part], [24], state)))
    assert len(times_s) == 1 and None not in times_s


def test_what_is_frozen_is_neither_reduced_nor_updated(tmp_path: Path) -> None:
    spec = unequal_job(tmp_path, sequences=8)
    spec = replace(spec, train=replace(spec.train, freeze=("self_attn",)))
    assert max(gaps(stages_of(spec), 6, 15)) < 1e-9


@pytest.mark.parametrize("divided", [False, True])
def test_tensor_groups_take_about_as_long_as_in_the_whole_program(divided: bool) -> None:
    """Embeddings are summed forward alone, heads backward alone; whole layers both ways."""
    spec = drawn("tensor_groups", 3)
    stages = stages_of(spec)
    space, off = Space(stages, (LEVEL_1,)), list[float]()
    for draft in seeds(space, divided, LEVEL_1):
        if any(post.tensor > 1 for post in draft.all_posts) and len(off) < 12:
            plan, stage_s = timed(spec, stages.pools, draft, inf)[0], space.clock.step_s(draft)
            assert plan is not None and stage_s is not None
            off.append(abs(stage_s / plan.step_s - 1))
    assert len(off) == 12
    assert max(off) < 0.02, off


def test_the_interpreted_clock_says_the_same_to_the_bit(tmp_path: Path) -> None:
    stages = stages_of(unequal_job(tmp_path, sequences=20))
    clock, rng = StageClock(stages), Random(1)
    for _ in range(3):
        draft = random_draft(stages, rng)
        assert draft is not None
        assert clock.step_s(draft) == clock.step_s(draft, compiled=False)


def test_a_cluster_may_say_rates_in_whole_numbers() -> None:
    """The compiled clock reads floating ones."""
    spec = drawn("sites", 1)
    assert {type(link.bandwidth_bytes_per_s) for link in spec.cluster.spec.links.values()} >= {int}
    stages, rng = stages_of(spec), Random(5)
    clock = StageClock(stages)
    drafts = [draft for draft in (random_draft(stages, rng) for _ in range(8)) if draft]
    for draft in drafts:
        assert clock.step_s(draft) == clock.step_s(draft, compiled=False)


def test_a_time_does_not_depend_on_what_was_timed_before(tmp_path: Path) -> None:
    stages, rng = stages_of(unequal_job(tmp_path)), Random(2)
    drafts = [draft for draft in (random_draft(stages, rng) for _ in range(20)) if draft]
    clock = StageClock(stages)
    forward = [clock.step_s(draft) for draft in drafts]
    other = StageClock(stages_of(stages.job))
    assert [other.step_s(draft) for draft in reversed(drafts)] == forward[::-1]


def test_drafts_are_ranked_as_whole_programs_where_hosts_hold_several_devices() -> None:
    spec = job("tiny-llama", "mixed-sites", 12, 24)
    stages, rng = stages_of(spec), Random(4)
    clock, pairs = StageClock(stages), list[tuple[float, float]]()
    while len(pairs) < 20:
        draft = random_draft(stages, rng)
        plan = draft and timed(spec, stages.pools, draft, inf)[0]
        if draft is not None and plan is not None:
            pairs.append((plan.step_s, clock.step_s(draft) or 0.0))
    ranks = [np.argsort(np.argsort(column)) for column in zip(*pairs, strict=True)]
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.9


def test_what_travels_with_every_micro_batch_has_no_such_time(tmp_path: Path) -> None:
    stages = stages_of(unequal_job(tmp_path))
    draft = random_draft(stages, Random(1))
    assert draft is not None
    clock = StageClock(stages)
    for state in (StateMode(3, False), StateMode(2, True)):
        assert clock.step_s(replace(draft, state=state)) is None
    split = Stages(stages.job, stages.pools, strategy("zb-h1"), MODES)
    assert StageClock(split).step_s(draft) is None
