"""Whatever compute order somebody registers: what is planned, simulated and verified is one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_jobs import job
from random_skeletons import skeletons
from registered import declared_inside

from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible, SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.layout.plan import Plan
from ratrain.plan.search.misfit import planned
from ratrain.program import repeating
from ratrain.program.skeletons import Skeleton, declare_skeleton
from ratrain.program.strategies import apply_strategy
from ratrain.program.verify import Verdict, verify
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import simulate

PASSES = (
    None,
    (),
    ("layerwise-state-pipeline", "update-prefetch"),
    ("forward-recovery", "layerwise-state-pipeline", "offload-inputs"),
    ("backward-recovery", "gather-once"),
)


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """A small job that leaves its layout open, with an order that is not there yet."""
    devices = draw(st.sampled_from([1, 2, 2, 3, 4]))
    spec = job(
        "small-llama",
        "cpu-lab",
        devices,
        devices * draw(st.sampled_from([1, 4, 12, 60, 211, 240])),
        64,
        draw(st.sampled_from([None, None, 400_000_000])),
        backend=draw(st.sampled_from(["torch", "described"])),
    )
    schedule = replace(
        spec.schedule,
        skeleton="random",
        passes=draw(st.sampled_from(PASSES)),
        sharding=draw(st.sampled_from([None, 0, 2, 3])),
        dtype="fp32",
    )
    return replace(spec, schedule=schedule)


def figures(verdict: Verdict) -> list[tuple[str, int, dict[str, int]]]:
    bounds = (*verdict.bounds, *verdict.lower_bounds)
    return [(bound.tier, bound.total_bytes, bound.by_family) for bound in bounds]


def check_plan(candidate: Plan, bound_bytes: int) -> None:
    """A plan's bound is that of the whole program; its simulation stays within."""
    case = Case(candidate)
    whole = apply_strategy(case.strategy, case.setup, case.choices)
    verdict = verify(whole)
    assert verdict.sound
    assert case.program == whole
    assert figures(case.proved.verdict) == figures(verdict)
    assert bound_bytes == max(bound.total_bytes for bound in verdict.bounds)
    simulation = simulate(whole, case.costs, verdict=verdict)
    peaks = [times.peak_bytes for times in simulation.ranks]
    assert all(p <= b.total_bytes for p, b in zip(peaks, verdict.bounds, strict=True))
    shown = simulate_proved(case.proved, case.costs)
    assert shown.step_time_s == pytest.approx(simulation.step_time_s, rel=1e-4)


def check_skeleton(skeleton: Skeleton, spec: JobSpec) -> None:
    with declared_inside(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeating, "SMALL", 200)  # so that small programs are kept short too
        declare_skeleton("random", skeleton)
        try:
            search = planned(spec)
        except (SpecError, Infeasible):
            return
        for tried in search.tried[:3]:
            check_plan(tried.plan, tried.bound_bytes)
            if skeleton.repeats is None or skeleton.together > 1:
                case = Case(tried.plan)
                step_s = simulate(case.program, case.costs, steps=3).step_time_s
                assert tried.step_s == pytest.approx(step_s, rel=1e-9)


GENERAL = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}


@pytest.mark.slow
@settings(max_examples=5, **GENERAL)
@given(skeletons(), jobs())
def test_plans_of_any_order_are_what_verify_and_simulate_say(
    skeleton: Skeleton, spec: JobSpec
) -> None:
    check_skeleton(skeleton, spec)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=60, **GENERAL)
@given(skeletons(), jobs())
def test_plans_of_many_orders_are_what_verify_and_simulate_say(
    skeleton: Skeleton, spec: JobSpec
) -> None:
    check_skeleton(skeleton, spec)
