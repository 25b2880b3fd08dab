"""Experts on real processes: in every form of a program, in layouts that differ, with their balance
trained for, and where a router sends every token to one rank."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crew import Crew
from launched import made, start
from runs_made import Setting, Unlike, write_text
from test_family_runs import keys_of
from test_unlike_replicas import assert_held
from training import Result, train
from transformers import AutoConfig, AutoModelForCausalLM

from ratrain.report.facts.run import contents_of_run
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run.reports.report_text import report_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = (*keys_of("mixtral").items(), ("num_key_value_heads", 4))
BALANCED: dict[str, Any] = {"output_router_logits": True, "router_aux_loss_coef": 0.1}
LAYERS = 4
ALONE = Setting("1f1b", learning_rate=1e-3, model=(*MODEL, *BALANCED.items()), clip_norm=0.5)
FORMS: dict[str, dict[str, Any]] = {
    "in stages that recover": {"pipeline": 2, "recovery": "everywhere", "data": 2},
    "in split backwards": {"name": "zb-h1", "pipeline": 2},
    "sharded, level 1": {"data": 2, "sharding": 1},
    "sharded, level 2": {"data": 2, "sharding": 2, "accumulation": "sharded"},
    "sharded, level 3": {"data": 2, "sharding": 3, "accumulation": "sharded"},
    "in buckets": {
        **{"name": "ratrain", "skeleton": "1f1b", "data": 2},
        **{"accumulation": "sharded", "bucket_bytes": 16384},
    },
    "in a tensor group": {"tensor": 2},
    "in one that divides sequences": {"tensor": 2, "sequence_parallel": True},
    "in stages of unlike degrees": {"unlike": (Unlike((2, 2), 8, tensor=(1, 2)),)},
    "breadth first, gathered once": {"name": "pe-zero", "pipeline": 2, "data": 2},
    "layer by layer": {
        "name": "ratrain",
        "skeleton": "layer-major-4",
        "pipeline": 2,
        "sharding": 0,
    },
    "recovered ahead of backward": {
        **{"name": "ratrain", "pipeline": 2, "data": 2},
        **{"recovery": "everywhere", "accumulation": "sharded"},
    },
    "with stored scores, made again": {
        **{"attention": "stored", "recovery": "selective", "pipeline": 2}
    },
    "spilled": {
        **{"name": "ratrain", "skeleton": "gpipe", "pipeline": 2, "data": 2},
        **{"recovery": "spill", "activation_tier": "host"},
    },
    "joining micro-batches": {"pipeline": 2, "joined": (2, 1)},
    "in unlike replicas": {
        "unlike": (Unlike((4,), 5, tensor=(2,)), Unlike((4,), 3)),
        "masked": True,
    },
}


@pytest.fixture(scope="module")
def four() -> Generator[Crew]:
    with Crew(4) as crew:
        yield crew


def assert_alike(result: Result, alone: Result) -> None:
    """The same losses, norms and means of gradients, to rounding of fp32: Adam's steps along
    gradients of nearly nothing are not."""
    assert result.loss_values == pytest.approx(alone.loss_values, rel=1e-6)
    assert result.norms == pytest.approx(alone.norms, rel=1e-5)
    for unit, (_, theirs, _) in alone.units.items():
        ours = result.units[unit][1][: len(theirs)]
        assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs), unit


@pytest.mark.matrix
@pytest.mark.parametrize("form", FORMS)
def test_experts_learn_what_one_process_learns(form: str, four: Crew, tmp_path: Path) -> None:
    changes = FORMS[form]
    result = train(four, replace(ALONE, **changes), tmp_path / "form")
    alone = replace(ALONE, masked=bool(changes.get("masked")))
    assert_alike(result, train(four, alone, tmp_path / "alone"))
    assert_held(result)


ELSEWHERE: dict[str, dict[str, Any]] = {
    "alone": {},
    "in stages and replicas": {"pipeline": 2, "data": 2, "sharding": 2},
    "in stages of two ranks each": {"pipeline": 2, "tensor": 2, "recovery": "everywhere"},
}


@pytest.mark.parametrize("form", ELSEWHERE)
def test_experts_that_a_tensor_group_saved_go_on_in_another_layout(
    form: str, four: Crew, tmp_path: Path
) -> None:
    begun = replace(ALONE, tensor=2, data=2, sharding=1, steps=4, every=2, keep=4)
    whole = train(four, begun, tmp_path / "whole", saves=True)
    checkpoint = tmp_path / "whole" / "run" / "checkpoints" / "step-00000002"
    other = replace(ALONE, steps=4, **ELSEWHERE[form])
    went_on = train(four, other, tmp_path / "on", checkpoint=checkpoint)
    assert went_on.loss_values == pytest.approx(whole.loss_values[2:], rel=1e-6)
    assert_held(went_on)


ON_8_BITS = replace(ALONE, train=(("lora", {"rank": 4, "base": "int8"}),))


@pytest.mark.parametrize("form", ["sharded, level 3", "in a tensor group"])
def test_adapters_beside_experts_on_8_bits_learn_what_one_process_learns(
    form: str, four: Crew, tmp_path: Path
) -> None:
    result = train(four, replace(ON_8_BITS, **FORMS[form]), tmp_path / "form")
    alone = train(four, ON_8_BITS, tmp_path / "alone")
    assert result.loss_values == pytest.approx(alone.loss_values, rel=1e-6)
    assert_held(result)
    wide = replace(ON_8_BITS, train=(("lora", {"rank": 4}),))
    assert alone.loss_values == pytest.approx(
        train(four, wide, tmp_path / "wide").loss_values, rel=1e-3
    )


def test_the_balance_moves_a_router(four: Crew, tmp_path: Path) -> None:
    """Its weight in [train] is that of the loss, whatever the model's config says."""
    by_config = train(four, ALONE, tmp_path / "config")
    without = replace(ALONE, model=MODEL)
    by_job = train(four, replace(without, train=(("balance_loss", 0.1),)), tmp_path / "job")
    assert not by_job.differences(by_config)
    assert train(four, without, tmp_path / "none").differences(by_config)


