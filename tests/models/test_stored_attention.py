"""Attention that stores its scores, and that makes them again: the same as torch's kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import MODELS, Running, batch_of, running
from torch import Tensor

from ratrain.cost.activations import layer_activation_bytes, probabilities_bytes
from ratrain.describe.model import ModelSpec
from ratrain.models.functions.attention import AttentionCore
from ratrain.models.functions.stored_attention import REMADE, STORED
from ratrain.models.units import unit_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def by_core(spec: ModelSpec, core: AttentionCore, dtype: torch.dtype) -> Running:
    """The model with another attention."""
    model = running(spec, dtype=dtype)
    for name in model.units:
        model.units[name] = unit_of(spec, name, sequence_length=spec.max_positions, core=core)
    return model


def trained(model: Running) -> list[Tensor]:
    """The loss, and each unit's gradient."""
    loss = model.loss(batch_of(model.spec))
    loss.backward()
    return [loss.detach(), *model.gradients.values()]


@pytest.mark.parametrize("name", MODELS)
def test_stored_scores_give_the_numbers_of_torch_s_kernels(name: str) -> None:
    spec = MODELS[name]
    usual = trained(running(spec))
    for ours, theirs in zip(trained(by_core(spec, STORED, torch.float32)), usual, strict=True):
        assert float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_made_again_give_the_bits_of_those_that_were_stored(
    name: str, dtype: torch.dtype
) -> None:
    stored = trained(by_core(MODELS[name], STORED, dtype))
    remade = trained(by_core(MODELS[name], REMADE, dtype))
    assert all(torch.equal(a, b) for a, b in zip(stored, remade, strict=True))
    assert all(bool(part.any()) for part in stored)


@pytest.mark.parametrize(("core", "keeps"), [(STORED, True), (REMADE, False)])
def test_a_layer_keeps_the_scores_that_the_cost_formula_counts(
    core: AttentionCore, keeps: bool
) -> None:
    spec = replace(MODELS["grouped"], hidden=256, head_dim=64, ffn=640)
    model, storages = by_core(spec, core, torch.bfloat16), dict[int, int]()
    x = torch.randn(2, 48, spec.hidden, dtype=torch.bfloat16, requires_grad=True)

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = batch_of(spec, sequences=2, length=48)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.units["0"].forward(model.weights["0"], x, batch)
    counted = layer_activation_bytes(spec, 48, 2)
    counted += probabilities_bytes(spec, 48, 2, element_bytes=2) * keeps
    assert counted <= sum(storages.values()) <= 1.02 * counted
