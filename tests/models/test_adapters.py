"""Low-rank adapters compute what their matrices plus B A compute, in every family, in tensor
groups, and as PEFT reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from their_models import THEIRS, relative, written
from thread_group import in_group
from tiny_models import Running, batch_of, running
from torch import Tensor
from torch.nn import functional

from ratrain.describe.model import ModelSpec
from ratrain.describe.tuning import LoraSpec, Tuning
from ratrain.models.division import Division
from ratrain.models.functions.rows import summed
from ratrain.models.huggingface import read_range
from ratrain.models.huggingface.peft import WEIGHTS, write_adapters
from ratrain.models.initialise import initial_range
from ratrain.models.merged import merged
from ratrain.models.sample import next_logits
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.models.tensor_group import TensorGroup
from ratrain.models.units import unit_of
from ratrain.models.weights import Weights

LENGTH = 40
TUNING = Tuning(lora=LoraSpec(rank=3, alpha=5.0))
SOME = {"gpt2": ("attn.c_proj", "h.1"), "gpt_neox": ("query_key_value",), "llama": ("layers.1",)}


def adapted(name: str, folder: Path, tuning: Tuning = TUNING) -> tuple[Any, ModelSpec]:
    model, spec = written(name, folder)
    return model, replace(spec, tuning=tuning)


def flats_of(spec: ModelSpec, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By unit what is trained, random, and what is not, of the folder."""
    trained: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    for number, name in enumerate(unit_names(spec)):
        layout = unit_layout(spec, name)
        generator = torch.Generator().manual_seed(number)
        trained[name] = 0.3 * torch.randn(layout.size, generator=generator)
        assert layout.frozen is not None
        size = layout.frozen.size
        frozen[name] = read_range(folder, spec, name, layout.frozen, 0, size)
    return trained, frozen


def hooked(model: Any, folder: Path, scale: float) -> dict[str, torch.nn.Parameter]:
    """Adds what a PEFT folder says to the outputs of a model's modules."""
    tensors: dict[str, Tensor] = safetensors.torch.load_file(folder / WEIGHTS)
    leaves = {name: torch.nn.Parameter(value) for name, value in tensors.items()}
    for name, a in leaves.items():
        if ".lora_A." not in name:
            continue
        b = leaves[name.replace("lora_A", "lora_B")]
        path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")

        def add(_: Any, given: Any, made: Tensor, a: Tensor = a, b: Tensor = b) -> Tensor:
            return made + scale * (given[0] @ a.t()) @ b.t()

        model.get_submodule(path).register_forward_hook(add)
    return leaves


def gradients_as_peft(ours: Running, folder: Path) -> dict[str, Tensor]:
    write_adapters(folder, ours.spec, torch.float32, ours.gradients.__getitem__, None)
    return safetensors.torch.load_file(folder / WEIGHTS)


@pytest.mark.parametrize("name", THEIRS)
def test_loss_and_gradients_are_those_of_the_adapters_in_transformers(
    name: str, tmp_path: Path
) -> None:
    tuning = TUNING
    if name in SOME:
        tuning = Tuning(lora=LoraSpec(rank=3, alpha=5.0, targets=SOME[name]))
    model, spec = adapted(name, tmp_path / "model", tuning)
    trained, frozen = flats_of(spec, tmp_path / "model")
    ours, batch = running(spec, trained, frozen=frozen), batch_of(spec, length=LENGTH)
    write_adapters(tmp_path / "adapters", spec, torch.float32, trained.__getitem__, None)
    leaves = hooked(model, tmp_path / "adapters", 5 / 3)
    logits = model(batch.tokens).logits
    targets = batch.targets.flatten()
    theirs = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")
    theirs.backward()
    loss = ours.loss(batch)
    loss.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=2e-6)
    gradients = gradients_as_peft(ours, tmp_path / "gradients")
    assert gradients.keys() == leaves.keys()
    for key, leaf in leaves.items():
        assert leaf.grad is not None
        assert relative(gradients[key], leaf.grad) < 3e-5, key


@pytest.mark.parametrize("name", THEIRS)
def test_merged_weights_compute_what_adapters_compute(name: str, tmp_path: Path) -> None:
    _, spec = adapted(name, tmp_path)
    trained, frozen = flats_of(spec, tmp_path)
    tokens = batch_of(spec, length=LENGTH).tokens
    apart = running(spec, trained, frozen=frozen).weights
    whole: dict[str, Weights] = {}
    for unit in unit_names(spec):
        plain = unit_layout(spec.base, unit)
        whole[unit] = Weights(plain)
        layout = unit_layout(spec, unit)
        whole[unit].attach_view(merged(plain, layout, trained[unit], frozen[unit]))
    expected = next_logits(spec, apart, tokens, spec.max_positions)
    logits = next_logits(spec.base, whole, tokens, spec.max_positions)
    assert relative(logits, expected) < 1e-5


