"""Every family that the registry knows computes what Transformers computes, keeps and counts what
the formulas say, and goes to files and back."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_division import assert_near, group_step, part_of
from test_units import kept_bytes
from their_models import SIZES, THEIRS, read_all, relative, written
from thread_group import in_group
from tiny_models import Running, batch_of, running
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from ratrain.cost.activations import layer_activation_bytes
from ratrain.cost.blocks import total_params
from ratrain.describe.huggingface import FAMILIES, config_of, load_config, model_from_config
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.division import Division, check_divides
from ratrain.models.huggingface import check_weights, write_model
from ratrain.models.micro_batch import MicroBatch
from ratrain.models.sample import Reader, next_logits
from ratrain.models.shapes import unit_layout
from ratrain.models.trainable import trains

LENGTH = 40  # of sequences: longer than windows, and than what longrope was first trained on


def test_every_family_has_a_model_here() -> None:
    """Transformers has no class for Baichuan2; test_units reads its paper."""
    assert {their.family for their in THEIRS.values()} == set(FAMILIES) - {"baichuan"}


def test_the_manual_lists_every_family_and_counts_them() -> None:
    docs = Path(__file__).parents[2] / "docs" / "explanation"
    table = (docs / "models.md").read_text().split("\n\n")[2]
    listed = ", ".join(re.findall(r"^\| (\w+(?:, \w+)*) \|", table, re.M)).split(", ")
    assert set(listed) == {"model_type", *FAMILIES}
    for page in (docs / "limits.md", docs.parents[1] / "README.md"):
        assert f"[{len(FAMILIES)} families]" in page.read_text()


GPT_NEO = {"num_layers": 3, "num_heads": 4}
NOT_SUPPORTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "noise": ("mixtral", {"router_jitter_noise": 0.1}, "noise on what a router reads"),
    "mixed": (
        "qwen3_moe",
        {"mlp_only_layers": [0]},
        "experts in some layers and one MLP in others",
    ),
    "every second": ("qwen3_moe", {"decoder_sparse_step": 2}, "one MLP in others"),
    "clipped": ("olmoe", {"clip_qkv": 8.0}, "clipping of queries, keys and values"),
    "norms": ("stablelm", {"qk_layernorm": True}, "a norm of its own for each head"),
    "two norms": ("falcon", {"new_decoder_architecture": True}, "two norms of the same input"),
    "sloped": ("falcon", {"alibi": True}, "a Falcon with ALiBi"),
    "norms of heads": ("cohere", {"use_qk_norm": True}, "a norm of its own for each head"),
    "rotates": ("smollm3", {"no_rope_layers": [1]}, "1 entries for 3 layers"),
    "a narrow embedding": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 16}, "narrower"),
    "norms behind": ("opt", {"ffn_dim": 48, "do_layer_norm_before": False}, "behind its residuals"),
    "types": ("exaone4", {"sliding_window": 9}, "a window without the types of layers"),
    "wide turns": ("gptj", {"n_embd": 32, "n_head": 4, "n_layer": 2}, "more than a head"),
    "few kinds": ("gpt_neo", {**GPT_NEO, "attention_layers": ["local"]}, "1 kinds of attention"),
    "too few": ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 3}, "3 of 2 experts"),
}


@pytest.mark.parametrize("name", NOT_SUPPORTED)
def test_what_is_not_supported_is_named(name: str) -> None:
    family, keys, what = NOT_SUPPORTED[name]
    with pytest.raises(SpecError, match=what) as caught:
        model_from_config({"model_type": family, **SIZES, **keys})
    assert caught.value.place.startswith("config.json") and caught.value.fix


@pytest.mark.parametrize("name", THEIRS)
def test_loss_logits_and_every_gradient_are_those_of_transformers(
    name: str, tmp_path: Path
) -> None:
    model, spec = written(name, tmp_path / "model")
    assert trains(spec) is None
    assert total_params(spec) == sum(p.numel() for p in model.parameters())
    check_weights(tmp_path / "model", spec)
    ours, batch = running(spec, read_all(tmp_path / "model", spec)), batch_of(spec, length=LENGTH)
    logits = model(batch.tokens).logits
    targets = batch.targets.flatten()
    theirs = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")
    theirs.backward()
    loss = ours.loss(batch)
    loss.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    last = next_logits(spec, ours.weights, batch.tokens, spec.max_positions)
    assert relative(last, logits[:, -1].detach()) < 2e-6
    assert_gradients(ours, gradients_of(model, spec, tmp_path / "gradients"))


def gradients_of(model: Any, spec: ModelSpec, folder: Path) -> dict[str, Tensor]:
    """A model's gradients as our flat buffers: saved and read as its weights are."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    model.save_pretrained(folder)
    return read_all(folder, spec)


