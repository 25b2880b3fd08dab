"""Random mixes of kinds that compute in fp32, bf16 and fp16: sized, proved, priced, planned and
kept in plan files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_uneven_costs import prices_alike

from ratrain.describe.job import JobSpec, LayoutSpec, dtypes_of_kinds
from ratrain.describe.strict import FrozenMap
from ratrain.errors import RatrainError, SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.case.kinds import kind_parts
from ratrain.plan.file.form import file_of_plan, write_plan
from ratrain.plan.layout.enumerate import group_of_layout
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.tiers import bucket_count
from ratrain.plan.price.bill import bill_of
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.words.explain_kinds import kinds_text
from ratrain.program.kind import Kind
from ratrain.program.setup import Setup
from ratrain.program.text import read_text, write_text
from ratrain.program.units import RECOVERY_CODE
from ratrain.simulate.simulate import simulate

EXAMPLE = Path(__file__).parents[2] / "examples/unlike-dtypes.toml"
DTYPES = ("fp32", "bf16", "fp16")
STRATEGIES = ("ratrain", "1f1b", "gpipe", "zb-h1", "pe-zero", "zero3-heavy")
LAYOUTS = [LayoutSpec(4), LayoutSpec(2, 2), LayoutSpec(1, 4), LayoutSpec(1, 3), LayoutSpec(3)]
WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def mixed(kinds: tuple[str, ...], sent: str, layout: LayoutSpec | None, **schedule: Any) -> JobSpec:
    """A job on hosts of one device each, that has this one dtype; all send in `sent`."""
    job = load_job(EXAMPLE)
    spec = job.cluster.spec
    first = spec.device[0]
    (rate, *_) = first.rates
    devices = tuple(
        replace(first, name=f"has-{dtype}", rates=(replace(rate, dtype=dtype),))
        for dtype in dict.fromkeys((*kinds, sent))
    )
    hosts = tuple(
        replace(spec.host[0], name=f"host-{n}", device=f"has-{dtype}", count=1)
        for n, dtype in enumerate(kinds)
    )
    cluster = replace(
        job.cluster, spec=replace(spec, device=devices, host=hosts), devices=len(kinds)
    )
    asked = replace(job.schedule, dtype=sent, dtypes=FrozenMap[str](), **schedule)
    named = {f"has-{dtype}": dtype for dtype in kinds}
    settled = dtypes_of_kinds(cluster, replace(asked, dtypes=FrozenMap(named)))
    return replace(
        job,
        cluster=cluster,
        layout=layout,
        batch=replace(job.batch, micro_batch=2, sequences=24),
        schedule=replace(asked, dtypes=settled),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any mix, layout, strategy and level that can be had together."""
    layout = draw(st.sampled_from(LAYOUTS))
    kinds = tuple(draw(st.sampled_from(DTYPES)) for _ in range(layout.devices))
    assume(len(set(kinds)) > 1)
    sent = draw(st.sampled_from(["bf16", "fp16"]))
    asked: dict[str, Any] = {
        "name": draw(st.sampled_from(STRATEGIES)),
        "sharding": draw(st.sampled_from([None, 0, 1, 2, 3])),
        "gradient_dtype": draw(st.sampled_from(["fp32", "fp32", sent])),
        "gradient_accumulation": draw(st.sampled_from(["auto", "local", "sharded"])),
        "gradient_bucket_bytes": draw(st.sampled_from([None, None, 2_000_000])),
        "error_feedback": draw(st.integers(0, 3)) == 0,
        "average_every": draw(st.sampled_from([None, None, None, 2])),
    }
    job = mixed(kinds, sent, layout, **asked)
    overflow = draw(st.sampled_from(["step", "unit"]))
    try:
        return case_of(replace(job, train=replace(job.train, overflow=overflow)))
    except RatrainError:
        assume(False)
        raise


