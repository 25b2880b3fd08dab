"""What travels in bf16 is priced so, on every backend; nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_jobs import job

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.case.case import case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.enumerate import group_of_layout
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.price.estimate import estimate
from ratrain.plan.search.layouts import search_layouts
from ratrain.program.kind import Kind
from ratrain.program.text import write_text
from ratrain.report.facts.job import contents_of_job
from ratrain.report.facts.words import case_facts
from ratrain.report.page import page
from ratrain.simulate.simulate import simulate

QUICKSTART = Path(__file__).parents[2] / "examples/quickstart.toml"


def wired(spec: JobSpec, **wires: str) -> JobSpec:
    return replace(spec, schedule=replace(spec.schedule, **wires))


def described(backend: str, *, tied: bool = False) -> JobSpec:
    """An fp32 job of two stages and two replicas on a cluster of CPUs."""
    spec = job("small-llama", "cpu-lab", 4, 16, backend=backend)
    spec = replace(spec, layout=LayoutSpec(pipeline=2, data=2))
    model = replace(spec.model, spec=replace(spec.model.spec, tied_embeddings=tied))
    return wired(replace(spec, model=model), dtype="fp32", recovery="keep-all")


@pytest.mark.parametrize("backend", ["torch", "described"])
def test_a_narrow_wire_halves_the_bytes_of_its_own_tensors_alone(backend: str) -> None:
    fp32 = described(backend, tied=backend == "torch")
    volumes = {
        name: {kind: work.volume_bytes for kind, work in case_of(spec).costs.work.items()}
        for name, spec in {
            "fp32": fp32,
            "gradients": wired(fp32, gradient_wire="bf16"),
            "boundaries": wired(fp32, boundary_wire="bf16"),
        }.items()
    }
    narrow = {
        "gradients": {Kind.GradSync, Kind.TieSync},
        "boundaries": {Kind.SEND_F, Kind.SEND_B},
    }
    for name, kinds in narrow.items():
        for kind, bytes_in_fp32 in volumes["fp32"].items():
            expected = bytes_in_fp32 / 2 if kind in kinds else bytes_in_fp32
            assert np.array_equal(volumes[name][kind], expected), (name, kind)
    sent = [kind for kind in (Kind.GradSync, Kind.SEND_F) if volumes["fp32"][kind].any()]
    assert sent == [Kind.GradSync, Kind.SEND_F]


@pytest.mark.parametrize("wire", ["gradient_wire", "boundary_wire"])
def test_estimate_and_simulation_agree_on_what_a_narrow_wire_saves(wire: str) -> None:
    saved: list[tuple[float, float]] = []
    for spec in (described("described"), wired(described("described"), **{wire: "bf16"})):
        case = case_of(spec)
        group = group_of_layout(spec, case.strategy, case.plan.placement, sharded_gradients=False)
        closed = estimate(group, np.zeros((1, 2), dtype=np.int64)).step_s[0]
        saved.append((float(closed), simulate(case.program, case.costs).step_time_s))
    assert saved[1][0] < saved[0][0] and saved[1][1] < saved[0][1]
    assert saved[1][0] / saved[0][0] == pytest.approx(saved[1][1] / saved[0][1], rel=0.03)


def test_a_described_program_is_the_same_whatever_is_sent() -> None:
    fp32 = described("described")
    narrow = wired(fp32, gradient_wire="bf16", boundary_wire="bf16")
    assert write_text(case_of(narrow).program) == write_text(case_of(fp32).program)


def test_a_plan_file_keeps_wire_types_and_leaves_out_those_that_were_not_asked_for() -> None:
    spec = load_job(QUICKSTART)
    assert "_wire" not in write_plan(file_of_plan(search_layouts(spec).best.plan))
    asked = wired(spec, gradient_wire="bf16")
    written = write_plan(file_of_plan(search_layouts(asked).best.plan))
    assert '"gradient_wire": "bf16"' in written and "boundary_wire" not in written
    again = plan_of_file(parse_plan(written, "a.json"), "a.json").job.schedule
    assert again.gradients_travel_in == "bf16" and again.boundaries_travel_in == "fp32"


def test_headline_and_json_name_what_travels() -> None:
    case = case_of(load_job(QUICKSTART, ["schedule.boundary_wire=bf16"]))
    assert "boundary tensors travel in bf16" in case.headline()
    assert case.facts()["boundary_wire"] == "bf16" and case.facts()["gradient_wire"] == "fp32"
    assert not any("travel" in line for line in case_of(load_job(QUICKSTART)).headline())


@pytest.mark.slow
def test_a_page_names_what_travels() -> None:
    asked = ["schedule.gradient_wire=bf16"]
    assert "gradients travel in bf16" in page(contents_of_job(QUICKSTART, overrides=asked))
    assert "travel in" not in page(contents_of_job(QUICKSTART))


@pytest.mark.parametrize("missing", ["boundary_wire", "gradient_wire", "dtype"])
def test_a_runs_facts_without_its_wires_are_shown_without_them(missing: str) -> None:
    facts = case_of(load_job(QUICKSTART)).facts()
    earlier = {key: value for key, value in facts.items() if key != missing}
    assert "Network" not in dict(case_facts(facts))
    assert missing == "dtype" or "Network" not in dict(case_facts(earlier))
    assert len(case_facts(earlier)) >= len(case_facts(facts))
