"""Units of a model: their numbers, their bits, and what they keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import ALIBI, BAICHUAN, GROUPED, LLAMA, MODELS, TIED, Running, batch_of, running
from torch import Tensor
from torch.nn import functional
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from ratrain.cost.activations import layer_activation_bytes
from ratrain.cost.blocks import blocks, total_params
from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import model_names, model_preset
from ratrain.errors import SpecError
from ratrain.models.functions import linear
from ratrain.models.functions.attention import (
    Scores,
    attention,
    attention_gradients,
    composed_attention,
    recomputed_gradients,
)
from ratrain.models.functions.positions import alibi_row, alibi_slopes
from ratrain.models.functions.rows import Rows
from ratrain.models.parameters import ALIGN
from ratrain.models.sample import next_logits
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.models.trainable import trains
from ratrain.models.units import MicroBatch, unit_of
from ratrain.models.weights import Weights

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


# What a model is made of


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_that_the_cost_formulas_count(name: str) -> None:
    for block, unit in zip(blocks(MODELS[name]), unit_names(MODELS[name]), strict=True):
        layout = unit_layout(MODELS[name], unit)
        assert {p.name: p.shape for p in layout.parameters} == {
            tensor.name: tensor.shape for tensor in block.tensors
        }


def test_matrices_come_first_and_every_parameter_is_aligned() -> None:
    layout = unit_layout(GROUPED, "0")
    assert all(p.offset % ALIGN == 0 for p in layout.parameters)
    assert all((p.offset < layout.decay_end) == (len(p.shape) == 2) for p in layout.parameters)
    assert layout.size % ALIGN == 0
    ends = [p.end for p in layout.parameters]
    assert all(a <= b.offset for a, b in zip(ends, layout.parameters[1:], strict=False))


@pytest.mark.parametrize("name", MODELS)
def test_matrices_that_are_one_product_give_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spec, batch = MODELS[name], batch_of(MODELS[name])
    apart, stacked = (running(spec, dtype=torch.float64) for _ in range(2))
    apart.loss(batch).backward()
    monkeypatch.setattr(linear, "STACKING", ("cpu",))
    stacked.loss(batch).backward()
    for unit, gradient in apart.gradients.items():
        torch.testing.assert_close(stacked.gradients[unit], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("later", [False, True])
def test_gradients_side_by_side_are_added_to_matrices_one_below_another(
    monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    monkeypatch.setattr(linear, "STACKING", ("cpu",))
    layout, names = unit_layout(LLAMA, "0"), ("attention.q", "attention.k", "attention.v")
    rows = [layout.by_name[f"{name}.weight"].shape[0] for name in names]
    x, grad = torch.randn(6, LLAMA.hidden), torch.randn(6, sum(rows))
    gradients = [torch.zeros(layout.size) for _ in range(2)]
    parts = grad.split(rows, 1)
    assert linear.side_by_side(parts) is not None
    assert linear.side_by_side([part.clone() for part in parts]) is None
    assert linear.side_by_side((parts[1], parts[0])) is None
    for place, together in zip(gradients, (parts, [part.clone() for part in parts]), strict=True):
        weights = Weights(layout)
        weights.attach_view(torch.ones(layout.size))
        weights.attach_gradient(place)
        deferred = weights.defer() if later else []
        linear.weight_gradients(weights, names, together, Rows(x))
        weights.stop_deferring()
        Weights.play(deferred)
    torch.testing.assert_close(*gradients)
    assert gradients[0].any()


@pytest.mark.parametrize("name", model_names())
def test_a_preset_is_laid_out_or_refused_with_its_reason(name: str) -> None:
    spec = model_preset(name)
    if (reason := trains(spec)) is not None:
        assert reason == f"activation = {spec.activation!r}"
        with pytest.raises(SpecError, match=reason):
            unit_of(spec, "0", sequence_length=16)
    else:
        held = sum(
            parameter.elements
            for unit in unit_names(spec)
            for parameter in unit_layout(spec, unit).parameters
        )
        tied = spec.vocab * spec.hidden if spec.tied_embeddings else 0
        assert held - tied == total_params(spec)


@pytest.mark.parametrize("name", ["2", "-1", "x", "01", ""])
def test_a_unit_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(SpecError, match="no unit"):
        unit_of(LLAMA, name, sequence_length=8)


# Numbers


def weight(model: Running, unit: str, name: str) -> Tensor:
    return model.weights[unit][name]


def reference_loss(model: Running, batch: MicroBatch) -> Tensor:
    """Baichuan2 as its authors' code reads, over leaves of autograd: RMS norm, packed attention
    with a whole ALiBi mask or rotary positions, SwiGLU, a head of normalised rows."""
    spec = model.spec
    x = functional.embedding(batch.tokens, weight(model, "e", "embedding.tokens"))
    b, S = batch.tokens.shape
    causal = torch.full((S, S), -torch.inf, dtype=x.dtype).triu(1)
    bias = build_alibi_tensor(torch.ones(b, S, dtype=torch.long), spec.heads, x.dtype)
    alibi = bias.view(b, spec.heads, 1, S) if spec.position == "alibi" else 0
    for unit in unit_names(spec)[1:-1]:

        def into(name: str, value: Tensor, unit: str = unit) -> Tensor:
            return value @ weight(model, unit, f"{name}.weight").t()

        n = norm(x, weight(model, unit, "norm1.weight"), spec)
        q, k, v = (
            into(f"attention.{name}", n).view(b, S, spec.heads, -1).transpose(1, 2)
            for name in "qkv"
        )
        if spec.position == "rope":
            q, k = rotated(q, spec), rotated(k, spec)
        scores = q @ k.transpose(2, 3) / spec.head_dim**0.5 + alibi + causal
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, S, -1)
        x = x + into("attention.output", mixed)
        n = norm(x, weight(model, unit, "norm2.weight"), spec)
        x = x + into("mlp.down", functional.silu(into("mlp.gate", n)) * into("mlp.up", n))
    head = functional.normalize(weight(model, "h", "head.logits"))
    logits = norm(x, weight(model, "h", "head.norm.weight"), spec) @ head.t()
    return functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")


def norm(x: Tensor, scale: Tensor, spec: ModelSpec) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + spec.norm_epsilon) * scale


def rotated(x: Tensor, spec: ModelSpec) -> Tensor:
    """x [b, heads, S, d] as complex numbers of dimensions i and i + d/2, each turned."""
    half = spec.head_dim // 2
    frequency = spec.rope_theta ** -(torch.arange(half, dtype=x.dtype) / half)
    angle = torch.outer(torch.arange(x.shape[2], dtype=x.dtype), frequency)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angle), angle
    )
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("spec", [BAICHUAN, ALIBI], ids=["rope", "alibi"])
def test_baichuan_agrees_with_a_plain_reading_of_it(spec: ModelSpec) -> None:
    ours, plain, batch = running(spec), running(spec), batch_of(spec)
    for name, view in plain.views.items():
        plain.weights[name].attach_view(view.requires_grad_())
    wanted = reference_loss(plain, batch)
    wanted.backward()
    loss = ours.loss(batch)
    loss.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    for name in unit_names(spec):
        expected = plain.views[name].grad
        assert expected is not None
        assert (ours.gradients[name] - expected).abs().max() < 2e-5 * expected.abs().max()


@given(st.integers(1, 130))
def test_alibi_slopes_are_those_of_bloom(heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float64)
    ours = torch.tensor(alibi_slopes(heads), dtype=torch.float64)
    assert torch.allclose(ours, theirs[:, 0, 1], rtol=1e-6)


@pytest.mark.parametrize("spec", [GROUPED, ALIBI, LLAMA], ids=["grouped", "alibi", "llama"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_gradients_are_derivatives(spec: ModelSpec, data: st.DataObject) -> None:
    """In fp64: the change of the loss along a random direction of one unit's weights."""
    model, batch = running(spec, dtype=torch.float64), batch_of(spec)
    unit = data.draw(st.sampled_from(unit_names(spec)))
    direction = torch.randn(model.views[unit].shape, dtype=torch.float64)
    model.loss(batch).backward()
    slope = (model.gradients[unit] * direction).sum().item()
    step, slopes = 1e-6, list[float]()
    with torch.no_grad():
        for sign in (1, -1):
            model.weights[unit].attach_view(model.views[unit] + sign * step * direction)
            slopes.append(model.loss(batch).item())
    assert (slopes[0] - slopes[1]) / (2 * step) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("spec", [GROUPED, ALIBI], ids=["grouped", "alibi"])
