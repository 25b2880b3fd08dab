"""A model divided over a tensor group: the same model, whatever the degree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_group import ThreadGroup, in_group
from tiny_models import MODELS, batch_of, running
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ratrain.cost.activations import layer_activation_bytes
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.division import Division, check_divides
from ratrain.models.functions.rows import spread, summed
from ratrain.models.huggingface import read_range, write_model
from ratrain.models.initialise import initial_range
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.models.units import MicroBatch, unit_of
from ratrain.models.weights import Weights

# Words and heads that 2, 3 and 4 ranks can share.
DIVISIBLE = {
    name: replace(
        spec,
        vocab=72,
        heads=12,
        kv_heads=12 if spec.kv_heads == spec.heads else 4,
        hidden=spec.hidden if spec.family != "baichuan" else 96,
    )
    for name, spec in MODELS.items()
}
EVEN = [(name, degree) for name in DIVISIBLE for degree in (2, 4)]


def part_of(spec: ModelSpec, name: str, whole: Tensor, division: Division) -> Tensor:
    """One rank's flat buffer, cut out of the whole unit's."""
    layout, all_of = unit_layout(spec, name, division), unit_layout(spec, name).by_name
    flat = torch.zeros(layout.size)
    for parameter in layout.parameters:
        full = all_of[parameter.name]
        values = whole[full.offset : full.end].view(full.shape)[parameter.window]
        flat[parameter.offset : parameter.end] = values.reshape(-1)
    return flat


def group_step(
    spec: ModelSpec, flats: dict[str, Tensor], batch: MicroBatch, *, deferred: bool = False
) -> Callable[[ThreadGroup], tuple[Tensor, dict[str, Tensor]]]:
    """(group) -> loss, and this rank's gradients, as a trainer would get them."""

    def step(group: ThreadGroup) -> tuple[Tensor, dict[str, Tensor]]:
        gradients: dict[str, Tensor] = {}
        graphs: list[tuple[Weights, Tensor, GradientEdge]] = []
        x = torch.empty(0)
        for name in unit_names(spec):
            unit = unit_of(spec, name, sequence_length=spec.max_positions, group=group)
            weights = Weights(unit.layout)
            weights.attach_view(part_of(spec, name, flats[name], group.division))
            gradients[name] = torch.zeros(unit.layout.size)
            weights.attach_gradient(gradients[name])
            given = x.detach() if name == "e" else spread(x.detach(), group)
            leaf = given.requires_grad_()
            part = unit.forward(weights, leaf, batch)
            graphs.append((weights, leaf, get_gradient_edge(part)))
            x = part.detach() if name == "h" else summed(part.detach(), group)
        grad = torch.tensor(1.0)
        for weights, leaf, edge in reversed(graphs):
            later = weights.defer() if deferred else []
            seed = spread(grad, group) if grad.dim() else grad
            (grad,) = torch.autograd.grad([edge], [leaf], [seed], allow_unused=True)
            weights.stop_deferring()
            Weights.play(later)
            if grad is not None:
                grad = summed(grad, group)
        return x, gradients

    return step


@pytest.mark.parametrize("divides_rows", [False, True], ids=["whole rows", "divided rows"])
@pytest.mark.parametrize(("name", "degree"), EVEN)
def test_a_divided_model_has_the_loss_and_the_gradients_of_the_whole(
    name: str, degree: int, divides_rows: bool
) -> None:
    spec = DIVISIBLE[name]
    whole, batch = running(spec), batch_of(spec)
    loss = whole.loss(batch)
    loss.backward()
    for deferred in (False, True):
        step = group_step(spec, whole.views, batch, deferred=deferred)
        results = in_group(degree, step, divides_rows=divides_rows)
        for rank, (own_loss, gradients) in enumerate(results):
            assert float(own_loss) == pytest.approx(float(loss.detach()), rel=1e-6)
            for unit, flat in gradients.items():
                wanted = part_of(spec, unit, whole.gradients[unit], Division(rank, degree))
                assert_near(flat, wanted, f"{unit} of rank {rank}")


