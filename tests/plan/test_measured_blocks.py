"""Plans and simulations by measured layers: which times count, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_jobs import job

from ratrain.cost.blocks import blocks
from ratrain.cost.measured import Unmeasured
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.layer_profile import BlockName, LayerProfile, MeasuredTime, shape_of
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.enumerate import groups_of
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.words.planned import search_text
from ratrain.simulate.simulate import simulate

MODEL = model_preset("small-llama")


def entry(block: BlockName, forward_s: float, tensor: int = 1) -> LayerProfile:
    times = (
        MeasuredTime(1, forward_s, 2 * forward_s),
        MeasuredTime(4, 4 * forward_s, forward_s * 8),
    )
    return LayerProfile(shape_of(MODEL, block), 512, times, "test", block, tensor)


def measured_job(*entries: LayerProfile, rates: bool = True) -> JobSpec:
    """Small-llama on four devices of one host whose layers are measured."""
    base = job("small-llama", "a100-80g-dgx", 4, 16, schedule="1f1b")
    kind = replace(base.cluster.spec.device[0], layer_profile=entries, kernels=None)
    kind = kind if rates else replace(kind, rates=())
    return replace(base, cluster=replace(base.cluster, spec=_with(base, kind)))


def _with(base: JobSpec, kind: DeviceKind):
    return replace(base.cluster.spec, device=(kind,))


LAYERS = entry("layer", 0.01)
ALL = (LAYERS, entry("embedding", 0.001), entry("head", 0.005))


def test_a_simulated_step_is_made_of_the_measured_layers() -> None:
    spec = replace(measured_job(*ALL), layout=LayoutSpec(1, 4))
    case = case_of(spec)
    step_s = simulate(case.program, case.costs, steps=2).step_time_s
    layers = len(blocks(MODEL)) - 2
    compute_s = 4 * 3 * (layers * 0.01 + 0.001 + 0.005)  # four micro-batches of one sequence
    assert compute_s < step_s < 1.1 * compute_s
    (line,) = [line for line in case.headline() if line.startswith("times on")]
    assert line == "times on a100-80g-sxm: layers, embedding, head measured"


def test_what_is_not_measured_is_said_and_how_a_time_was_read() -> None:
    spec = measured_job(LAYERS)
    size = replace(spec.batch, micro_batch=2)
    case = case_of(replace(spec, batch=size, layout=LayoutSpec(2, 2)))
    said = " ".join(" ".join(case.headline()).split())
    assert "layers interpolated between the measured micro-batches 1 and 4" in said
    assert "embedding, head from its rates, not measured" in said
    assert case.facts()["measured_times"]


@pytest.mark.parametrize("rates", [True, False])
def test_a_search_keeps_to_the_degrees_in_which_layers_were_measured(rates: bool) -> None:
    """A formula that flatters would win every comparison with a measurement."""
    spec = measured_job(*ALL, rates=rates)
    layouts = {group.layout for group in groups_of(spec)}
    assert {(layout.tensor, layout.sequence_parallel) for layout in layouts} == {(1, False)}
    searched = search_layouts(spec)
    said = " ".join(search_text(searched, 3))
    assert "times on a100-80g-sxm: layers" in said
    assert "layers were measured on a100-80g-sxm at tensor 1, without sequence parallelism" in said


def test_where_nothing_is_measured_the_search_says_what_to_measure() -> None:
    spec = measured_job(LAYERS, rates=False)
    with pytest.raises(Unmeasured, match="ratrain profile --layers small-llama"):
        search_layouts(spec)


def test_reductions_are_as_wide_as_the_software_makes_them() -> None:
    def reduce_bytes(width: float | None) -> float:
        base = job("gpt-3.6b", "a100-80g-dgx", 2, 8, schedule="1f1b")
        spec = cluster_preset("a100-80g-dgx")
        kind = spec.device[0]
        assert kind.kernels is not None
        kind = replace(kind, kernels=replace(kind.kernels, reduce_bytes_per_param=width))
        of_kind = replace(base, cluster=replace(base.cluster, spec=replace(spec, device=(kind,))))
        case = case_of(replace(of_kind, layout=LayoutSpec(1, 2)))
        kinds = {op.name: work for op, work in case.costs.work.items()}
        return float(kinds["GradSync"].volume_bytes.sum())

    assert reduce_bytes(4) == 2 * reduce_bytes(None)