@pytest.mark.parametrize("unit", ["0", "h"])
def test_the_input_s_gradient_is_the_derivative(spec: ModelSpec, unit: str) -> None:
    model, batch = running(spec, dtype=torch.float64), batch_of(spec, sequences=2, length=7)
    torch.manual_seed(0)
    shape = (2, 7, spec.hidden)
    x, into = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    along = torch.randn(shape, dtype=torch.float64)

    def value(x: Tensor) -> Tensor:
        out = model.units[unit].forward(model.weights[unit], x, batch)
        return out if unit == "h" else (out * into).sum()

    x.requires_grad_()
    (gradient,) = torch.autograd.grad(value(x), x)
    with torch.no_grad():
        change = (value(x + 1e-6 * along) - value(x - 1e-6 * along)) / 2e-6
    assert change.item() == pytest.approx((gradient * along).sum().item(), rel=1e-6)


def test_targets_that_are_not_counted_leave_no_trace() -> None:
    batch = batch_of(LLAMA)
    nothing = MicroBatch(batch.tokens, torch.full_like(batch.targets, -100))
    model = running(LLAMA)
    loss = model.loss(nothing)
    loss.backward()
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in model.gradients.values())


def test_a_token_beyond_the_vocabulary_is_named() -> None:
    batch = MicroBatch(torch.tensor([[3, LLAMA.vocab]]), torch.tensor([[0, 0]]))
    with pytest.raises(SpecError, match=f"token {LLAMA.vocab}"):
        running(LLAMA).loss(batch)


