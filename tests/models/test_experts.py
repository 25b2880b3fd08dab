"""Experts: their balance, files of two makers, what is trained of them, what each rank has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from test_division import assert_near, group_step, part_of
from test_families import gradients_of
from their_models import EXPERTS, SIZES, read_all, their_model, written
from thread_group import in_group
from tiny_models import batch_of, running
from torch import Tensor
from torch.nn import functional

from ratrain.cost.activations import layer_activations
from ratrain.cost.blocks import blocks
from ratrain.describe.huggingface import config_of, load_config, model_from_config
from ratrain.describe.model import Experts, ModelSpec
from ratrain.describe.optimizers import matrices_of_stack
from ratrain.describe.trained import check_tuning, unit_parameters
from ratrain.describe.tuning import LoraSpec, Tuning
from ratrain.errors import SpecError
from ratrain.models.division import Division, check_divides
from ratrain.models.huggingface import check_weights, read_range, write_model
from ratrain.models.shapes import unit_layout
from ratrain.models.units import MicroBatch
from ratrain.readers.place import Place
from ratrain.runtime.step.exchange.buckets import Bucket, Filler

ROUTED = ("mixtral", "qwen3_moe", "qwen2_moe")


def balance_of(spec: ModelSpec, logits: list[Tensor], batch: MicroBatch) -> Tensor:
    """Of a batch, by the definition: sequence by sequence, the mean over layers."""
    experts = spec.experts
    assert experts is not None
    total = torch.zeros(())
    for number, targets in enumerate(batch.targets):
        for of_layer in logits:
            shares = of_layer.view(*batch.tokens.shape, -1)[number].softmax(-1)
            chosen = torch.zeros_like(shares).scatter_(1, shares.topk(experts.chosen).indices, 1.0)
            by_expert = chosen.mean(0) * shares.mean(0)
            total = total + (targets >= 0).sum() * experts.count * by_expert.sum() / spec.layers
    return total


@pytest.mark.parametrize("name", ROUTED)
def test_the_balance_of_each_sequence_is_trained_for_with_its_weight(
    name: str, tmp_path: Path
) -> None:
    model, spec = written(name, tmp_path / "model")
    spec = replace(spec, balance_loss=0.3)
    batch = replace(batch_of(spec), loss_weight=0.25)
    out = model(batch.tokens, output_router_logits=True)
    targets = batch.targets.flatten()
    loss = functional.cross_entropy(out.logits.flatten(0, 1), targets, reduction="sum")
    (0.25 * (loss + 0.3 * balance_of(spec, list(out.router_logits), batch))).backward()
    wanted = gradients_of(model, spec, tmp_path / "gradients")
    ours = running(spec, read_all(tmp_path / "model", spec))
    ours.loss(batch).mul(0.25).backward()
    for unit, flat in ours.gradients.items():
        assert float((flat - wanted[unit]).abs().max()) < 1e-5 * float(wanted[unit].abs().max())


@pytest.mark.parametrize("name", ROUTED)
def test_of_one_layer_and_one_sequence_the_loss_is_that_of_transformers(
    name: str, tmp_path: Path
) -> None:
    model = their_model(name, num_hidden_layers=1, output_router_logits=True)
    model.save_pretrained(tmp_path / "model")
    spec = load_config(tmp_path / "model" / "config.json")
    assert spec.balance_loss == model.config.router_aux_loss_coef > 0
    batch = batch_of(spec, sequences=1)
    count = int((batch.targets >= 0).sum())
    out = model(batch.tokens, labels=batch.targets, shift_labels=batch.targets)
    out.loss.backward()
    wanted = gradients_of(model, spec, tmp_path / "gradients")
    ours = running(spec, read_all(tmp_path / "model", spec))
    ours.loss(batch).backward()
    for unit, flat in ours.gradients.items():
        off = (flat / count - wanted[unit]).abs().max()
        assert float(off) < 1e-5 * float(wanted[unit].abs().max())


@pytest.mark.parametrize("divides_rows", [False, True], ids=["whole rows", "divided rows"])
@pytest.mark.parametrize("name", ROUTED)
def test_a_group_trains_for_the_same_balance(name: str, divides_rows: bool, tmp_path: Path) -> None:
    _, spec = written(name, tmp_path)
    spec = replace(spec, balance_loss=2.0)
    whole, batch = running(spec, read_all(tmp_path, spec)), batch_of(spec)
    whole.loss(batch).backward()
    step = group_step(spec, whole.views, batch)
    for rank, (_, gradients) in enumerate(in_group(2, step, divides_rows=divides_rows)):
        for unit, flat in gradients.items():
            wanted = part_of(spec, unit, whole.gradients[unit], Division(rank, 2))
            assert_near(flat, wanted, f"{unit} of rank {rank}")


@pytest.mark.parametrize("name", ROUTED)
def test_files_with_all_experts_in_two_tensors_and_with_each_in_its_own_are_read_alike(
    name: str, tmp_path: Path
) -> None:
    model, spec = written(name, tmp_path / "one")
    model.save_pretrained(tmp_path / "stacked", save_original_format=False)
    flats = read_all(tmp_path / "one", spec)
    write_model(tmp_path / "ours", spec, torch.float32, flats.__getitem__, 10_000)
    tensors: dict[str, Tensor] = {}
    for file in (tmp_path / "ours").glob("*.safetensors"):
        tensors |= safetensors.torch.load_file(file)
    assert not any("gate_up_proj" in key for key in tensors)
    assert sum(".experts.1." in key for key in tensors) == 3 * spec.layers
    stacked = safetensors.torch.load_file(tmp_path / "stacked" / "model.safetensors")
    assert sum("gate_up_proj" in key for key in stacked) == spec.layers
    for folder in ("stacked", "ours"):
        check_weights(tmp_path / folder, spec)
        again = read_all(tmp_path / folder, spec)
        assert all(torch.equal(again[unit], flat) for unit, flat in flats.items())


def test_a_part_of_a_unit_is_read_from_either(tmp_path: Path) -> None:
    """Any run of elements, of any rank of a tensor group."""
    model, spec = written("mixtral", tmp_path / "one")
    model.save_pretrained(tmp_path / "stacked", save_original_format=False)
    flats = read_all(tmp_path / "stacked", spec)
    write_model(tmp_path / "numbered", spec, torch.float32, flats.__getitem__)
    for rank in range(2):
        division = Division(rank, 2)
        layout = unit_layout(spec, "1", division)
        wanted = part_of(spec, "1", flats["1"], division)
        for begin in range(0, layout.size, 997):
            end = min(layout.size, begin + 1500)
            for folder in ("stacked", "numbered"):
                part = read_range(tmp_path / folder, spec, "1", layout, begin, end)
                assert torch.equal(part, wanted[begin:end])


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    _, spec = written("qwen3_moe", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    gone = "model.layers.1.mlp.experts.4.up_proj.weight"
    del tensors[gone]
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(SpecError, match=f'"{gone}" is missing'):
        check_weights(tmp_path, spec)


def test_a_token_pays_for_the_experts_that_it_chooses_and_memory_for_all(tmp_path: Path) -> None:
    _, spec = written("qwen3_moe", tmp_path)
    layer = blocks(spec)[1]
    dense = blocks(replace(spec, experts=None, ffn=3 * spec.ffn))[1]
    router = 6 * spec.hidden
    assert layer.params - router - 6 * 3 * spec.ffn * spec.hidden == dense.params - 9 * spec.ffn * (
        spec.hidden
    )
    spent = layer.forward_flops(10, 10).gemm - dense.forward_flops(10, 10).gemm
    assert spent == 2 * 10 * router


@pytest.mark.parametrize(("tensor", "pairs"), [(1, 3), (2, 3), (3, 2), (6, 1)])
def test_a_rank_keeps_what_it_would_if_every_token_chose_its_experts(
    tensor: int, pairs: int, tmp_path: Path
) -> None:
    _, spec = written("qwen3_moe", tmp_path)
    kept = layer_activations(spec, 8, tensor=tensor)
    assert kept["expert_gate"] == kept["expert_act"] == 2 * 8 * pairs * spec.ffn


def test_a_degree_that_does_not_divide_the_experts_is_refused_with_one_that_does() -> None:
    spec = replace(model_from_config({"model_type": "mixtral", **SIZES}), kv_heads=4)
    with pytest.raises(SpecError, match="has experts = 6, which 4 ranks") as caught:
        check_divides(replace(spec, experts=Experts(6, 2)), 4)
    assert caught.value.fix == "use tensor = 2"


def test_patterns_freeze_all_experts_of_a_layer_or_none() -> None:
    spec = model_from_config({"model_type": "qwen3_moe", **EXPERTS})
    place = Place("job.toml").at("train")
    tuned = replace(spec, tuning=Tuning(freeze=("layers.1.mlp.experts", "mlp.gate")))
    check_tuning(tuned, place)
    trained = {
        unit: [each.name for each in unit_parameters(tuned, unit) if each.trained]
        for unit in ("0", "1")
    }
    assert [name for name in trained["0"] if name not in trained["1"]] == [
        f"experts.{name}.weight" for name in ("gate", "up", "down")
    ]
    assert "mlp.router.weight" not in trained["0"]
    for pattern in ("experts.3", "layers.0.mlp.experts.1.up_proj"):
        with pytest.raises(SpecError, match="names 1 of the 6 experts of a layer"):
            check_tuning(replace(spec, tuning=Tuning(freeze=(pattern,))), place)


def test_adapters_are_attentions_alone_and_experts_are_refused_by_name() -> None:
    spec = model_from_config({"model_type": "mixtral", **SIZES})
    place = Place("job.toml").at("train")
    tuned = replace(spec, tuning=Tuning(lora=LoraSpec()))
    check_tuning(tuned, place)
    made = [each.name for each in unit_parameters(tuned, "0") if each.trained]
    assert made and all(name.startswith("attention.") for name in made)
    for target in ("w1", "experts", "block_sparse_moe.gate"):
        asked = replace(spec, tuning=Tuning(lora=LoraSpec(targets=(target,))))
        with pytest.raises(SpecError, match="names experts or their router, which have no adap"):
            check_tuning(asked, place)


def test_optimizers_that_take_whole_matrices_take_an_experts_at_a_time() -> None:
    taken = matrices_of_stack("experts.up.weight", (3, 4, 5), 128)
    assert [(each.shape, each.run) for each in taken] == [
        ((4, 5), slice(128 + 20 * number, 148 + 20 * number)) for number in range(3)
    ]


@pytest.mark.parametrize("name", ROUTED)
def test_buckets_of_any_size_hold_the_gradient_of_the_whole(name: str, tmp_path: Path) -> None:
    _, spec = written(name, tmp_path)
    flats, batch = read_all(tmp_path, spec), batch_of(spec)
    whole, cut = running(spec, flats), running(spec, flats)
    whole.loss(batch).backward()
    for size in (8 * 48, 1000, 100_000):
        gradient = torch.zeros_like(whole.gradients["1"])
        shard = slice(0, len(gradient))

        def leave(bucket: Bucket, into: Tensor = gradient, owned: slice = shard) -> None:
            bucket.add_to(into, owned, bucket.memory, first=False)

        memory = torch.zeros(size)
        filler = Filler(lambda memory=memory: Bucket(memory), leave, in_pieces=False)
        cut.weights["1"].attach_sink(filler)
        cut.loss(batch).backward()
        cut.weights["1"].attach_sink(None)
        filler.finish()
        off = float((gradient - whole.gradients["1"]).abs().max())
        assert off <= 1e-6 * float(whole.gradients["1"].abs().max())


def test_a_model_without_experts_is_no_family_of_experts() -> None:
    spec = model_from_config({"model_type": "mistral", **SIZES})
    assert config_of(replace(spec, family="mixtral"))["model_type"] != "mixtral"
