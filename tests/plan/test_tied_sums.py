"""The sum of a tied matrix' gradients in its price: by hand, by closed form, on the clock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_jobs import job

from ratrain.describe.cluster import ClusterSpec, HostKind, Link
from ratrain.describe.job import ClusterChoice, JobSpec, LayoutSpec
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.describe.strict import FrozenMap
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.layout.enumerate import Group, groups_of
from ratrain.plan.layout.plan import plan_of_row
from ratrain.plan.price.estimate import estimate
from ratrain.plan.price.places import costs_of
from ratrain.program.kind import Kind
from ratrain.program.strategies import apply_strategy
from ratrain.simulate.simulate import simulate

TIED = model_preset("gpt-3.6b")
MATRIX_BYTES = 2 * TIED.vocab * TIED.hidden
SLOW = Link(1e-3, 1.25e9)


def slow_hosts(hosts: int, kind: str = "a100-80g-dgx") -> ClusterSpec:
    """Hosts of one device each, on a network of 10 Gbit/s."""
    base = cluster_preset(kind)
    host = HostKind("host", base.device[0].name, 1, hosts)
    return replace(base, host=(host,), links=FrozenMap({"host": SLOW, "room": SLOW}))


def on_slow_hosts(devices: int, schedule: str, model: str = "gpt-3.6b") -> JobSpec:
    base = job(model, "a100-80g-dgx", devices, 16, schedule=schedule)
    return replace(base, cluster=ClusterChoice(slow_hosts(devices), devices))


def placed(pipeline: int, data: int, schedule: str = "1f1b") -> Case:
    spec = on_slow_hosts(pipeline * data, schedule)
    return case_of(replace(spec, layout=LayoutSpec(pipeline, data)))


def tie_rows(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Fixed seconds and bytes of each unit's sum."""
    work = case.costs.work[Kind.TieSync]
    return work.fixed_s, work.volume_bytes


def test_a_described_framework_adds_up_a_tied_matrix_between_its_first_and_its_last_stage() -> None:
    case = placed(4, 1)
    kinds = [
        {
            action.kind
            for lane, actions in case.program.lanes.items()
            if lane[0] == rank
            for action in actions
        }
        for rank in range(4)
    ]
    assert [Kind.TieSync in of_rank for of_rank in kinds] == [True, False, False, True]
    fixed_s, volume_bytes = tie_rows(case)
    for end in (0, -1):
        assert fixed_s[end] == SLOW.latency_s
        assert volume_bytes[end] == MATRIX_BYTES


def test_owners_of_a_part_add_up_that_part_alone() -> None:
    spec = on_slow_hosts(4, "1f1b")
    spec = replace(spec, schedule=replace(spec.schedule, sharding=1), layout=LayoutSpec(2, 2))
    assert tie_rows(case_of(spec))[1][0] == MATRIX_BYTES / 2


def test_one_rank_of_a_described_framework_holds_a_tied_matrix_once() -> None:
    alone, apart = placed(1, 2), placed(2, 2)
    assert not alone.program.setup.tied
    *_, head = alone.program.setup.replicas[0].stages[0].only.units
    *_, copy = apart.program.setup.replicas[0].stages[1].only.units
    assert copy.view_bytes - head.view_bytes == MATRIX_BYTES
    reduced = [case.costs.work[Kind.GradSync].volume_bytes[-1] for case in (alone, apart)]
    # In a ring of two each half of the reduction sends half of the matrix.
    assert reduced[1] - reduced[0] == pytest.approx(MATRIX_BYTES / 2)


def test_gradients_may_be_sharded_where_one_rank_holds_a_tied_matrix_once() -> None:
    spec = on_slow_hosts(2, "1f1b")
    schedule = replace(spec.schedule, sharding=2, gradient_accumulation="sharded")
    case_of(replace(spec, schedule=schedule, layout=LayoutSpec(1, 2)))


@pytest.mark.parametrize("schedule", ["1f1b", "ratrain", "gpipe"])
@pytest.mark.parametrize("backend", ["described", "torch"])
def test_the_closed_form_adds_what_the_simulated_step_takes_longer_for_it(
    schedule: str, backend: str
) -> None:
    """A third of a second a step: 0.3 GB over 10 Gbit/s."""
    tied = on_slow_hosts(4, schedule)
    tied = replace(tied, schedule=replace(tied.schedule, backend=backend))
    untied = replace(tied.model.spec, tied_embeddings=False)
    step_s = {
        model.tied_embeddings: of_four_stages(replace(tied, model=replace(tied.model, spec=model)))
        for model in (tied.model.spec, untied)
    }
    closed_s, simulated_s = (step_s[True][n] - step_s[False][n] for n in (0, 1))
    assert simulated_s > 0.2
    assert closed_s == pytest.approx(simulated_s, rel=0.1)


def of_four_stages(spec: JobSpec) -> tuple[float, float]:
    """The step by closed form and on the clock, of four equal stages without replicas."""
    group = next(g for g in groups_of(spec) if g.layout.pipeline == 4 and g.micro_batches == 16)
    recovery = np.zeros((1, 4), dtype=np.int64)
    return both(group.only(np.array([0])), recovery)


def both(group: Group, recovery: np.ndarray) -> tuple[float, float]:
    priced = plan_of_row(group, 0, recovery[0])
    program = apply_strategy(priced.strategy, priced.setup, priced.choices)
    costs = costs_of(priced, program.setup)
    return float(estimate(group, recovery).step_s[0]), simulate(program, costs).step_time_s