def test_a_sequence_longer_than_announced_is_named() -> None:
    with pytest.raises(SpecError, match="65 tokens, where 64"):
        running(LLAMA).loss(batch_of(LLAMA, length=65))


@pytest.mark.parametrize("spec", [GROUPED, ALIBI], ids=["grouped", "alibi"])
@pytest.mark.parametrize("length", [1, 19])
def test_attention_of_other_devices_computes_the_same(spec: ModelSpec, length: int) -> None:
    torch.manual_seed(2)
    q, k, v, grad = (
        torch.randn(2, length, heads, spec.head_dim).transpose(1, 2)
        for heads in (spec.heads, spec.kv_heads, spec.kv_heads, spec.heads)
    )
    how = Scores(window=5)
    if spec.position == "alibi":
        how = Scores(alibi_row(length, spec.heads, torch.float32, q.device))
    out, logsumexp = attention(q, k, v, how)
    assert torch.allclose(composed_attention(q, k, v, how), out, rtol=1e-5, atol=1e-6)
    ours = attention_gradients(grad, q, k, v, out, logsumexp, how)
    for gradient, recomputed in zip(ours, recomputed_gradients(grad, q, k, v, how), strict=True):
        assert torch.allclose(gradient, recomputed, rtol=1e-4, atol=1e-5)


# Bits