def assert_gradients(ours: Running, theirs: dict[str, Tensor]) -> None:
    """Within 1e-5 of each parameter's largest, and 1e-6 of its unit's: where keys are not turned,
    their bias has no gradient but rounding."""
    for unit, layout in ((name, unit.layout) for name, unit in ours.units.items()):
        for parameter in layout.parameters:
            wanted = theirs[unit][parameter.offset : parameter.end].view(parameter.shape)
            gradient = ours.gradient(unit, parameter.name)
            if ours.spec.tied_embeddings and parameter.name in ("embedding.tokens", "head.logits"):
                gradient = ours.gradient("h", "head.logits")
                gradient = gradient + ours.gradient("e", "embedding.tokens")
            largest, of_unit = float(wanted.abs().max()), float(theirs[unit].abs().max())
            off = float((gradient - wanted).abs().max())
            assert off < 1e-5 * largest + 1e-6 * of_unit, f"{unit} {parameter.name}: by {off:g}"


@pytest.mark.parametrize("name", THEIRS)
def test_bf16_is_as_near_to_fp32_as_that_of_transformers(name: str, tmp_path: Path) -> None:
    """Logits, and the gradient of every unit."""
    exact, _ = written(name, tmp_path / "exact")
    model, spec = written(name, tmp_path / "bf16", torch.bfloat16)
    batch = batch_of(spec, length=LENGTH)
    with torch.no_grad():
        exact.load_state_dict(model.state_dict())  # the very weights that bf16 has
    flats = read_all(tmp_path / "bf16", spec)
    wanted, theirs = (
        learnt(m, batch, spec, tmp_path / str(i)) for i, m in enumerate((exact, model))
    )
    ours = running(spec, flats, dtype=torch.bfloat16, gradient_dtype=torch.float32)
    logits = next_logits(spec, ours.weights, batch.tokens, spec.max_positions)
    ours.loss(batch).backward()
    assert relative(logits.float(), wanted[0]) < max(2 * relative(theirs[0], wanted[0]), 0.02)
    if spec.tied_embeddings:
        del wanted[1]["e"], wanted[1]["h"]  # the sum is at both ends there
    for unit, gradient in wanted[1].items():
        off = float((ours.gradients[unit] - gradient).norm() / gradient.norm())
        their_off = float((theirs[1][unit] - gradient).norm() / gradient.norm())
        assert off < max(2 * their_off, 0.02), (unit, off, their_off)


