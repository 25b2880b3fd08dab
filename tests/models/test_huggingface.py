"""Weights go to Transformers and back, and both compute the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny_models import BAICHUAN, GROUPED, LLAMA, MODELS, QWEN, TIED, batch_of, running
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.huggingface import check_weights, read_range, write_model
from ratrain.models.huggingface.config import CONFIG
from ratrain.models.huggingface.names import FileNames
from ratrain.models.huggingface.reader import INDEX, SINGLE
from ratrain.models.sample import next_logits
from ratrain.models.shapes import unit_layout, unit_names

THEIRS = {"llama": LLAMA, "grouped": GROUPED, "qwen": QWEN, "tied": TIED}


def their_model(spec: ModelSpec) -> Any:
    """A random model of Transformers, every parameter far from its initial value."""
    sizes: dict[str, Any] = {
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tied_embeddings,
    }
    torch.manual_seed(5)
    if spec.family == "qwen2":
        model: Any = Qwen2ForCausalLM(Qwen2Config(**sizes))
    else:
        biases: dict[str, Any] = {"attention_bias": spec.qkv_bias, "mlp_bias": spec.mlp_bias}
        model = LlamaForCausalLM(LlamaConfig(**sizes, **biases))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.2, 0.3) if parameter.dim() == 1 else parameter.normal_(0, 0.2)
    return model


def read_all(folder: Path, spec: ModelSpec) -> dict[str, torch.Tensor]:
    layouts = {name: unit_layout(spec, name) for name in unit_names(spec)}
    return {
        name: read_range(folder, spec, name, layout, 0, layout.size)
        for name, layout in layouts.items()
    }


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference, in parts of the largest value."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("name", THEIRS)
def test_a_config_of_transformers_describes_the_same_model(name: str, tmp_path: Path) -> None:
    spec = THEIRS[name]
    their_model(spec).save_pretrained(tmp_path)
    loaded = load_config(tmp_path / "config.json")
    assert replace(loaded, name=spec.name, source=spec.source) == spec


@pytest.mark.parametrize("name", THEIRS)
def test_loss_and_every_gradient_agree_with_transformers(name: str, tmp_path: Path) -> None:
    spec, model, batch = THEIRS[name], their_model(THEIRS[name]), batch_of(THEIRS[name])
    model.save_pretrained(tmp_path)
    ours = running(spec, read_all(tmp_path, spec))
    logits = model(batch.tokens).logits
    theirs = functional.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), reduction="sum"
    )
    theirs.backward()
    loss = ours.loss(batch)
    loss.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    last = next_logits(spec, ours.weights, batch.tokens, spec.max_positions)
    assert relative(last, logits[:, -1].detach()) < 2e-6
    for unit in unit_names(spec):
        for parameter in ours.units[unit].layout.parameters:
            tensor = FileNames(spec).place_of(unit, parameter.name, parameter.shape).tensor
            wanted = model.get_parameter(tensor).grad
            gradient = ours.gradient(unit, parameter.name)
            if spec.tied_embeddings and len(parameter.shape) == 2 and unit in "eh":
                head = ours.gradient("h", "head.logits")
                gradient = head + ours.gradient("e", "embedding.tokens")
            assert relative(gradient, wanted) < 5e-6, (unit, parameter.name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_agree_with_transformers_as_far_as_they_reach(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model, batch = their_model(GROUPED), batch_of(GROUPED)
    exact = model(batch.tokens).logits[:, -1].detach()
    model.to(dtype).save_pretrained(tmp_path)
    theirs = model(batch.tokens).logits[:, -1].detach()
    ours = running(GROUPED, read_all(tmp_path, GROUPED), dtype=dtype)
    logits = next_logits(GROUPED, ours.weights, batch.tokens, GROUPED.max_positions)
    assert logits.dtype == dtype
    assert relative(logits, exact) < max(2 * relative(theirs, exact), 0.01)


@pytest.mark.parametrize("name", THEIRS)
def test_transformers_loads_what_is_written(name: str, tmp_path: Path) -> None:
    spec, batch = THEIRS[name], batch_of(THEIRS[name])
    ours = running(spec)
    write_model(tmp_path, spec, torch.float32, ours.views.__getitem__, max_shard_bytes=20_000)
    assert len(list(tmp_path.glob("model-0*.safetensors"))) > 2
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32
    )
    model, report = loaded
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert model.config.rope_parameters["rope_theta"] == spec.rope_theta
    logits = next_logits(spec, ours.weights, batch.tokens, spec.max_positions)
    assert relative(logits, model(batch.tokens).logits[:, -1].detach()) < 2e-6


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shard_bytes", [1, 20_000, 10**9])
def test_what_is_written_reads_back_bit_by_bit(name: str, shard_bytes: int, tmp_path: Path) -> None:
    spec = MODELS[name]
    ours = running(spec)
    write_model(tmp_path, spec, torch.float32, ours.views.__getitem__, shard_bytes)
    (tmp_path / "any-file").touch()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1  # as the umask says
    for unit, flat in read_all(tmp_path, spec).items():
        for parameter in ours.units[unit].layout.parameters:
            part = slice(parameter.offset, parameter.end)
            assert torch.equal(flat[part], ours.views[unit][part]), (unit, parameter.name)


def test_any_range_is_the_part_of_the_whole_and_padding_is_zero(tmp_path: Path) -> None:
    ours = running(BAICHUAN)
    write_model(tmp_path, BAICHUAN, torch.float32, ours.views.__getitem__)
    layout = unit_layout(BAICHUAN, "1")
    whole = read_range(tmp_path, BAICHUAN, "1", layout, 0, layout.size + 64)
    assert not whole[layout.size :].any()
    for begin, end in [(0, 7), (5, 2311), (2304, 2305), (layout.size - 3, layout.size + 64)]:
        part = read_range(tmp_path, BAICHUAN, "1", layout, begin, end)
        assert torch.equal(part, whole[begin:end])


def test_a_model_in_one_file_has_no_index_and_names_its_format(tmp_path: Path) -> None:
    write_model(tmp_path, LLAMA, torch.bfloat16, running(LLAMA).views.__getitem__)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


def test_units_are_asked_for_once_each_in_order(tmp_path: Path) -> None:
    views, asked = running(LLAMA).views, list[str]()
    write_model(tmp_path, LLAMA, torch.float32, lambda name: asked.append(name) or views[name])
    assert asked == list(unit_names(LLAMA))


def test_a_tied_model_whose_head_differs_is_refused(tmp_path: Path) -> None:
    views = running(TIED).views
    views["h"][5] += 1
    with pytest.raises(SpecError, match="differs from the embedding"):
        write_model(tmp_path, TIED, torch.float32, views.__getitem__)
    assert not (tmp_path / "config.json").exists()


def test_weights_are_not_written_over_others(tmp_path: Path) -> None:
    write_model(tmp_path, LLAMA, torch.float32, running(LLAMA).views.__getitem__)
    with pytest.raises(SpecError, match="weights already"):
        write_model(tmp_path, LLAMA, torch.float32, running(LLAMA).views.__getitem__)


def test_a_model_that_no_family_describes_is_refused(tmp_path: Path) -> None:
    odd = replace(BAICHUAN, kv_heads=2)
    with pytest.raises(SpecError, match="combination"):
        write_model(tmp_path, odd, torch.float32, running(odd).views.__getitem__)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensor(folder: Path, name: str, value: torch.Tensor | None) -> None:
    """Replaces a tensor of the file, or takes it out."""
    tensors = {**safetensors.torch.load_file(folder / SINGLE), name: value}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    safetensors.torch.save_file(kept, folder / SINGLE)


def cut(folder: Path) -> None:
    path = folder / SINGLE
    path.write_bytes(path.read_bytes()[:5000])


Q_BIAS = "model.layers.1.self_attn.q_proj.bias"
UP = "model.layers.1.mlp.up_proj.weight"
UP_BIAS = "model.layers.1.mlp.up_proj.bias"
ONE_TENSOR = '{"weight_map": {"model.norm.weight": "model-9.safetensors"}}'
ABSENT_FILE = json.dumps({"weight_map": {"model.embed_tokens.weight": "model-9.safetensors"}})
OUTSIDE = json.dumps({"weight_map": {"model.embed_tokens.weight": "../model.safetensors"}})
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / SINGLE).unlink(), SINGLE),
    "no config": (lambda folder: (folder / CONFIG).unlink(), "cannot be read"),
    "config is a list": (lambda folder: (folder / CONFIG).write_text("[]"), "JSON object"),
    "cut short": (cut, "its tensors take|header"),
    "not weights": (lambda folder: (folder / SINGLE).write_bytes(b"none"), "not a safetensors"),
    "a tensor less": (lambda folder: edit_tensor(folder, Q_BIAS, None), Q_BIAS),
    "wrong shape": (lambda folder: edit_tensor(folder, UP, torch.zeros(3, 4)), r"\(3, 4\)"),
    "whole numbers": (lambda folder: edit_tensor(folder, UP, torch.ones(48, 32).char()), "I8"),
    "a bias more": (lambda folder: edit_tensor(folder, UP_BIAS, torch.ones(48)), "no such bias"),
    "other sizes": (lambda folder: edit_config(folder, hidden_size=36), "hidden"),
    "scaled": (lambda folder: edit_config(folder, rope_scaling={"rope_type": "yarn"}), "yarn"),
    "rotated in part": (
        lambda folder: edit_config(folder, partial_rotary_factor=0.5),
        "rotary_share is 0.5",
    ),
    "scaling is no table": (lambda folder: edit_config(folder, rope_scaling=[1]), "rope"),
    "window": (
        lambda folder: edit_config(
            folder, use_sliding_window=True, sliding_window=8, max_window_layers=0
        ),
        "window is 8 here",
    ),
    "window is not a number": (
        lambda folder: edit_config(folder, use_sliding_window=True, sliding_window="8"),
        "is not a whole number",
    ),
    "index is no JSON": (lambda folder: (folder / INDEX).write_text("{"), "not valid JSON"),
    "index is a list": (lambda folder: (folder / INDEX).write_text("[]"), "JSON object"),
    "index of one": (lambda folder: (folder / INDEX).write_text(ONE_TENSOR), "is missing"),
    "file of index": (lambda folder: (folder / INDEX).write_text(ABSENT_FILE), "cannot be read"),
    "index leaves the folder": (lambda folder: (folder / INDEX).write_text(OUTSIDE), "outside"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_one_error_that_names_the_place(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, QWEN, torch.float32, running(QWEN).views.__getitem__)
    damage, message = DAMAGE[name]
    damage(tmp_path)
    with pytest.raises(SpecError, match=message) as caught:
        read_all(tmp_path, QWEN)
    assert str(tmp_path) in caught.value.place
    with pytest.raises(SpecError, match=message):
        check_weights(tmp_path, QWEN)


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_folder_passes_the_check_that_comes_before_a_run(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, MODELS[name], torch.float32, running(MODELS[name]).views.__getitem__)
    check_weights(tmp_path, MODELS[name])


def test_a_folder_of_another_model_is_named_before_anything_is_read(tmp_path: Path) -> None:
    write_model(tmp_path, QWEN, torch.float32, running(QWEN).views.__getitem__)
    with pytest.raises(SpecError, match="layers is 2 here and 3"):
        read_all(tmp_path, replace(QWEN, layers=3))


MEASURE = """
import resource, sys, torch
from ratrain.describe.huggingface import load_config
from ratrain.models.huggingface import read_range
from ratrain.models.shapes import unit_layout
def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
spec = load_config(sys.argv[1] + "/config.json")
layout = unit_layout(spec, "1")
read_range(sys.argv[1], spec, "h", unit_layout(spec, "h"), 0, 64)
before = peak_bytes()
for part in range(4):
    size = layout.size // 4
    read_range(sys.argv[1], spec, "1", layout, part * size, (part + 1) * size)
print(peak_bytes() - before, layout.size * 4)
"""


@pytest.mark.slow
def test_reading_a_part_of_a_unit_does_not_take_the_memory_of_the_model(tmp_path: Path) -> None:
    """A file of 85 MB, of which each read wants 7 MB: it takes less than three times that."""
    spec = replace(LLAMA, layers=3, hidden=768, heads=12, kv_heads=12, head_dim=64, ffn=2048)
    model = running(spec)
    write_model(tmp_path, spec, torch.float32, model.views.__getitem__)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    grown, unit_bytes = map(int, done.stdout.split())
    assert grown < 3 * unit_bytes / 4