def trained(spec: ModelSpec, dtype: torch.dtype, *, deferred: bool) -> list[Tensor]:
    """Gradients of two micro-batches; deferred: weight gradients play after both backwards."""
    model = running(spec, dtype=dtype, spread=1.0)
    kept: list[Any] = []
    for number in range(2):
        loss = model.loss(batch_of(spec, number))
        later = [weights.defer() for weights in model.weights.values()] if deferred else []
        loss.backward()
        kept.append(later)
    if deferred:
        assert not any(gradient.any() for gradient in model.gradients.values())
        for weights in model.weights.values():
            weights.stop_deferring()
    for later in kept:
        for additions in later:
            Weights.play(additions)
            assert not additions
    return [gradient.clone() for gradient in model.gradients.values()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradients_played_later_have_the_same_bits(name: str, dtype: torch.dtype) -> None:
    at_once = trained(MODELS[name], dtype, deferred=False)
    later = trained(MODELS[name], dtype, deferred=True)
    assert all(gradient.any() for gradient in at_once)
    assert all(torch.equal(a, b) for a, b in zip(at_once, later, strict=True))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_forward_without_a_graph_has_the_same_bits(name: str, dtype: torch.dtype) -> None:
    model, batch = running(MODELS[name], dtype=dtype), batch_of(MODELS[name])
    with_graph = model.loss(batch)
    with torch.no_grad():
        without = model.loss(batch)
    assert with_graph.requires_grad and not without.requires_grad
    assert with_graph.dtype == torch.float32
    assert torch.equal(with_graph, without)


def test_backward_reads_the_view_that_is_attached_then() -> None:
    model, batch = running(GROUPED), batch_of(GROUPED)
    plain = running(GROUPED)
    plain.loss(batch).backward()
    loss = model.loss(batch)
    for name, weights in model.weights.items():
        weights.attach_view(model.views[name].clone())
        model.views[name].fill_(torch.nan)
    loss.backward()
    for name, gradient in model.gradients.items():
        assert torch.equal(gradient, plain.gradients[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_may_add_up_in_fp32_beside_narrower_views(dtype: torch.dtype) -> None:
    batch = batch_of(GROUPED)
    exact = running(GROUPED)
    wide = running(GROUPED, dtype=dtype, gradient_dtype=torch.float32)
    for model in (exact, wide):
        model.loss(batch).backward()
    for name, gradient in wide.gradients.items():
        assert gradient.dtype == torch.float32
        error = (gradient - exact.gradients[name]).norm() / exact.gradients[name].norm()
        assert error < (0.1 if dtype == torch.bfloat16 else 0.02)


# What is kept


def kept_bytes(spec: ModelSpec, sequence: int, sequences: int, dtype: torch.dtype) -> int:
    """Bytes of the distinct storages that a layer's graph keeps, its input among them."""
    model, storages = running(spec, dtype=dtype), dict[int, int]()
    x = torch.randn(sequences, sequence, spec.hidden, dtype=dtype, requires_grad=True)

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = batch_of(spec, sequences=sequences, length=sequence)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.units["0"].forward(model.weights["0"], x, batch)
    assert out.requires_grad
    return sum(storages.values())


@pytest.mark.parametrize(
    "spec",
    [
        replace(LLAMA, hidden=256, head_dim=64, ffn=640),
        replace(GROUPED, hidden=256, head_dim=64, ffn=640),
        replace(ALIBI, hidden=256, heads=4, kv_heads=4, head_dim=64, ffn=512),
    ],
    ids=["llama", "grouped", "alibi"],
)
def test_a_layer_keeps_what_the_cost_formula_counts(spec: ModelSpec) -> None:
    kept = kept_bytes(spec, 48, 2, torch.bfloat16)
    counted = layer_activation_bytes(spec, 48, 2)
    assert counted <= kept <= 1.02 * counted


def test_a_tied_head_begins_as_its_embedding() -> None:
    model = running(TIED)
    assert torch.equal(weight(model, "e", "embedding.tokens"), weight(model, "h", "head.logits"))


def test_logits_of_a_prefix_do_not_depend_on_what_follows() -> None:
    model, batch = running(ALIBI), batch_of(ALIBI)
    spec, length = ALIBI, ALIBI.max_positions
    short = next_logits(spec, model.weights, batch.tokens[:, :9], length)
    with torch.no_grad():
        x = torch.empty(0)
        for name in unit_names(spec)[:-1]:
            x = model.units[name].forward(model.weights[name], x, batch)
    head: Any = model.units["h"]
    whole = head.logits(model.weights["h"], x)
    assert torch.allclose(whole[:, 8], short, rtol=1e-5, atol=1e-5)
