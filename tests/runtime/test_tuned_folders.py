"""A Hugging Face folder is tuned: adapters as plain torch trains them, resumed, and written merged
and as PEFT does; conversations are learned, and what was learned is evaluated."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from launched import cut_short, loss_bits, made, start
from runs_made import Setting, write_job
from test_export import their_folder
from torch.nn import functional
from transformers import AutoModelForCausalLM

from ratrain.cost.blocks import blocks
from ratrain.describe.train import DataSpec
from ratrain.errors import RunFailed, SpecError
from ratrain.models.huggingface.peft import WEIGHTS
from ratrain.runtime.run.evaluate import data_of_run, evaluated
from ratrain.runtime.run.export import export_adapters, export_run
from ratrain.runtime.run.prepare import RunRequest
from ratrain.runtime.run.resume import resume_run
from ratrain.runtime.run.trained import trained_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SETTING = Setting(
    model_file="theirs",
    weights="theirs",
    steps=4,
    every=2,
    pipeline=2,
    data=2,
    train=(("lora", {"rank": 4}),),
)
WIDE = Setting(
    model=(("hidden_size", 256), ("intermediate_size", 1024), ("num_hidden_layers", 4)),
    steps=3,
    data=2,
)


@pytest.mark.parametrize("sharding", [0, 3])
def test_a_base_of_8_bits_takes_less_memory_and_no_more_than_is_proved(
    sharding: int, tmp_path: Path
) -> None:
    setting = replace(WIDE, sharding=sharding)
    peaks, bounds = dict[str, int](), dict[str, int]()
    for base in ("fp32", "int8"):
        lora = {"rank": 4, **({"base": base} if base == "int8" else {})}
        run = made(tmp_path / base, replace(setting, train=(("lora", lora),)))
        start(run)
        items = json.loads((run.path / "case.json").read_text())["bound_items"]
        bounds[base] = max(sum(of_rank.values()) for of_rank in items)
        ranks = [rank for row in run.read_metrics() for rank in row["ranks"]]
        peaks[base] = max(int(rank["allocated_peak_bytes"]) for rank in ranks)
        assert peaks[base] <= bounds[base]
    spec = trained_model(tmp_path / "int8" / "run").spec
    matrices = [t for block in blocks(spec) if block.kind == "layer" for t in block.tensors]
    elements = sum(t.elements for t in matrices if len(t.shape) > 1)
    saved = 2.9 * elements / (2 if sharding else 1)  # of 4 bytes 1 1/16 are left
    assert peaks["fp32"] - peaks["int8"] > saved - 4 * max(t.elements for t in matrices)
    assert bounds["int8"] < bounds["fp32"] - 0.7 * saved


def test_adapters_are_trained_resumed_and_written_merged_and_apart(tmp_path: Path) -> None:
    their_folder(tmp_path / "theirs", torch.float32)
    run = made(tmp_path, SETTING)
    start(run)
    again = replace(SETTING, model_file="../theirs", weights="../theirs")
    part = cut_short(run, tmp_path / "part", again, 2)
    start(part)
    assert loss_bits(part) == loss_bits(run)
    exported = export_run(run.path, tmp_path / "out", "fp32")
    apart = export_adapters(run.path, tmp_path / "adapters")
    assert apart.size_bytes < exported.size_bytes / 4
    tensors: dict[str, Any] = safetensors.torch.load_file(tmp_path / "adapters" / WEIGHTS)
    assert max(float(t.abs().max()) for name, t in tensors.items() if "lora_B" in name) > 0
    before, after = (
        dict(AutoModelForCausalLM.from_pretrained(tmp_path / folder).named_parameters())
        for folder in ("theirs", "out")
    )
    for name, value in after.items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        change = torch.zeros_like(value)
        if f"{key}.lora_A.weight" in tensors:
            change = 4 * tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"]
        assert torch.allclose(value, before[name] + change, atol=1e-6)
    with pytest.raises(SpecError, match="holds adapters already"):
        export_adapters(run.path, tmp_path / "adapters")
    plain = made(tmp_path / "plain", Setting(steps=1))
    start(plain)
    with pytest.raises(SpecError, match="has no adapters"):
        export_adapters(plain.path, tmp_path / "none")
    assert functional.mse_loss(after["lm_head.weight"], before["lm_head.weight"]) == 0


def test_what_was_trained_is_put_onto_no_other_weights(tmp_path: Path) -> None:
    """A folder whose weights were replaced by others of the same form, and another seed."""
    their_folder(tmp_path / "theirs", torch.float32)
    run = made(tmp_path, replace(SETTING, pipeline=1, data=1))
    start(run)
    path = tmp_path / "theirs" / "model.safetensors"
    tensors: dict[str, Any] = safetensors.torch.load_file(path)
    changed = {name: value + 0.01 for name, value in tensors.items()}
    safetensors.torch.save_file(changed, path, metadata={"format": "pt"})
    again = replace(SETTING, pipeline=1, data=1, steps=6)
    elsewhere = replace(again, model_file="../theirs", weights="../theirs")
    part = cut_short(run, tmp_path / "part", elsewhere, 4)
    with pytest.raises(SpecError, match="not the ones that it was trained with"):
        trained_model(run.path)
    with pytest.raises(RunFailed, match="not the ones that it was trained with"):
        start(part)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    start(part)
    other = write_job(tmp_path, replace(again, files=("text.txt",), train=(("lora", {"rank": 8}),)))
    with pytest.raises(SpecError, match=r"began with lora = .* cannot change"):
        resume_run(RunRequest(other, threads=1, calibrate=False), run)


def test_conversations_are_learned_and_evaluated(tmp_path: Path) -> None:
    """The loss of answers falls; the verb's loss is that of training's validation, of the run and
    of what it exports: of adapters on 8 bits, the base as it was then."""
    their_folder(tmp_path / "theirs", torch.float32)
    chats = [
        [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three four"}],
        [{"role": "user", "content": "four"}, {"role": "assistant", "content": "two"}],
    ]
    for name, count in (("chat.jsonl", 400), ("held.jsonl", 30)):
        lines = [json.dumps({"messages": chats[n % 2]}) for n in range(count)]
        (tmp_path / name).write_text("\n".join(lines))
    setting = replace(
        SETTING,
        steps=12,
        every=0,
        validate_every=6,
        files=("chat.jsonl",),
        tokenizer="theirs",
        data_keys=(("messages_key", "messages"), ("validation", ["held.jsonl"])),
        train=(("lora", {"rank": 4, "base": "int8"}),),
    )
    run = made(tmp_path, setting)
    start(run)
    rows = list(run.read_metrics())
    losses = [row["loss"] for row in rows if "loss" in row]
    validated = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert losses[-1] < losses[0] - 0.1
    export_run(run.path, tmp_path / "out", "fp32")
    for path in (run.path, tmp_path / "out"):
        model = trained_model(path)
        data = DataSpec((str(tmp_path / "held.jsonl"),), model.tokenizer, messages_key="messages")
        (result,) = evaluated(model, data, model.base, ["held"], setting.sequence_length)
        assert result.loss == pytest.approx(validated[-1], rel=1e-5)
        assert result.perplexity == pytest.approx(exp(result.loss))
        (tmp_path / "plain.txt").write_text("the kettle boils " * 40)
        plain = DataSpec((str(tmp_path / "plain.txt"),), model.tokenizer)
        short, long = (
            evaluated(model, plain, model.base, ["plain"], length)[0] for length in (7, 13)
        )
        assert short.tokens + short.left_out == long.tokens + long.left_out
        assert 0 <= short.left_out < 7 and 0 <= long.left_out < 13
    job_data = data_of_run(run.path)
    assert job_data is not None
    assert job_data.validation == ("held.jsonl",)
