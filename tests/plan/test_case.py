"""From a job to a case: what memory decides, which replicas are alike, and how it fails."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ratrain.cost.blocks import blocks
from ratrain.describe.job import (
    Batch,
    ClusterChoice,
    JobSpec,
    LayoutSpec,
    ModelChoice,
    ScheduleSpec,
)
from ratrain.describe.job_checks import check_job
from ratrain.describe.presets import cluster_names, cluster_preset, model_names, model_preset
from ratrain.describe.units import format_bytes
from ratrain.errors import ProgramError, RatrainError, SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.sizes import (
    blocks_of_stages,
    layers_of_stages,
    parameter_balanced_layers,
    stages_of,
)
from ratrain.program.replicas import Stage
from ratrain.program.strategies import PASSES, STRATEGIES
from ratrain.program.text.family_groups import takes
from ratrain.program.verify import Rule, verify
from ratrain.simulate.simulate import simulate

EXAMPLES = Path(__file__).parents[2] / "examples"


def job(
    model: str = "tiny-llama",
    cluster: str = "mt3000",
    layout: LayoutSpec | None = None,
    sequences: int = 8,
    sequence: int = 128,
    schedule: ScheduleSpec | None = None,
) -> JobSpec:
    """A job of presets."""
    layout = layout or LayoutSpec(pipeline=2)
    return JobSpec(
        ModelChoice(model_preset(model), sequence),
        ClusterChoice(cluster_preset(cluster), layout.devices),
        Batch(sequences, 1),
        layout,
        schedule or ScheduleSpec(),
    )


def limited(spec: JobSpec, budget_bytes: int) -> Case:
    """The case of a job under a budget."""
    return case_of(replace(spec, schedule=replace(spec.schedule, memory_budget_bytes=budget_bytes)))


def bound(case: Case) -> int:
    """The worst rank's memory on any timing."""
    return max(b.total_bytes for b in verify(case.program).bounds)


# ---- what memory decides ----------------------------------------------------------------


def test_as_the_budget_shrinks_less_is_kept_and_no_step_gets_faster() -> None:
    spec = job("small-llama", layout=LayoutSpec(pipeline=4, data=4), sequences=64, sequence=512)
    bounds, steps_s, seen = list[int](), list[float](), set[str]()
    budget = 2**40
    while (case := limited(spec, budget)).proved.verdict.sound:
        bounds.append(bound(case))
        steps_s.append(simulate(case.program, case.costs).step_time_s)
        seen.add(f"{case.choices.accumulation} {case.facts()['activations']}")
        budget = bounds[-1] - 1
    assert len(bounds) > 2 and len(seen) > 2
    assert all(later <= earlier - 1 for earlier, later in pairwise(bounds))
    assert all(later >= 0.999 * earlier for earlier, later in pairwise(steps_s))


def test_sharded_accumulation_without_sharded_gradients_is_refused_not_ignored() -> None:
    schedule = ScheduleSpec("1f1b", gradient_accumulation="sharded")
    with pytest.raises(SpecError, match="does not shard gradients") as caught:
        case_of(job(schedule=schedule))
    assert "gradient_accumulation" in caught.value.place


def test_a_choice_passed_over_did_not_fit() -> None:
    spec = job("small-llama", layout=LayoutSpec(pipeline=4, data=2), sequences=32, sequence=512)
    roomy = limited(spec, 2**40)
    tight = limited(spec, bound(roomy) - 1)
    kept = replace(spec.schedule, recovery="keep-all", gradient_accumulation="local")
    assert tight.choices != roomy.choices
    assert not verify(limited(replace(spec, schedule=kept), bound(roomy) - 1).program).sound


def test_a_job_that_does_not_fit_names_rank_item_and_bytes() -> None:
    case = limited(job(layout=LayoutSpec(pipeline=2)), 1_000_000)
    simulation = simulate(case.program, case.costs)
    assert not simulation.feasible
    finding = simulation.verdict.findings[0]
    assert finding.rule is Rule.OVER_BUDGET
    worst = simulation.verdict.bounds[finding.rank]
    item = max(worst.by_family, key=lambda name: worst.by_family[name])
    for said in (
        f"rank {finding.rank}",
        f"can need {format_bytes(worst.total_bytes)}",
        f"{format_bytes(worst.total_bytes - 1_000_000)} over",
        f"{takes(item)} {format_bytes(worst.by_family[item])}",
    ):
        assert said in finding.message


