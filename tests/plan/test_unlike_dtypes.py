"""Device kinds that compute in different dtypes: settled when a job is read, sized and priced by
each kind's own, sent in the job's, chosen by the planner, said in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_uneven_costs import prices_alike

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.strict import FrozenMap
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case, case_of, case_of_plan
from ratrain.plan.case.kinds import kind_parts
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.enumerate import group_of_layout
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.price.bill import bill_of
from ratrain.plan.price.estimate import estimate
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.words.explain_kinds import kinds_text
from ratrain.program.kind import Kind
from ratrain.program.setup import Setup
from ratrain.program.text import read_text, write_text
from ratrain.program.units import RECOVERY_CODE
from ratrain.simulate.simulate import simulate

EXAMPLE = Path(__file__).parents[2] / "examples/unlike-dtypes.toml"
NEW_FIRST = LayoutSpec(pipeline=2, data=2)  # stage 0 on the new devices, stage 1 on the old ones


def example(*overrides: str, layout: LayoutSpec | None = None) -> JobSpec:
    job = load_job(EXAMPLE, overrides)
    return replace(job, layout=layout, batch=replace(job.batch, micro_batch=4))


def alike(dtype: str, layout: LayoutSpec, **schedule: str | int) -> Case:
    """The same job with all kinds in one dtype, on devices that are all new."""
    job = example(layout=layout)
    new = job.cluster.spec.device[0]
    hosts = tuple(replace(host, device=new.name) for host in job.cluster.spec.host)
    cluster = replace(job.cluster, spec=replace(job.cluster.spec, host=hosts))
    plain = replace(job.schedule, dtype=dtype, dtypes=FrozenMap[str](), **schedule)
    return case_of(replace(job, cluster=cluster, schedule=plain))


def weights_of(setup: Setup) -> list[float]:
    """Of each rank the bytes of a parameter in its views, whose number the fp32 moments tell."""
    optimizer = {2: 12, 4: 8}
    sizes: list[float] = []
    for member in setup.members:
        views = sum(unit.view_bytes for unit in member.units)
        states = sum(unit.optimizer_bytes for unit in member.units)
        (each,) = [size for size, beside in optimizer.items() if views * beside == states * size]
        sizes.append(each)
    return sizes


def test_a_kind_without_the_dtype_computes_in_fp32_beside_one_that_has_it() -> None:
    job = example()
    new, old = job.cluster.kinds
    assert job.schedule.dtypes == {"old": "fp32"}
    assert (job.dtype_of(new), job.dtype_of(old)) == ("bf16", "fp32")
    seen = job.of_kind(old).schedule
    assert (seen.dtype, seen.gradients_travel_in, seen.boundaries_travel_in) == (
        "fp32", "bf16", "bf16",
    )  # fmt: skip
    with pytest.raises(SpecError, match='"old" has no rate for dtype "bf16"'):
        load_job(EXAMPLE, ('schedule.dtypes={ old = "bf16" }',))


def test_kinds_that_compute_in_the_jobs_dtype_change_nothing() -> None:
    plain, named = example("schedule.dtype=fp32"), example(
        "schedule.dtype=fp32", 'schedule.dtypes={ new = "fp32" }'
    )  # fmt: skip
    assert not plain.unlike and not named.unlike
    first, second = (case_of(replace(job, layout=NEW_FIRST)) for job in (plain, named))
    assert write_text(first.program) == write_text(second.program)
    assert first.headline() == second.headline()
    for kind, work in first.costs.work.items():
        assert np.array_equal(work.fixed_s, second.costs.work[kind].fixed_s), kind
        assert np.array_equal(work.volume_bytes, second.costs.work[kind].volume_bytes), kind


def test_each_rank_is_sized_by_its_own_dtype_and_its_program_reads_back() -> None:
    case = case_of(example(layout=NEW_FIRST))
    assert weights_of(case.setup) == [2, 4]
    narrow, wide = alike("bf16", NEW_FIRST), alike("fp32", NEW_FIRST)
    of_stage = [stage.only for stage in case.setup.replicas[0].stages]
    for stage, other in zip(of_stage, (narrow, wide), strict=True):
        same = other.setup.replicas[0].stages[stage.rank].only
        for unit, as_alike in zip(stage.units, same.units, strict=True):
            assert replace(unit, scratch_bytes=0) == replace(as_alike, scratch_bytes=0)
    assert read_text(write_text(case.program)) == case.program
    assert case.proved.verdict.sound


@pytest.mark.slow
def test_what_is_sent_is_priced_in_the_jobs_dtype_and_gathers_in_the_widest() -> None:
    layout = LayoutSpec(pipeline=1, data=4)
    mixed, narrow, wide = (
        case.costs.work
        for case in (
            case_of(example("schedule.sharding=2", layout=layout)),
            alike("bf16", layout, sharding=2),
            alike("fp32", layout, sharding=2),
        )
    )
    units = len(narrow[Kind.GradSync].volume_bytes)
    reduced = mixed[Kind.GradSync].volume_bytes
    assert np.array_equal(reduced[:units], narrow[Kind.GradSync].volume_bytes)
    assert np.array_equal(reduced[units:], narrow[Kind.GradSync].volume_bytes)
    gathered = mixed[Kind.PrefetchW].volume_bytes
    assert np.array_equal(gathered[:units], wide[Kind.PrefetchW].volume_bytes)
    assert np.array_equal(gathered[:units], gathered[units:])
    pipeline = case_of(example(layout=NEW_FIRST)).costs.work
    for kind in (Kind.SEND_F, Kind.SEND_B):
        expected = alike("bf16", NEW_FIRST).costs.work[kind].volume_bytes
        assert expected.any() and np.array_equal(pipeline[kind].volume_bytes, expected)
    forward = pipeline[Kind.F].fixed_s
    fp32 = alike("fp32", NEW_FIRST).costs.work[Kind.F].fixed_s
    bf16 = alike("bf16", NEW_FIRST).costs.work[Kind.F].fixed_s
    first = len(case_of(example(layout=NEW_FIRST)).setup.replicas[0].stages[0].only.units)
    assert np.array_equal(forward[:first], bf16[:first])
    assert np.array_equal(forward[first:], fp32[first:])


@pytest.mark.parametrize("layout", [NEW_FIRST, LayoutSpec(4), LayoutSpec(1, 4)], ids=str)
def test_bill_and_estimate_are_as_near_as_where_dtypes_are_one(layout: LayoutSpec) -> None:
    job = example("schedule.recovery=keep-all", "schedule.skeleton=1f1b", layout=layout)
    case = case_of(job)
    group = group_of_layout(job, case.strategy, case.plan.placement, sharded_gradients=False)
    recovery = np.full((1, layout.stages), RECOVERY_CODE[case.setup.members[0].recovery])
    billed = bill_of(group, recovery).total[0]
    bounds = case.proved.verdict.bounds
    for rank in range(layout.pipeline):
        fullest = max(b.total_bytes for b in bounds if b.rank % layout.pipeline == rank)
        assert fullest <= billed[rank] <= 1.02 * fullest
    closed = float(estimate(group, recovery).step_s[0])
    assert closed == pytest.approx(simulate(case.program, case.costs).step_time_s, rel=0.1)


def test_a_plan_file_keeps_the_dtypes_and_is_read_alike_either_way() -> None:
    for tried in search_layouts(example()).tried[:4]:
        plan = file_of_plan(tried.plan)
        assert plan.dtypes == {"old": "fp32"}
        assert '"dtypes": {"old": "fp32"},' in write_plan(plan)
        again = plan_of_file(parse_plan(write_plan(plan), str(EXAMPLE)), str(EXAMPLE))
        assert again.setup == tried.plan.setup
        prices_alike(tried.plan)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("0", "1"), ("0", "2")], ids=str)
def test_a_plan_names_the_dtypes_of_the_kinds_that_it_uses(devices: tuple[str, str]) -> None:
    plan = parse_plan(write_plan(file_of_plan(search_layouts(example()).best.plan)), str(EXAMPLE))
    entry = plan.replicas[0]
    stage = replace(entry.stages[0], layers=12, tensor=1, sharding=1)
    sizes = ((4, 3), (5, 4))  # micro-batches, and sequences of each
    shares = tuple(
        replace(
            entry,
            count=1,
            micro_batches=count,
            stages=(replace(stage, devices=device, micro_batch=size),),
        )
        for device, (count, size) in zip(devices, sizes, strict=True)
    )
    case = case_of_plan(replace(plan, replicas=shares), str(EXAMPLE))
    assert ("old computes in fp32" in " ".join(case.headline())) == ("2" in devices)
    assert case.facts()["dtypes"] == ({"old": "fp32"} if "2" in devices else {})


@pytest.mark.slow
def test_replicas_that_differ_are_sized_by_each_rank() -> None:
    text = write_plan(file_of_plan(search_layouts(example()).best.plan))
    plan = parse_plan(text, str(EXAMPLE))
    entry, layers = plan.replicas[0], 12
    stage = replace(entry.stages[0], devices="2", layers=layers, tensor=1, micro_batch=4)
    pair = [replace(stage, devices=device, layers=6) for device in ("0", "3")]
    unlike = replace(
        plan,
        replicas=(
            replace(entry, count=1, micro_batches=5, stages=tuple(pair)),
            replace(entry, count=1, micro_batches=3, stages=(stage,)),
        ),
    )
    case = case_of_plan(unlike, str(EXAMPLE))
    assert weights_of(case.setup) == [2, 4, 4]
    assert case.proved.verdict.sound
    assert plan_of_file(unlike, str(EXAMPLE)).setup == case.setup


def test_the_planner_uses_both_kinds_and_says_what_each_computes_in() -> None:
    best = search_layouts(example("schedule.memory_budget=100MB")).best
    assert {device.kind.name for device in best.plan.placement.devices} == {"new", "old"}
    case = case_of_plan(file_of_plan(best.plan), str(EXAMPLE))
    words = "old computes in fp32, the rest in bf16, in which all send"
    assert words in case.headline()
    simulation = simulate(case.program, case.costs, steps=2)
    text = "\n".join(kinds_text(kind_parts(Case(best.plan), simulation), best.step_s))
    assert text.count("  dtype   computes in ") == 2
    assert text.index("computes in bf16") < text.index("old: ") < text.index("computes in fp32")


@pytest.mark.parametrize(
    ("overrides", "what", "key"),
    [
        (('schedule.dtypes={ odl = "fp32" }',), "no device kind odl", "dtypes.odl"),
        (("schedule.gradient_wire=fp32",), "cannot be sent in fp32", "gradient_wire"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_unlike_dtypes_cannot_do_is_refused_at_its_key(
    overrides: tuple[str, ...], what: str, key: str
) -> None:
    with pytest.raises(SpecError, match=what) as refused:
        load_job(EXAMPLE, overrides)
    assert key in refused.value.place


def test_tensor_groups_of_two_dtypes_are_refused() -> None:
    job = example(layout=LayoutSpec(pipeline=1, data=1, tensor=4))
    with pytest.raises(SpecError, match="compute in different dtypes"):
        case_of(job)