def part_of_both(spec: ModelSpec, unit: str, flat: Tensor, division: Division, frozen: bool) -> Any:
    """One rank's part of a flat buffer."""
    whole, part = unit_layout(spec, unit), unit_layout(spec, unit, division)
    if frozen:
        assert whole.frozen is not None
        assert part.frozen is not None
        whole, part = whole.frozen, part.frozen
    out = torch.zeros(part.size)
    for parameter in part.parameters:
        held = whole.by_name[parameter.name]
        values = flat[held.offset : held.end].view(held.shape)[parameter.window]
        out[parameter.offset : parameter.end] = values.reshape(-1)
    return out


@pytest.mark.parametrize("name", [name for name, their in THEIRS.items() if their.divides])
def test_a_tensor_group_has_the_whole_model_s_gradients_of_adapters(
    name: str, tmp_path: Path
) -> None:
    _, spec = adapted(name, tmp_path)
    trained, frozen = flats_of(spec, tmp_path)
    whole, batch = running(spec, trained, frozen=frozen), batch_of(spec)
    loss = whole.loss(batch)
    loss.backward()

    def step(group: TensorGroup) -> dict[str, Tensor]:

        gradients: dict[str, Tensor] = {}
        weights: dict[str, Weights] = {}
        leaves: list[tuple[Tensor, Tensor]] = []
        x = torch.empty(0)
        for unit_name in unit_names(spec):
            unit = unit_of(spec, unit_name, sequence_length=spec.max_positions, group=group)
            weights[unit_name] = own = Weights(unit.layout)
            division = group.division
            own.attach_view(part_of_both(spec, unit_name, trained[unit_name], division, False))
            own.attach_frozen(part_of_both(spec, unit_name, frozen[unit_name], division, True))
            gradients[unit_name] = torch.zeros(unit.layout.size)
            own.attach_gradient(gradients[unit_name])
            leaf = x.detach().requires_grad_()
            out = unit.forward(own, leaf, batch)
            leaves.append((leaf, out))
            x = out if unit_name == "h" else summed(out.detach().clone(), group)
        grad = torch.tensor(1.0)
        for leaf, out in reversed(leaves):
            out.backward(grad)
            if leaf.grad is not None and leaf.numel():
                grad = summed(leaf.grad.clone(), group)
        return gradients

    for rank, gradients in enumerate(in_group(2, step)):
        for unit, flat in gradients.items():
            wanted = part_of_both(spec, unit, whole.gradients[unit], Division(rank, 2), False)
            if len(wanted):
                assert relative(flat, wanted) < 3e-5, f"{unit} of rank {rank}"


def test_adapters_begin_as_nothing(tmp_path: Path) -> None:
    _, spec = adapted("llama", tmp_path)
    for unit in unit_names(spec):
        layout = unit_layout(spec, unit)
        flat = initial_range(spec, unit, layout, 0, layout.size, seed=1)
        for each in layout.parameters:
            values = flat[each.offset : each.end]
            assert (values == 0).all() == each.name.endswith("lora_b")
            assert values.abs().max() <= each.shape[1] ** -0.5


def test_peft_loads_the_folder_and_computes_the_same(tmp_path: Path) -> None:
    """Where PEFT is installed: it is no dependency of ours."""
    peft: Any = pytest.importorskip("peft")
    for name in ("llama", "gpt2", "gpt_neox", "phi3", "qwen2", "gemma3"):
        model, spec = adapted(name, tmp_path / name)
        trained, frozen = flats_of(spec, tmp_path / name)
        ours, batch = running(spec, trained, frozen=frozen), batch_of(spec, length=LENGTH)
        folder = tmp_path / f"{name}-adapters"
        write_adapters(folder, spec, torch.float32, trained.__getitem__, None)
        loaded = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
        logits = loaded(batch.tokens).logits
        targets = batch.targets.flatten()
        theirs = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")
        theirs.backward()
        loss = ours.loss(batch)
        loss.backward()
        assert loss.item() == pytest.approx(theirs.item(), rel=2e-6)
        gradients = gradients_as_peft(ours, tmp_path / f"{name}-gradients")
        compared = 0
        for key, parameter in loaded.named_parameters():
            if parameter.requires_grad:
                expected = gradients[key.replace(".default", "")]
                assert relative(expected, parameter.grad) < 3e-5, key
                compared += 1
        assert compared == len(gradients)