def test_a_short_program_decides_memory_as_the_whole_one_does() -> None:
    for name in ("ratrain", "zero3-heavy", "1f1b", "zb-h1"):
        layout = LayoutSpec(pipeline=4, data=2)
        spec = job("small-llama", layout=layout, sequences=8, schedule=ScheduleSpec(name))
        bounds = [
            bound(case_of(replace(spec, batch=Batch(sequences, 1)))) for sequences in (32, 128)
        ]
        assert bounds[0] == bounds[1], name


# ---- which replicas are alike -----------------------------------------------------------


def test_identical_replicas_are_simulated_once() -> None:
    case = case_of(job(layout=LayoutSpec(pipeline=2, data=3), sequences=12))
    assert [replica.count for replica in case.setup.replicas] == [3]
    assert case.program.setup.ranks == 2
    assert case.program.setup.devices == 6


def test_stages_are_sized_once_for_each_sort_of_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """On many devices of one kind a setup is made at once, however deep the pipeline is."""
    asked: list[LayoutSpec] = []

    def counted(spec: JobSpec, layout: LayoutSpec) -> tuple[Stage, ...]:
        asked.append(layout)
        return stages_of(spec, layout)

    plan = case_of(job(layout=LayoutSpec(pipeline=4, data=2))).plan
    monkeypatch.setattr("ratrain.plan.layout.plan.stages_of", counted)
    assert len(replace(plan).setup.replicas[0].stages) == 4
    assert len(asked) == 1


def test_unequal_replicas_are_simulated_in_full() -> None:
    case = case_of(load_job(EXAMPLES / "two-sites.toml"))
    counts = [replica.count for replica in case.setup.replicas]
    assert len(counts) > 1
    assert sum(counts) == 3
    simulation = simulate(case.program, case.costs)
    assert len(simulation.ranks) == 4 * len(counts)
    compute = {
        round(simulation.ranks[4 * number + 2].compute_s, 6) for number in range(len(counts))
    }
    assert len(compute) > 1, "the two kinds of device are equally fast"
    # They meet in every reduction, so that all have the same step.
    table = case.program.table
    assert (table.group[table.lane == 5] >= 0).any()


def test_a_tensor_group_is_one_rank_of_the_program() -> None:
    case = case_of(job("small-llama", layout=LayoutSpec(pipeline=2, tensor=2)))
    assert case.program.setup.ranks == 2
    assert case.program.setup.devices == 4
    alone = case_of(job("small-llama", layout=LayoutSpec(pipeline=2)))
    assert bound(case) < bound(alone)


# ---- layers to stages -------------------------------------------------------------------


def fullest(spec: JobSpec, split: tuple[int, ...]) -> int:
    """Parameters of the largest stage of a split."""
    parts = blocks(spec.model.spec)
    held = [count * parts[1].params for count in split]
    held[0] += parts[0].params
    held[-1] += parts[-1].params
    return max(held)


@pytest.mark.parametrize("model", ["tiny-llama", "small-llama", "small-qwen"])
@pytest.mark.parametrize("layers", [1, 4, 9])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_no_split_has_a_smaller_fullest_stage(model: str, layers: int, stages: int) -> None:
    spec = replace(model_preset(model), layers=layers)
    staged = job(layout=LayoutSpec(pipeline=stages))
    staged = replace(staged, model=ModelChoice(spec, 128))
    assert staged.layout is not None
    split = parameter_balanced_layers(staged, staged.layout)
    assert sum(split) == layers
    assert len(split) == stages
    assert min(split) >= 0
    every = (
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, layers), strict=True))
        for cuts in combinations_with_replacement(range(layers + 1), stages - 1)
    )
    assert fullest(staged, split) == min(fullest(staged, other) for other in every)


@pytest.mark.parametrize("layers", ["equal", "balanced", (3, 0, 1, 4)])
def test_stages_hold_every_block_once_in_order(layers: object) -> None:
    model = replace(model_preset("tiny-llama"), layers=8)
    spec = job(layout=LayoutSpec(pipeline=4, layers=layers))  # pyright: ignore[reportArgumentType]
    spec = replace(spec, model=ModelChoice(model, 128))
    assert spec.layout is not None
    held = [block for stage in blocks_of_stages(spec, spec.layout) for block in stage]
    assert tuple(held) == blocks(model)
    assert sum(layers_of_stages(spec, spec.layout)) == 8


