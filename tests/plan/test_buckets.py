"""Gradients in buckets: chosen where nothing else fits, refused by name where they cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratrain.describe.backends import BUCKET_BYTES
from ratrain.describe.job import JobSpec, LayoutSpec, ScheduleSpec
from ratrain.errors import SpecError
from ratrain.plan.case.case import case_as_asked, case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.sizes import parameter_balanced_layers
from ratrain.plan.layout.tiers import in_buckets
from ratrain.plan.search.misfit import planned
from ratrain.program.kind import Kind
from ratrain.program.setup import Accumulation
from ratrain.reproduce.ratrain_paper import job, trained


def on_clusters(model: str, layout: LayoutSpec, **options: object) -> JobSpec:
    """A job on the mt3000 preset, as `ratrain train` would run it."""
    schedule = ScheduleSpec("ratrain")
    spec = trained(job(model, layout.devices, layout, 2 * layout.devices, schedule), "unit")
    return with_schedule(spec, **options)


def with_schedule(spec: JobSpec, **options: object) -> JobSpec:
    return replace(spec, schedule=replace(spec.schedule, **options))  # type: ignore[arg-type]


def searched(budget_bytes: int) -> JobSpec:
    spec = on_clusters("llama-2-7b", LayoutSpec(1, 8), memory_budget_bytes=budget_bytes)
    return replace(spec, layout=None)


def test_a_search_puts_gradients_into_buckets_where_nothing_else_fits() -> None:
    best = planned(searched(15_500_000_000)).best
    assert best.plan.job.schedule.gradient_bucket_bytes == BUCKET_BYTES
    assert best.plan.mode.sharded_gradients
    assert best.bound_bytes <= 15_500_000_000
    program = best.proved
    assert program is not None
    assert program.short.setup.backward_sends


@pytest.mark.parametrize(("vocab", "larger"), [(16_000, True), (8_000, False)])
def test_buckets_are_tried_where_a_gradient_is_larger_than_one(vocab: int, larger: bool) -> None:
    spec = on_clusters("small-llama", LayoutSpec(1, 4), gradient_dtype="fp32")
    model = replace(spec.model.spec, vocab=vocab)
    spec = replace(spec, model=replace(spec.model, spec=model))
    assert (4 * vocab * model.hidden > BUCKET_BYTES) == larger
    assert (in_buckets(spec, strategy_of(spec)) is not None) == larger


def test_a_search_leaves_gradients_whole_where_they_fit() -> None:
    best = planned(searched(17_000_000_000)).best
    assert best.plan.job.schedule.gradient_bucket_bytes is None


def test_a_layout_that_fits_has_its_gradients_whole() -> None:
    case = case_of(on_clusters("llama-2-7b", LayoutSpec(4, 4)))
    assert case.proved.verdict.sound
    assert case.job.schedule.gradient_bucket_bytes is None


def test_a_plan_file_keeps_the_bucket() -> None:
    best = planned(searched(15_500_000_000)).best
    text = write_plan(file_of_plan(best.plan))
    assert '"gradient_bucket": "25000000B"' in text
    again = plan_of_file(parse_plan(text, "plan.json"), "plan.json")
    assert again.choices == best.plan.choices
    assert again.setup == best.plan.setup


def test_a_layout_that_fits_in_buckets_alone_gets_them() -> None:
    spec = on_clusters(
        "baichuan2-13b", LayoutSpec(8, 2), recovery="everywhere", gradient_accumulation="sharded"
    )
    assert spec.layout is not None
    layers = parameter_balanced_layers(spec, spec.layout)
    spec = replace(spec, layout=replace(spec.layout, layers=layers))
    whole, case = case_as_asked(spec), case_of(spec)
    assert not whole.proved.verdict.sound
    assert "buckets" not in "\n".join(whole.headline())
    assert case.job.schedule.gradient_bucket_bytes == BUCKET_BYTES
    assert case.proved.verdict.sound
    assert "buckets of 25 MB" in "\n".join(case.headline())


def test_a_bucketed_reduction_takes_twice_the_bytes() -> None:
    spec = on_clusters(
        "baichuan2-13b", LayoutSpec(8, 2), gradient_accumulation="sharded", recovery="everywhere"
    )
    volumes = []
    for size in (None, BUCKET_BYTES):
        case = case_as_asked(with_schedule(spec, gradient_bucket_bytes=size))
        volumes.append(case.costs.work[Kind.GradSync].volume_bytes)
    assert volumes[1] == pytest.approx(2 * volumes[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_accumulation": "local"}, "every rank keeps whole gradients"),
        ({"sharding": 1}, "does not shard gradients"),
        ({"without": ("layerwise-state-pipeline",)}, "no gradient is sent during backward"),
        ({"backend": "described"}, "has no buckets"),
        ({"gradient_bucket_bytes": 1000}, "too small for the smallest piece"),
    ],
)
def test_what_cannot_leave_in_buckets_is_refused_by_name(
    options: dict[str, object], message: str
) -> None:
    asked = {"gradient_bucket_bytes": BUCKET_BYTES, **options}
    spec = on_clusters("llama-2-7b", LayoutSpec(2, 4), **asked)
    with pytest.raises(SpecError, match=message) as caught:
        case_of(spec)
    assert "gradient_bucket" in str(caught.value)


def test_a_tied_model_is_refused_and_never_put_into_buckets() -> None:
    layout = LayoutSpec(2, 4)
    spec = on_clusters("llama-2-7b", layout)
    tied = replace(spec.model.spec, tied_embeddings=True)
    spec = replace(spec, model=replace(spec.model, spec=tied))
    spec = replace(spec, train=replace(spec.train, overflow="step"))
    with pytest.raises(SpecError, match="ties its embedding and its head"):
        case_of(with_schedule(spec, gradient_bucket_bytes=BUCKET_BYTES))
    case = case_of(with_schedule(spec, memory_budget_bytes=1_000_000_000))
    assert case.job.schedule.gradient_bucket_bytes is None
    assert case.proved.short.setup.accumulation is Accumulation.LOCAL