@pytest.mark.parametrize("divides_rows", [False, True], ids=["whole rows", "divided rows"])
def test_what_all_ranks_have_gets_the_same_bits_on_all(divides_rows: bool) -> None:
    spec = DIVISIBLE["grouped"]
    step = group_step(spec, running(spec).views, batch_of(spec))
    results = in_group(4, step, divides_rows=divides_rows)
    assert len({bytes(loss.numpy()) for loss, _ in results}) == 1
    for unit in unit_names(spec):
        for parameter in unit_layout(spec, unit, Division(0, 4)).parameters:
            if parameter.cut is None:
                copies = {
                    bytes(grads[unit][parameter.offset : parameter.end].numpy())
                    for _, grads in results
                }
                assert len(copies) == 1, f"{unit} {parameter.name}"


@pytest.mark.parametrize("deferred", [False, True])
def test_gathered_rows_are_let_go_as_soon_as_a_product_has_used_them(deferred: bool) -> None:
    spec = DIVISIBLE["grouped"]
    unit_flat, batch = running(spec).views["0"], batch_of(spec)

    def step(group: ThreadGroup) -> list[tuple[int, int]]:
        unit = unit_of(spec, "0", sequence_length=spec.max_positions, group=group)
        weights = Weights(unit.layout)
        weights.attach_view(part_of(spec, "0", unit_flat, group.division))
        weights.attach_gradient(torch.zeros(unit.layout.size))
        rows = batch.tokens.numel() // group.division.degree
        leaf = spread(torch.randn(rows, spec.hidden), group).requires_grad_()
        edge = get_gradient_edge(unit.forward(weights, leaf, batch))
        held = [(group.gathers, group.gathered_bytes)]
        later = weights.defer() if deferred else []
        seed = spread(torch.randn(rows, spec.hidden), group)
        torch.autograd.grad([edge], [leaf], [seed])
        held.append((group.gathers, group.gathered_bytes))
        weights.stop_deferring()
        Weights.play(later)
        held.append((group.gathers, group.gathered_bytes))
        return held

    # Forward the inputs of attention and MLP; backward both gradients, the layer's input, and the
    # MLP's if weight gradients are not deferred. Those gather both gradients and inputs again.
    expected = [(2, 0), (5, 0), (9, 0)] if deferred else [(2, 0), (6, 0), (6, 0)]
    assert in_group(2, step, divides_rows=True) == [expected] * 2


