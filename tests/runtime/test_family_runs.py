"""Every family trains: in pipelines, with recovery, replicas and tensor groups, and from a Hugging
Face folder to another."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew
from launched import assert_same_end, cut_short, loss_bits, made, start
from runs_made import VOCAB, Setting
from their_models import NO_TOKENS, THEIRS, read_all
from training import Result, train
from transformers import AutoConfig, AutoModelForCausalLM

from ratrain.describe.huggingface import load_config, model_from_config
from ratrain.runtime.run.export import export_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


PER_LAYER = ("layer_types", "no_rope_layers", "attention_layers")


def keys_of(name: str) -> dict[str, Any]:
    """A model's config, for runs of tests: four layers, and their words."""
    counts = dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 4)
    own = THEIRS[name].keys
    layers = {key: [*own[key], own[key][0]] for key in PER_LAYER if key in own}
    if "attention_layers" in layers:  # Transformers reads them out of this alone
        layers["attention_types"] = [[layers["attention_layers"], 1]]
    return {"model_type": THEIRS[name].family, **own, **layers, **counts, "vocab_size": VOCAB}


@pytest.mark.matrix
@pytest.mark.parametrize("name", THEIRS)
def test_a_family_learns_the_same_in_every_layout(name: str, crew: Crew, tmp_path: Path) -> None:
    """A pipeline that recovers everything gives the very bits of one rank that keeps everything;
    replicas and tensor groups add in another order."""
    setting = Setting(model=tuple(keys_of(name).items()), recovery="keep-all")
    recovering = replace(setting, recovery="everywhere", pipeline=2)

    def run(setting: Setting, folder: str) -> Result:
        result = train(crew, setting, tmp_path / folder)
        assert all(p <= b for p, b in zip(result.ledger_peaks, result.bounds, strict=True))
        return result

    alone = run(setting, "alone")
    assert not run(recovering, "pipeline").differences(alone)
    others = [replace(recovering, data=2)]
    if THEIRS[name].divides:
        others.append(replace(recovering, tensor=2, sequence_parallel=name in ("gemma3", "gpt2")))
    for number, other in enumerate(others):
        assert run(other, str(number)).loss_values == pytest.approx(alone.loss_values, rel=2e-5)


@pytest.mark.matrix
@pytest.mark.parametrize("name", THEIRS)
def test_a_family_learns_the_same_whatever_else_its_job_says(
    name: str, crew: Crew, tmp_path: Path
) -> None:
    """Layout, sharding, buckets, recovery and where states wait, drawn by the family's name."""
    dice, keys = random.Random(name), tuple(keys_of(name).items())
    plain = Setting(model=keys, recovery="keep-all", clip_norm=0.5, micro_batch=2)
    divides = THEIRS[name].divides and dice.random() < 0.5
    drawn = replace(
        plain,
        pipeline=1 if divides else dice.choice((1, 2)),
        data=2,
        tensor=2 if divides else 1,
        sequence_parallel=divides and dice.random() < 0.5,
        sharding=dice.choice((None, 1, 2, 3)),
        recovery=dice.choice(("everywhere", "exempt-last", "auto")),
        optimizer_tier=dice.choice((None, "disk")),
    )
    if not model_from_config(dict(keys)).tied_embeddings and dice.random() < 0.5:
        drawn = replace(drawn, accumulation="sharded", bucket_bytes=4000)
    wanted = train(crew, plain, tmp_path / "plain").loss_values
    result = train(crew, drawn, tmp_path / "drawn")
    assert all(p <= b for p, b in zip(result.ledger_peaks, result.bounds, strict=True))
    assert result.loss_values == pytest.approx(wanted, rel=2e-5), drawn


def their_folder(name: str, folder: Path) -> Path:
    """A folder as transformers writes it."""
    keys = keys_of(name)
    config = AutoConfig.for_model(keys.pop("model_type"), **keys, **NO_TOKENS)
    torch.manual_seed(2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.matrix
@pytest.mark.parametrize("name", THEIRS)
def test_a_folder_is_trained_resumed_and_written_as_transformers_loads_it(
    name: str, tmp_path: Path
) -> None:
    theirs = their_folder(name, tmp_path / "theirs")
    setting = Setting(
        model_file="theirs", weights="theirs", pipeline=2, data=2, recovery="everywhere", every=2
    )
    run = made(tmp_path, replace(setting, steps=4))
    start(run)
    items = json.loads((run.path / "case.json").read_text())["bound_items"]
    bound = max(sum(of_rank.values()) for of_rank in items)
    for row in run.read_metrics():
        assert all(rank["allocated_peak_bytes"] <= bound for rank in row["ranks"])
    part = cut_short(
        run,
        tmp_path / "part",
        replace(setting, steps=4, model_file="../theirs", weights="../theirs"),
        2,
    )
    start(part)
    assert loss_bits(part) == loss_bits(run)
    assert_same_end(part, run)
    out = tmp_path / "out"
    export_run(run.path, out)
    described, before = (load_config(folder / "config.json") for folder in (out, theirs))
    assert replace(described, name="", source="") == replace(before, name="", source="")
    both: Any = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    loaded, report = both
    assert not report["missing_keys"] and not report["unexpected_keys"]
    loaded.save_pretrained(tmp_path / "once more")
    flats = (read_all(folder, described) for folder in (out, tmp_path / "once more"))
    assert all(torch.equal(*pair) for pair in zip(*(f.values() for f in flats), strict=True))
