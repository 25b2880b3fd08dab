"""The closed form of the step time against formulas known and against the simulator."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from random_jobs import job

from ratrain.describe.cluster import HostKind
from ratrain.describe.job import ClusterChoice, JobSpec
from ratrain.describe.presets import cluster_preset
from ratrain.plan.layout.enumerate import Group, groups_of
from ratrain.plan.layout.plan import plan_of_row
from ratrain.plan.price.bill import BACKWARD, FORWARD, NONE
from ratrain.plan.price.estimate import estimate
from ratrain.plan.price.places import costs_of
from ratrain.plan.search.layouts import check
from ratrain.program.strategies import apply_strategy
from ratrain.simulate.simulate import simulate

CLUSTERS = ("mt3000", "a100-80g-dgx", "cpu-lab")
MODELS = ("small-llama", "small-qwen", "gpt-3.6b", "llama-2-7b")


def gap(group: Group, row: int, recovery: np.ndarray) -> float:
    """(closed form - simulation) / simulation."""
    priced = plan_of_row(group, row, recovery[row])
    program = apply_strategy(priced.strategy, priced.setup, priced.choices)
    simulated = simulate(program, costs_of(priced, program.setup))
    closed = estimate(group.only(np.array([row])), recovery[row : row + 1])
    return float(closed.step_s[0]) / simulated.step_time_s - 1


def random_job(rng: random.Random) -> JobSpec:
    cluster = rng.choice(CLUSTERS)
    devices = rng.choice([1, 2, 4] if cluster == "cpu-lab" else [1, 2, 4, 8, 16])
    sequences = rng.choice([16, 32, 48, 64])
    return job(rng.choice(MODELS), cluster, devices, sequences, rng.choice([512, 1024]))


def random_gaps(count: int, seed: int) -> list[float]:
    """Gaps of random plans that fit, on clusters of one kind of device."""
    rng, gaps = random.Random(seed), list[float]()
    while len(gaps) < count:
        spec = random_job(rng)
        groups = [g for g in groups_of(spec) if g.micro_batches * g.layout.stages <= 400]
        if not groups:
            continue
        checked = check(rng.choice(groups))
        rows = np.flatnonzero(checked.fits)
        if len(rows):
            gaps.append(gap(checked.group, int(rng.choice(rows.tolist())), checked.recovery))
    return gaps


def test_equal_stages_without_messages_take_m_plus_p_minus_1_slots() -> None:
    """(m + p - 1)(f + b): Narayanan et al. 2021, arXiv 2104.04473, section 2.2."""
    spec = job("gpt-3.6b", "a100-80g-dgx", 2, 16)
    group = next(g for g in groups_of(spec) if g.layout.pipeline == 2 and g.micro_batches == 16)
    row = next(r for r in range(len(group)) if group.layers[r].tolist() == [15, 15])
    estimated = estimate(group.only(np.array([row])), np.zeros((1, 2), dtype=np.int64))
    _, layer, head, _ = group.times[group.placement.classes[0].kinds[0]]
    busiest_s = 15 * (layer.forward_s + layer.backward_s) + head.forward_s + head.backward_s
    assert 16 < estimated.step_s[0] / busiest_s < 17.5


@pytest.mark.parametrize("code", [BACKWARD, FORWARD])
def test_a_head_is_computed_again_only_where_its_stage_recovers(code: int) -> None:
    group = next(groups_of(job("gpt-3.6b", "a100-80g-dgx", 1, 16)))
    head = group.times[group.placement.classes[0].kinds[0]][2]

    def step_s(code: int, *, again: bool) -> float:
        strategy = replace(group.strategy, recovers_heads=again)
        asked = replace(group.only(np.array([0])), strategy=strategy)
        return float(estimate(asked, np.full((1, 1), code)).step_s[0])

    assert step_s(NONE, again=True) == step_s(NONE, again=False)
    more_s = step_s(code, again=True) - step_s(code, again=False)
    assert more_s == pytest.approx(group.micro_batches * head.forward_s)


@pytest.mark.slow
def test_the_gap_to_the_simulator_is_small_on_random_plans() -> None:
    gaps = np.abs(random_gaps(40, seed=1))
    assert gaps.mean() < 0.03
    assert np.median(gaps) < 0.01


@pytest.mark.parametrize("slow_stage", [0, 1])
def test_each_stage_starts_its_updates_at_the_pace_of_its_own_device(slow_stage: int) -> None:
    quick = cluster_preset("a100-80g-dgx").device[0]
    slow = replace(quick, name="slow", launch_s=0.05)
    first, second = (slow, quick) if slow_stage == 0 else (quick, slow)
    hosts = tuple(HostKind(kind.name, kind.name, 1, 1) for kind in (first, second))
    base = job("gpt-3.6b", "a100-80g-dgx", 2, 16, schedule="1f1b")
    cluster = replace(base.cluster.spec, device=(first, second), host=hosts)
    mixed = replace(base, cluster=ClusterChoice(cluster, 2))
    group = next(g for g in groups_of(mixed) if g.layout.pipeline == 2 and not g.reversed_kinds)
    row = next(r for r in range(len(group)) if group.layers[r].tolist() == [15, 15])
    estimated = estimate(group.only(np.array([row])), np.zeros((1, 2), dtype=np.int64))
    ramp_s = group.times[first.name][1].forward_s * 15 + group.times[first.name][1].backward_s * 15
    # 15 layers and the embedding or the head: 16 updates, each started once.
    hidden_s = 2 * ramp_s if slow_stage else 0.0
    assert estimated.tail_s[0] > 16 * slow.launch_s - hidden_s


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_gap_stays_below_three_percent_over_a_thousand_random_plans() -> None:
    assert np.abs(random_gaps(1000, seed=2)).mean() < 0.03