@pytest.mark.parametrize("degree", [2, 4])
def test_a_layer_of_divided_rows_keeps_what_the_cost_formula_counts(degree: int) -> None:
    spec = replace(DIVISIBLE["llama"], hidden=256, head_dim=64, heads=4, kv_heads=4, ffn=640)
    batch = batch_of(spec, sequences=2, length=48)
    flat = running(spec).views["0"].bfloat16()

    def kept_bytes(group: ThreadGroup) -> int:
        """Of the distinct storages that a layer's graph keeps, its input among them."""
        unit, storages = unit_of(spec, "0", sequence_length=64, group=group), dict[int, int]()
        weights = Weights(unit.layout)
        weights.attach_view(part_of(spec, "0", flat, group.division).bfloat16())
        rows = torch.randn(96 // degree, spec.hidden, dtype=torch.bfloat16)

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            unit.forward(weights, spread(rows, group).requires_grad_(), batch)
        return sum(storages.values())

    counted = layer_activation_bytes(spec, 48, 2, tensor=degree, sequence_parallel=True)
    for kept in in_group(degree, kept_bytes, divides_rows=True):
        assert counted <= kept <= 1.02 * counted


@settings(deadline=None)
@given(st.sampled_from(EVEN), st.sampled_from(["e", "0", "1", "h"]))
def test_parts_put_together_are_the_unit(case: tuple[str, int], unit: str) -> None:
    spec, degree = DIVISIBLE[case[0]], case[1]
    for parameter in unit_layout(spec, unit).parameters:
        held = torch.zeros(parameter.shape)
        for rank in range(degree):
            part = unit_layout(spec, unit, Division(rank, degree)).by_name[parameter.name]
            assert part.whole_shape == parameter.shape
            assert held[part.window].shape == part.shape
            held[part.window] += 1 if part.cut is not None else 1 / degree
        assert bool((held == 1).all())


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_range_of_a_part_begins_as_the_same_slice_of_the_whole(data: st.DataObject) -> None:
    name, degree = data.draw(st.sampled_from(EVEN))
    spec, unit = DIVISIBLE[name], data.draw(st.sampled_from(["e", "1", "h"]))
    division = Division(data.draw(st.integers(0, degree - 1)), degree)
    layout, full = unit_layout(spec, unit, division), unit_layout(spec, unit)
    begin = data.draw(st.integers(0, layout.size))
    end = data.draw(st.integers(begin, layout.size))
    whole = initial_range(spec, unit, full, 0, full.size, seed=1)
    values = initial_range(spec, unit, layout, begin, end, seed=1)
    assert torch.equal(values, part_of(spec, unit, whole, division)[begin:end])


@pytest.mark.parametrize("name", ["grouped", "baichuan", "tied"])
def test_a_part_is_read_from_a_hugging_face_folder(name: str, tmp_path: Path) -> None:
    spec = DIVISIBLE[name]
    if name == "grouped":  # no family has a bias in the MLP alone
        spec = replace(spec, output_bias=True)
    flats = {
        unit: initial_range(spec, unit, unit_layout(spec, unit), 0, unit_layout(spec, unit).size, 7)
        for unit in unit_names(spec)
    }
    write_model(tmp_path / "model", spec, torch.float32, lambda unit: flats[unit])
    for unit, whole in flats.items():
        for division in (Division(0, 2), Division(3, 4)):
            layout = unit_layout(spec, unit, division)
            for begin, end in ((0, layout.size), (5, layout.size - 70)):
                values = read_range(tmp_path / "model", spec, unit, layout, begin, end)
                assert torch.equal(values, part_of(spec, unit, whole, division)[begin:end])


@pytest.mark.parametrize(
    ("problem", "spec"),
    [
        ("heads = 6", replace(DIVISIBLE["llama"], heads=6, kv_heads=6)),
        ("kv_heads = 6", replace(DIVISIBLE["llama"], kv_heads=6)),
        ("ffn = 18", replace(DIVISIBLE["llama"], ffn=18)),
        ("vocab = 18", replace(DIVISIBLE["llama"], vocab=18)),
    ],
)
def test_a_model_that_cannot_be_shared_evenly_is_refused_with_a_degree_that_can(
    problem: str, spec: ModelSpec
) -> None:
    with pytest.raises(SpecError, match=f"has {problem}, which 4 ranks") as caught:
        check_divides(spec, 4)
    assert caught.value.fix == "use tensor = 3"
    check_divides(spec, 3)


def test_a_token_that_no_rank_has_is_named() -> None:
    spec = DIVISIBLE["llama"]
    tokens = torch.tensor([[1, 72]])

    def step(group: ThreadGroup) -> None:
        unit = unit_of(spec, "e", sequence_length=2, group=group)
        weights = Weights(unit.layout)
        weights.attach_view(torch.zeros(unit.layout.size))
        unit.forward(weights, torch.empty(0), MicroBatch(tokens, tokens))

    with pytest.raises(SpecError, match="token 72, but the model has tokens 0 to 71"):
        in_group(2, step)


def assert_near(actual: Tensor, expected: Tensor, name: str) -> None:
    """Within rounding of fp32, of the largest element."""
    off, largest = float((actual - expected).abs().max()), float(expected.abs().max())
    assert off <= 1e-5 * largest, f"{name}: by {off:g} of {largest:g}"