# ---- anything a user may ask for --------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """Any presets, degrees, strategy and options: many of them wrong."""
    sizes = st.sampled_from([1, 1, 2, 2, 3, 4])
    layout = LayoutSpec(
        pipeline=draw(st.integers(1, 6)),
        data=draw(sizes),
        tensor=draw(sizes),
        virtual=draw(st.sampled_from([1, 1, 1, 2, 3])),
        layers=draw(st.sampled_from(["equal", "balanced"])),
    )
    wrong = draw(st.integers(0, 9))  # one thing in ten jobs each
    devices = layout.devices + (wrong == 0)
    if wrong == 1 and layout.virtual == 1:
        layout = replace(
            layout,
            layers=tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=layout.pipeline))),
        )
    micro_batch = draw(st.sampled_from([1, 1, 2]))
    sequences = layout.data * micro_batch * draw(st.sampled_from([1, 2, 3, 4, 6, 12])) + (
        wrong == 2
    )
    name = "ratrian" if wrong == 3 else draw(st.sampled_from(sorted(STRATEGIES)))
    cluster = draw(st.sampled_from(cluster_names()))
    dtype = "fp32" if (cluster == "cpu-lab") is (wrong != 4) else "fp16"
    left_out = draw(st.sets(st.sampled_from(PASSES), max_size=2)) | (
        {"prefetch"} if wrong == 5 else set()
    )
    return JobSpec(
        ModelChoice(
            model_preset(draw(st.sampled_from(model_names()))),
            draw(st.sampled_from([1, 128, 1000, 2048])),
        ),
        ClusterChoice(cluster_preset(cluster), devices),
        Batch(sequences, micro_batch),
        layout,
        ScheduleSpec(
            name=name,
            without=tuple(sorted(left_out)),
            memory_budget_bytes=draw(st.sampled_from([None, 10**6, 2 * 10**10])),
            recovery_buffer=draw(st.integers(1, 3)),
            gradient_accumulation=draw(st.sampled_from(["sharded", "local", "auto"])),
            recovery=draw(st.sampled_from(["auto", "keep-all", "exempt-last", "everywhere"])),
            recover_heads=draw(st.sampled_from([None, True, False])),
            sharding=draw(st.sampled_from([None, None, 0, 1, 2, 3])),
            dtype=dtype,
        ),
    )  # fmt: skip


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs())
@pytest.mark.slow
def test_any_job_ends_in_a_result_or_in_an_error_that_the_user_can_mend(spec: JobSpec) -> None:
    try:
        check_job(spec)
        case = case_of(spec)
        simulation = simulate(case.program, case.costs, steps=2)
    except RatrainError as error:
        event(f"refused: {type(error).__name__}")
        assert str(error)
        return
    event("feasible" if simulation.feasible else "infeasible")
    assert simulation.step_time_s > 0
    assert not [f for f in simulation.verdict.findings if f.rule is not Rule.OVER_BUDGET]
    bounds = {bound.rank: bound.total_bytes for bound in simulation.verdict.bounds}
    assert all(times.peak_bytes <= bounds[times.rank] for times in simulation.ranks)
    assert max(map(len, case.headline())) <= 80
    assert case.job.tokens == spec.batch.sequences * spec.model.sequence_length


@pytest.mark.parametrize(
    ("schedule", "layout", "place", "fix"),
    [
        ("interleaved", LayoutSpec(3, virtual=1), "[batch] sequences", "use 9 micro-batches"),
        ("1f1b", LayoutSpec(2, virtual=2), "[layout] virtual", 'skeleton = "interleaved"'),
    ],
)
def test_micro_batches_and_stages_that_a_schedule_cannot_order_are_named_with_their_place(
    schedule: str, layout: LayoutSpec, place: str, fix: str
) -> None:
    with pytest.raises(SpecError) as error:
        case_of(job(layout=layout, schedule=ScheduleSpec(schedule)))
    assert place in error.value.place and fix in error.value.fix


@pytest.mark.parametrize("recovery", ["auto", "keep-all"])
def test_an_order_too_long_to_be_written_out_is_the_fault_of_the_job_files_key(
    recovery: Literal["auto", "keep-all"],
) -> None:
    gpipe = ScheduleSpec("gpipe", recovery=recovery)
    laid_out = job("small-llama", layout=LayoutSpec(pipeline=2), schedule=gpipe)
    long_job = replace(laid_out, batch=Batch(10**9), path=Path("mine.toml"))
    with pytest.raises(ProgramError, match="at most 10,000,000") as caught:
        _ = case_of(long_job).proved
    assert caught.value.place == "mine.toml [batch] sequences"