def sized_in(setup: Setup) -> list[int]:
    """Of each rank the bytes of a parameter in its views, whose number the fp32 states tell."""
    sizes: list[int] = []
    for member in setup.members:
        views = sum(unit.view_bytes for unit in member.units)
        states = sum(unit.optimizer_bytes for unit in member.units)
        sizes.append(2 if states == 6 * views else 4)
        assert states == {2: 6, 4: 2}[sizes[-1]] * views
    return sizes


def check(case: Case) -> None:
    job, layout = case.job, case.plan.layout
    verdict = case.proved.verdict
    assert verdict.sound
    assert read_text(write_text(case.program)) == case.program
    kinds = [
        case.plan.placement.kind(name)
        for each in case.plan.placement.classes
        for name in each.kinds
    ]
    computed = [WEIGHT_BYTES[job.dtype_of(kind)] for kind in kinds]
    assert sized_in(case.program.setup) == computed
    sharded = case.choices.accumulation.value == "sharded"
    group = group_of_layout(job, case.strategy, case.plan.placement, sharded_gradients=sharded)
    recovery = np.array(
        [[RECOVERY_CODE[s.only.recovery] for s in case.program.setup.replicas[0].stages]]
    )
    billed = bill_of(group, recovery).total[0]
    # Views that are gathered for a whole pass are in no search, and in no bill.
    for bound in verdict.bounds if not case.program.setup.gathers_per_pass else ():
        assert bound.total_bytes <= billed[bound.rank % layout.pipeline]
    seen = simulate(case.program, case.costs, verdict=verdict)
    assert seen.step_time_s > 0
    assert seen.peak_bytes <= max(bound.total_bytes for bound in verdict.bounds)


quick = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


@quick
@given(cases())
@pytest.mark.slow
def test_any_mix_of_dtypes_is_proved_billed_and_simulated(case: Case) -> None:
    check(case)


@pytest.mark.slow
@settings(quick, max_examples=120)
@given(cases())
def test_many_mixes_of_dtypes_are_proved_billed_and_simulated(case: Case) -> None:
    check(case)


def beside(folder: Path, sent: str) -> JobSpec:
    """The example's job, whose new devices know bf16 alone, and whose old ones fp16."""
    new, old = (EXAMPLE.parent / "clusters/new-and-old.toml").read_text().split('name = "old"', 1)
    wide, narrow = '[[device.rates]]\ndtype = "fp32"', '[[device.rates]]\ndtype = "fp16"'
    knows, _ = new.split(wide)
    path = folder / "cluster.toml"
    path.write_text(f'{knows}[[device]]\nname = "old"{old.replace(wide, narrow)}')
    budget = "schedule.memory_budget=100MB"
    return load_job(EXAMPLE, (f"cluster.name={path}", f"schedule.dtype={sent}", budget))


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "other"), [("bf16", "old"), ("fp16", "new")])
def test_bf16_beside_fp16_is_planned_explained_and_kept_in_plan_files(
    sent: str, other: str, tmp_path: Path
) -> None:
    job, own = beside(tmp_path, sent), "fp16" if sent == "bf16" else "bf16"
    assert job.schedule.dtypes == {other: own}
    result = search_layouts(job)
    for tried in result.tried[:3]:
        assert f'"dtypes": {{"{other}": "{own}"}},' in write_plan(file_of_plan(tried.plan))
        prices_alike(tried.plan)
    best = result.best
    assert {device.kind.name for device in best.plan.placement.devices} == {"new", "old"}
    case = Case(best.plan)
    assert f"{other} computes in {own}, the rest in {sent}, in which all send" in case.headline()
    simulation = simulate(case.program, case.costs, steps=2)
    said = "\n".join(kinds_text(kind_parts(Case(best.plan), simulation), best.step_s))
    assert said.index("computes in bf16") < said.index("old: ") < said.index("computes in fp16")


