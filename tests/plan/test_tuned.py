"""A job that trains a part of its model: what is billed, proved and simulated of it."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ratrain.cost.blocks import blocks
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.presets import model_preset
from ratrain.describe.train import TrainSpec
from ratrain.describe.trained import check_tuning
from ratrain.describe.tuning import LoraSpec, Tuning
from ratrain.errors import ProgramError, RatrainError, SpecError
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plan.case.case import case_of, case_of_plan
from ratrain.plan.file.form import load_plan, write_plan
from ratrain.plan.layout.enumerate import group_of_layout
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.price.bill import bill_of
from ratrain.plan.search.layouts import search_layouts
from ratrain.program.actions import NONE, Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.replicas import Replica, Unit, stage
from ratrain.program.setup import Setup
from ratrain.program.text import read_text, write_text
from ratrain.program.units import RECOVERY_CODE
from ratrain.readers.place import Place
from ratrain.simulate.simulate import simulate

EXAMPLE = Path(__file__).parents[2] / "examples/quickstart.toml"
TUNINGS = [
    TrainSpec(freeze=("embed_tokens", "layers.[01]")),
    TrainSpec(freeze=("self_attn",)),
    TrainSpec(freeze=("lm_head",)),
    TrainSpec(train_only=("*norm",)),
    TrainSpec(train_only=("lm_head",)),
    TrainSpec(lora=LoraSpec(rank=4)),
    TrainSpec(lora=LoraSpec(rank=4, base="int8")),
    TrainSpec(lora=LoraSpec(rank=8, targets=("q_proj", "layers.3"))),
]
LAYOUTS = [LayoutSpec(1), LayoutSpec(2, 2), LayoutSpec(1, 4), LayoutSpec(2, 1, 2), LayoutSpec(4)]


def tuned(train: TrainSpec, layout: LayoutSpec | None, **schedule: object) -> JobSpec:
    job = load_job(EXAMPLE)
    (device,) = job.cluster.spec.device
    rates = tuple(replace(device.rates[0], dtype=dtype) for dtype in ("fp32", "bf16", "fp16"))
    spec = replace(job.cluster.spec, device=(replace(device, rates=rates),))
    cluster = replace(job.cluster, spec=spec, devices=layout.devices if layout else 4)
    asked = replace(job.schedule, memory_budget_bytes=None, **schedule)
    return replace(job, train=train, layout=layout, cluster=cluster, schedule=asked)


quick = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


@pytest.mark.slow
@quick
@given(
    st.sampled_from(TUNINGS),
    st.sampled_from(LAYOUTS),
    st.sampled_from(["ratrain", "1f1b", "gpipe", "zb-h1", "zero3-heavy", "pe-zero"]),
    st.sampled_from([None, 0, 1, 2, 3]),
    st.sampled_from(["auto", "local", "sharded"]),
    st.sampled_from(["fp32", "bf16", "fp16"]),
    st.booleans(),
)
def test_what_is_frozen_has_no_gradient_no_optimizer_and_no_reduction(
    train: TrainSpec,
    layout: LayoutSpec,
    name: str,
    sharding: int | None,
    accumulation: str,
    dtype: str,
    clips: bool,
) -> None:
    train = replace(train, clip_norm=1.0 if clips else None)
    job = tuned(
        train,
        layout,
        name=name,
        sharding=sharding,
        gradient_accumulation=accumulation,
        dtype=dtype,
    )
    try:
        case = case_of(job)
    except RatrainError:
        assume(False)
        raise
    assert case.proved.verdict.sound
    assert read_text(write_text(case.program)) == case.program
    frozen = {
        name for name in unit_names(job.model.spec) if not unit_layout(job.model.spec, name).size
    }
    setup = case.program.setup
    assert setup.frozen == frozen
    changing = ("GradSync", "UpdateShard", "PrefetchW", "TieSync")
    for rank in range(setup.ranks):
        held = dict(case.program.held_by(rank))
        for lane in Lane:
            for action in case.program.lane(rank, lane):
                if action.kind.name in changing:
                    assert held[action.stage].units[action.unit].name not in frozen
    sharded = case.choices.accumulation.value == "sharded"
    group = group_of_layout(job, case.strategy, case.plan.placement, sharded_gradients=sharded)
    recovery = np.array([[RECOVERY_CODE[s.only.recovery] for s in setup.replicas[0].stages]])
    billed = bill_of(group, recovery).total[0]
    for bound in case.proved.verdict.bounds if not setup.gathers_per_pass else ():
        assert bound.total_bytes <= billed[bound.rank % layout.pipeline]
    seen = simulate(case.program, case.costs, verdict=case.proved.verdict)
    assert seen.step_time_s > 0


@pytest.mark.parametrize("train", TUNINGS)
def test_formulas_count_what_is_allocated(train: TrainSpec) -> None:
    spec = tuned(train, LayoutSpec(1)).model.spec
    for block, name in zip(blocks(spec), unit_names(spec), strict=True):
        layout = unit_layout(spec, name)
        trained = sum(prod(each.shape) for each in layout.parameters)
        every = sum(prod(each.shape) for each in layout.every)
        assert trained == sum(tensor.elements for tensor in block.trained)
        assert every == block.params
        assert layout.size % 64 == 0


@pytest.mark.parametrize("train", TUNINGS)
def test_training_less_takes_less_time_and_memory(train: TrainSpec) -> None:
    def step_s_and_bytes(train: TrainSpec) -> tuple[float, int]:
        case = case_of(tuned(train, LayoutSpec(2, 2)))
        seen = simulate(case.program, case.costs, verdict=case.proved.verdict)
        return seen.step_time_s, max(bound.total_bytes for bound in case.proved.verdict.bounds)

    (part_s, part_bytes), (whole_s, whole_bytes) = map(step_s_and_bytes, (train, TrainSpec()))
    assert part_s < whole_s
    assert part_bytes < whole_bytes


def test_a_frozen_layer_s_backward_makes_no_weight_gradient() -> None:
    case = case_of(tuned(TUNINGS[0], LayoutSpec(1), name="zb-h1"))
    names = [unit.name for unit in case.program.setup.members[0].units]
    later_s, input_s = (case.costs.work[kind].fixed_s for kind in (Kind.W, Kind.I))
    assert later_s[names.index("0")] < later_s[names.index("2")] / 4
    assert input_s[names.index("0")] == input_s[names.index("2")]


@pytest.mark.parametrize("train", TUNINGS)
def test_a_plan_file_says_what_is_trained(train: TrainSpec, tmp_path: Path) -> None:
    best = search_layouts(tuned(train, None)).best
    path = tmp_path / "plan.json"
    path.write_text(write_plan(best.file()))
    read = case_of_plan(load_plan(path), str(path))
    assert read.job.train.tuning == train.tuning
    assert read.job.model.spec == best.plan.job.model.spec


@pytest.mark.parametrize(
    ("tuning", "words", "fix"),
    [
        (Tuning(freeze=("embd_tokens",)), 'named by "embd_tokens"', "embed_tokens"),
        (Tuning(freeze=("*",)), "nothing is left", "freeze less"),
        (Tuning(train_only=("layers.9",)), 'named by "layers.9"', "valid:"),
        (Tuning(freeze=("lm_head",), lora=LoraSpec()), "both say", "keep one"),
        (Tuning(lora=LoraSpec(targets=("q_prj",))), 'named by "q_prj"', '"q_proj"'),
        (Tuning(lora=LoraSpec(targets=("embed_tokens",))), "no matrix of a layer", "valid:"),
    ],
)
def test_patterns_that_name_nothing_or_too_much_are_refused(
    tuning: Tuning, words: str, fix: str
) -> None:
    spec = replace(model_preset("tiny-llama"), tuning=tuning)
    with pytest.raises(SpecError, match=words) as refused:
        check_tuning(spec, Place("job.toml").at("train"))
    assert fix in refused.value.fix
    assert refused.value.place.startswith("job.toml [train")


@pytest.mark.parametrize("kind", [Kind.GradSync, Kind.UpdateShard, Kind.PrefetchW])
def test_a_program_that_updates_what_is_frozen_is_refused(kind: Kind) -> None:
    case = case_of(tuned(TUNINGS[0], LayoutSpec(1, 2), name="ratrain", sharding=1))
    action = Action(kind, 0, 0, NONE)  # of the embedding

    changed = case.program.edit("broken", kind.lane, by=lambda *args: [*args[2], action])
    with pytest.raises(ProgramError, match="about a unit that is frozen"):
        _ = changed.table


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ((Unit("a", 4, 4, frozen=True), Unit("b", 4, 4, 4)), "frozen, and has a gradient"),
        ((Unit("a", 4, frozen=True), Unit("b", 4, frozen=True)), "every unit is frozen"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(
    units: tuple[Unit, ...], words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        Setup((Replica((stage(0, units),), 2),))
