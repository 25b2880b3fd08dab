"""Exact parameter counts, FLOPs and activation bytes against published figures."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.cost import activations as act
from ratrain.cost.balance import balanced_layers, spread
from ratrain.cost.blocks import blocks, total_params
from ratrain.describe.presets import model_preset


@pytest.mark.parametrize(
    ("name", "params", "causal_gflop", "layer_mb", "logits_gb"),
    [
        ("llama-2-7b", 6_738_415_616, 41.25, 269.5, 0.39),
        ("llama-2-13b", 13_015_864_320, 79.63, 337.6, 0.39),
        ("baichuan2-13b", 13_896_668_160, 82.04, 336.1, 1.54),
        ("qwen2.5-32b", 32_763_876_352, 195.94, 474.0, 1.87),
        ("llama-2-70b", 68_976_648_192, 420.34, 562.0, 0.39),
    ],
)
def test_the_paper_s_models(
    name: str, params: int, causal_gflop: float, layer_mb: float, logits_gb: float
) -> None:
    model = model_preset(name)
    assert total_params(model) == params
    token = [
        b.forward_flops(1, 2048).total + b.backward_flops(1, 2048).total for b in blocks(model)
    ]
    assert sum(token) / 1e9 == pytest.approx(causal_gflop, abs=0.011)
    assert act.layer_activation_bytes(model, 2048) / 1e6 == pytest.approx(layer_mb, abs=0.05)
    assert act.logits_bytes(model, 2048) / 1e9 == pytest.approx(logits_gb, abs=0.006)
    assert act.checkpoint_bytes(model, 2048) == 2 * 2048 * model.hidden


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("qwen3-8b", 8_190_735_360),
        ("gemma-3-1b", 999_885_952),
        ("smollm3-3b", 3_075_098_624),
        ("glm-4-9b-0414", 9_400_279_040),
    ],
)
def test_presets_have_as_many_parameters_as_their_published_files(name: str, params: int) -> None:
    assert total_params(model_preset(name)) == params


def test_gpt3_has_174_6_billion_parameters_with_its_tied_head_once() -> None:
    model = model_preset("gpt3-175b")
    assert total_params(model) / 1e9 == pytest.approx(174.6, abs=0.05)
    held = sum(block.params for block in blocks(model))
    assert held - total_params(model) == model.vocab * model.hidden


def test_backward_is_its_two_halves_for_every_block() -> None:
    for block in blocks(model_preset("tiny-llama")):
        both = block.backward_flops(64, 32).total
        assert both == 2 * block.forward_flops(64, 32).total
        halves = (
            block.input_gradient_flops(64, 32).total + block.weight_gradient_flops(64, 32).total
        )
        assert both == halves


def test_tensor_and_sequence_parallelism_divide_what_they_should() -> None:
    model = model_preset("llama-2-7b")
    whole = act.layer_activations(model, 2048)
    four = act.layer_activations(model, 2048, tensor=4)
    assert four["gate"] * 4 == whole["gate"] and four["input"] == whole["input"]
    both = act.layer_activation_bytes(model, 2048, tensor=4, sequence_parallel=True)
    assert both * 4 == sum(whole.values())


@given(
    load=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    one=st.lists(st.integers(1, 12), min_size=4, max_size=4),
    layers=st.integers(4, 9),
    least=st.integers(0, 1),
    late=st.booleans(),
)
def test_layers_are_spread_as_well_as_in_the_best_of_all_splits(
    load: list[int], one: list[int], layers: int, least: int, late: bool
) -> None:
    each = one[: len(load)]

    def fullest(split: tuple[int, ...]) -> int:
        return max(fixed + n * of for fixed, n, of in zip(load, split, each, strict=True))

    splits = product(range(least, layers + 1), repeat=len(load))
    chosen = spread(layers, load, each, least=least, late=late)
    assert sum(chosen) == layers and min(chosen) >= least
    assert fullest(chosen) == min(fullest(s) for s in splits if sum(s) == layers)


def test_among_equal_stages_the_later_or_the_earlier_ones_hold_more_layers() -> None:
    assert spread(5, [0, 0, 0], [1, 1, 1]) == (1, 2, 2)
    assert spread(5, [0, 0, 0], [1, 1, 1], late=False) == (2, 2, 1)


def test_the_balanced_split_counts_the_embedding_and_the_head() -> None:
    model = model_preset("small-qwen")
    embedding, layer, *_, head = (3 * b.forward_flops(64, 64).total for b in blocks(model))
    assert balanced_layers(model, 3, 64) == spread(model.layers, [embedding, 0, head], [layer] * 3)