def rigged(folder: Path) -> Path:
    """A model whose tokens all choose experts 0 and 1: they share a large first element, which the
    routers read, and which nothing before them changes."""
    keys = {**keys_of("mixtral"), "sliding_window": None, "intermediate_size": 256}
    config = AutoConfig.for_model(keys.pop("model_type"), **keys)
    torch.manual_seed(2)
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 5.0
        for layer in model.model.layers:
            layer.mlp.gate.weight.zero_()
            layer.mlp.gate.weight[:, 0] = torch.tensor([3.0, 2.0, -2.0, -3.0])
    model.save_pretrained(folder)
    tokens = torch.arange(40)[None]
    logits = model(tokens, output_router_logits=True).router_logits
    assert all(set(each.topk(2).indices.flatten().tolist()) == {0, 1} for each in logits)
    return folder


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_memory_is_as_proved_where_every_token_chooses_the_experts_of_one_rank(
    dtype: str, tmp_path: Path
) -> None:
    rigged(tmp_path / "theirs")
    setting = Setting(
        model_file="theirs", weights="theirs", tensor=2, dtype=dtype, steps=3, micro_batch=8,
        sequence_length=64, learning_rate=1e-5, recovery="keep-all",
    )  # fmt: skip
    run = made(tmp_path, setting)
    start(run)
    items = json.loads((run.path / "case.json").read_text())["bound_items"]
    bound = max(sum(of_rank.values()) for of_rank in items)
    for row in run.read_metrics():
        taken = [rank["allocated_peak_bytes"] for rank in row["ranks"]]
        assert max(taken) <= bound
        assert taken[0] > 1.1 * taken[1]  # who has the experts that are chosen
    load = report_of(run)["experts"]
    pairs = 2 * LAYERS * sum(row["tokens"] for row in run.read_metrics())
    assert [(rank["tokens"], rank["ratio"]) for rank in load["ranks"]] == [(pairs, 2.0), (0, 0.0)]
    for layer in load["layers"]:
        assert layer["tokens"][2:] == [0, 0] and layer["unused"] == 2
        assert layer["busiest_ratio"] == layer["longest_ratio"] == 2.0
    said = " ".join(" ".join(report_text(report_of(run))).split())
    assert "Rank 0 computed 2.00 times an even share" in said
    assert f"{100 * load['layer_flops_fraction']:.0f} % longer" in said
    (words,) = {each.words for each in [contents_of_run(run.path).experts] if each}
    assert " ".join(words) in said.replace("experts: ", "")


COUNTED: dict[str, dict[str, Any]] = {
    "in stages that recover, with validation": {
        **{"pipeline": 2, "recovery": "everywhere", "validate_every": 2},
        "data_keys": (("validation", ["held.txt"]),),
    },
    "in split backwards of replicas": {"name": "zb-h1", "pipeline": 2, "data": 2},
    "in a tensor group that divides sequences": {"tensor": 2, "sequence_parallel": True},
}


@pytest.mark.parametrize("form", COUNTED)
def test_each_layer_counts_every_token_once_for_each_expert_that_it_chose(
    form: str, tmp_path: Path
) -> None:
    """Neither what is recomputed nor validation nor calibration counts."""
    write_text(tmp_path / "held.txt", seed=1)
    run = made(tmp_path, replace(ALONE, steps=4, **COUNTED[form]), calibrate=True)
    start(run)
    load, rows = report_of(run)["experts"], run.read_metrics()
    tokens = 2 * sum(row["tokens"] for row in rows)
    assert [layer["layer"] for layer in load["layers"]] == list(range(LAYERS))
    assert [sum(layer["tokens"]) for layer in load["layers"]] == [tokens] * LAYERS
    assert sum(rank["tokens"] for rank in load["ranks"]) == LAYERS * tokens
    degree = COUNTED[form].get("tensor", 1)
    for layer in load["layers"]:
        assert 1 <= layer["longest_ratio"] <= min(degree, layer["busiest_ratio"])
    alone = made(tmp_path / "alone", replace(ALONE, steps=4))
    start(alone)
    theirs, ours = (
        np.array([layer["tokens"] for layer in each["layers"]])
        for each in (report_of(alone)["experts"], load)
    )
    assert np.abs(theirs - ours).max() <= 4  # sums in another order move a choice that is close