def learnt(
    model: Any, batch: MicroBatch, spec: ModelSpec, folder: Path
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of the last tokens, and gradients by unit."""
    logits = model(batch.tokens).logits
    loss = functional.cross_entropy(
        logits.float().flatten(0, 1), batch.targets.flatten(), reduction="sum"
    )
    loss.backward()
    return logits[:, -1].detach().float(), gradients_of(model, spec, folder)


@pytest.mark.parametrize("name", THEIRS)
def test_what_is_written_is_bit_by_bit_what_was_read_and_transformers_loads_it(
    name: str, tmp_path: Path
) -> None:
    """With a config that says what is known of the model alone."""
    model, spec = written(name, tmp_path / "model")
    flats, out = read_all(tmp_path / "model", spec), tmp_path / "out"
    write_model(out, spec, torch.float32, flats.__getitem__, max_shard_bytes=20_000)
    again = load_config(out / "config.json")
    assert replace(again, name=spec.name, source=spec.source) == spec
    assert all(torch.equal(flat, read_all(out, spec)[unit]) for unit, flat in flats.items())
    both: Any = AutoModelForCausalLM.from_pretrained(
        out, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    loaded, report = both
    assert not report["missing_keys"] and not report["unexpected_keys"]
    theirs = dict(model.named_parameters())
    assert all(torch.equal(value, theirs[key]) for key, value in loaded.named_parameters())
    tokens = batch_of(spec, length=LENGTH).tokens
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("name", THEIRS)
def test_a_layer_keeps_what_the_formula_counts(name: str, tmp_path: Path) -> None:
    _, spec = written(name, tmp_path)
    spec = replace(spec, hidden=256, head_dim=64, ffn=640, rope_scaling=None)
    counted = layer_activation_bytes(spec, 48, 2)
    kept = kept_bytes(spec, 48, 2, torch.bfloat16)
    assert counted <= kept <= 1.03 * counted


@pytest.mark.parametrize("divides_rows", [False, True], ids=["whole rows", "divided rows"])
@pytest.mark.parametrize("name", THEIRS)
def test_a_divided_model_has_the_loss_and_the_gradients_of_the_whole(
    name: str, divides_rows: bool, tmp_path: Path
) -> None:
    _, spec = written(name, tmp_path)
    if not THEIRS[name].divides:
        why = "normalises queries and keys over all heads|has kv_heads = 1"
        with pytest.raises(SpecError, match=why):
            check_divides(spec, 2)
        return
    whole, batch = running(spec, read_all(tmp_path, spec)), batch_of(spec)
    loss = whole.loss(batch)
    loss.backward()
    step = group_step(spec, whole.views, batch, deferred=divides_rows)
    for rank, (own_loss, gradients) in enumerate(in_group(2, step, divides_rows=divides_rows)):
        assert float(own_loss) == pytest.approx(float(loss.detach()), rel=1e-6)
        for unit, flat in gradients.items():
            wanted = part_of(spec, unit, whole.gradients[unit], Division(rank, 2))
            assert_near(flat, wanted, f"{unit} of rank {rank}")


@pytest.mark.parametrize("name", THEIRS)
def test_one_token_at_a_time_gives_the_logits_of_the_whole_text(name: str, tmp_path: Path) -> None:
    _, spec = written(name, tmp_path)
    weights = running(spec, read_all(tmp_path, spec)).weights
    tokens = batch_of(spec, length=LENGTH).tokens
    reader = Reader(spec, weights, LENGTH)
    logits = reader.read(tokens[:, :3])
    for at in range(3, LENGTH):
        logits = reader.read(tokens[:, at : at + 1])
    assert relative(logits, next_logits(spec, weights, tokens, LENGTH)) < 1e-5


@pytest.mark.parametrize("name", THEIRS)
def test_weight_gradients_played_later_have_the_same_bits(name: str, tmp_path: Path) -> None:
    _, spec = written(name, tmp_path)
    flats, batch = read_all(tmp_path, spec), batch_of(spec)
    at_once, later = running(spec, flats), running(spec, flats)
    at_once.loss(batch).backward()
    loss = later.loss(batch)
    kept = {unit: weights.defer() for unit, weights in later.weights.items()}
    loss.backward()
    for unit, weights in later.weights.items():
        weights.stop_deferring()
        weights.play(kept[unit])
        assert torch.equal(later.gradients[unit], at_once.gradients[unit])


def test_gpt2_as_it_is_published_is_read_without_the_first_word_of_its_names(
    tmp_path: Path,
) -> None:
    model, spec = written("gpt2", tmp_path / "model")
    model.transformer.save_pretrained(tmp_path / "bare")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "bare" / "config.json").write_text(json.dumps(config))
    bare, whole = (read_all(tmp_path / folder, spec) for folder in ("bare", "model"))
    assert all(torch.equal(bare[unit], flat) for unit, flat in whole.items())


NOT_COMPUTED = {
    "dynamic angles": (
        "llama",
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "dynamic",
    ),
    "an activation": ("llama", {"hidden_act": "xielu"}, "activation = 'xielu'"),
    "an odd turn": ("gpt_neox", {"rotary_pct": 0.4}, "rotary positions of 3 dimensions"),
    "factors": (
        "phi3",
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "1 factors for 4 rotary angles",
    ),
}


@pytest.mark.parametrize("name", NOT_COMPUTED)
def test_what_is_not_computed_is_named_and_can_still_be_planned(name: str) -> None:
    family, keys, reason = NOT_COMPUTED[name]
    spec = model_from_config({"model_type": family, **THEIRS[family].keys, **keys})
    said = trains(spec)
    assert said is not None and reason in said
    with pytest.raises(SpecError, match="can be planned and simulated, but not trained"):
        unit_layout(spec, "0")


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3", "gpt3", None])
def test_an_unknown_family_is_one_message_with_those_that_are_known(family: str | None) -> None:
    with pytest.raises(SpecError, match="model_type") as caught:
        model_from_config({"model_type": family})
    assert all(known in caught.value.fix for known in FAMILIES)


def test_a_family_writes_what_it_reads() -> None:
    for their in THEIRS.values():
        spec = model_from_config({"model_type": their.family, **their.keys})
        written = config_of(spec)
        assert written["model_type"] == their.family
        read = model_from_config(written)
        assert replace(read, name=spec.name, source=spec.source) == spec