@pytest.mark.parametrize("sent", ["bf16", "fp16"])
@pytest.mark.parametrize("overflow", ["step", "unit"])
def test_where_any_kind_computes_in_fp16_all_wait_for_its_overflow(
    sent: str, overflow: str
) -> None:
    def scaled(*kinds: str) -> set[bool]:
        job = mixed(kinds, sent, LayoutSpec(len(kinds)))
        job = replace(job, train=replace(job.train, overflow=overflow))
        return {
            each.awaits_overflow if overflow == "step" else each.units_decide
            for each in (job, *(job.of_kind(kind) for kind in job.cluster.kinds))
        }

    assert scaled("bf16", "fp16") == scaled("bf16", "fp16", "fp32") == {True}
    assert scaled("bf16", "fp32") == {sent == "fp16"}


def test_views_of_two_16_bit_dtypes_are_gathered_in_two_bytes_and_all_else_as_in_one() -> None:
    layout = LayoutSpec(1, 4)
    mix, alike = (
        case_of(mixed(kinds, "bf16", layout, sharding=2)).costs.work
        for kinds in (("bf16", "fp16") * 2, ("bf16",) * 4)
    )
    for kind in (Kind.PrefetchW, Kind.GradSync):
        volume = alike[kind].volume_bytes
        assert volume.any()
        assert set(mix[kind].volume_bytes) == set(volume), kind


def test_averaged_weights_and_moments_travel_in_fp32_whatever_computes() -> None:
    layout, asked = LayoutSpec(1, 3), {"name": "1f1b", "average_every": 2, "sharding": 0}
    volumes = [
        case_of(mixed(kinds, "bf16", layout, **asked)).costs.work[Kind.AverageW].volume_bytes
        for kinds in (("bf16", "fp32", "bf16"), ("bf16",) * 3)
    ]
    assert set(volumes[0]) == set(volumes[1])
    layers = case_of(mixed(("bf16",) * 3, "bf16", layout, **asked)).setup.replicas[0].stages[0]
    parameters = layers.only.units[1].view_bytes / 2
    assert volumes[1][1] == pytest.approx(12 * parameters * 2 * 2 / 3, rel=0.01)


def test_buckets_hold_as_many_elements_on_kinds_of_all_dtypes() -> None:
    layout, sizes = LayoutSpec(1, 3), {"gradient_bucket_bytes": 2_000_000, "sharding": 2}
    kinds = ("bf16", "fp32", "fp16")
    for gradient_dtype, widest in (("fp32", 4), ("bf16", 4)):
        job = mixed(kinds, "bf16", layout, gradient_dtype=gradient_dtype, **sizes)
        for seen in (job, *(job.of_kind(kind) for kind in job.cluster.kinds)):
            assert bucket_count(seen, 1_000_000) == widest / 2
    alone = mixed(("bf16", "fp16"), "bf16", LayoutSpec(1, 2), gradient_dtype="bf16", **sizes)
    assert bucket_count(alone, 1_000_000) == 1


@pytest.mark.parametrize(
    ("overrides", "what", "key", "fix"),
    [
        (
            ("schedule.dtype=fp32", 'schedule.dtypes={ new = "bf16" }'),
            "new computes in bf16 and the rest in fp32",
            "dtypes.new",
            'set dtype = "bf16", and in dtypes "fp32" for the other kinds',
        ),
        (
            ('schedule.dtypes={ new = "fp8" }',),
            "new computes in fp8 and the rest in bf16",
            "dtypes.new",
            'write "fp32", or leave new out',
        ),
        (
            ('schedule.dtypes={ old = "fp16" }',),
            'device "old" has no rate for dtype "fp16"',
            "dtypes.old",
            "fp32",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_dtype_that_a_kind_cannot_compute_in_is_refused_with_its_name_and_a_fix(
    overrides: tuple[str, ...], what: str, key: str, fix: str
) -> None:
    with pytest.raises(SpecError, match=what) as refused:
        load_job(EXAMPLE, overrides)
    assert key in refused.value.place
    assert fix in refused.value.fix
