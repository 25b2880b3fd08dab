"""Nothing is called wrong that rounds as it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from their_models import THEIRS, written
from tiny_models import LLAMA, MODELS, batch_of, running
from torch import Tensor
from wrong_kernels import checked, step

from ratrain.check.bounds import BOUNDS, MOVES, exact_results, limits
from ratrain.check.call import Call
from ratrain.check.compare import compare
from ratrain.check.device import Checked
from ratrain.check.scatter import Drawn
from ratrain.check.units import INPUT_GRADIENT, OUTPUT, Given, compare_unit
from ratrain.describe.model import ModelSpec
from ratrain.devices import device_of_kind
from ratrain.devices.operators import Intercepting

DTYPES = torch.float32, torch.bfloat16, torch.float16


def spec_of(name: str, folder: Path) -> ModelSpec:
    return MODELS[name] if name in MODELS else written(name, folder / "model")[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *THEIRS])
def test_a_step_of_any_family_in_any_dtype_is_right(name: str, tmp_path: Path) -> None:
    device, _ = checked(lambda *_: NotImplemented)
    spec = spec_of(name, tmp_path)
    for dtype in DTYPES:
        step(device, spec, dtype, micro_batches=1)
    assert not [row for row in device.record.rows if row.wrong or row.wrote]
    assert not device.record.uncompared
    assert all(row.rule == "declared" for row in device.record.rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "alibi", "gpt2", "gemma2", "qwen3"])
def test_a_step_on_an_emulated_chip_is_right(name: str, tmp_path: Path) -> None:
    device = Checked(device_of_kind("mt3000"))
    device.where = lambda op, _: op.where
    step(device, spec_of(name, tmp_path), torch.float16, micro_batches=1)
    assert not [row for row in device.record.rows if row.wrong or row.wrote]


SHAPES = st.tuples(*[st.integers(1, 40)] * 3)


@given(SHAPES, st.sampled_from(DTYPES), st.integers(-18, 12), st.integers(0, 9))
def test_products_of_any_size_and_scale_are_right_and_none_is_so_if_one_term_is_left_out(
    shape: tuple[int, int, int], dtype: torch.dtype, exponent: int, seed: int
) -> None:
    m, n, k = shape
    draw = torch.Generator().manual_seed(seed)
    a = (torch.randn(m, k, generator=draw) * 2.0**exponent).to(dtype)
    b = torch.randn(k, n, generator=draw).to(dtype)
    call = Call(torch.ops.aten.mm.default, (a, b), {})
    right = compare(call, [a @ b])
    assert right is not None and not right.wrong
    exact = a.double() @ b.double()
    less = a.clone()
    less[:, 0] = 0
    without = (less.double() @ b.double()).to(dtype)
    lost = (exact - without.double()).abs().max() > 0.1 * exact.abs().max()
    difference = compare(call, [without])
    assert difference is not None
    if lost and exponent > -10:  # else it may be below fp16's smallest number
        assert difference.wrong


def test_an_operator_without_a_rule_is_judged_by_its_measured_condition() -> None:
    x = torch.linspace(0.5, 3, 64)
    call = Call(torch.ops.aten.lgamma.default, (x,), {})
    assert call.family not in BOUNDS and call.family not in MOVES
    right, off = compare(call, [x.lgamma()]), compare(call, [x.lgamma() + 1e-3])
    assert right is not None and off is not None
    assert not right.wrong and off.wrong


def test_an_operator_on_whole_numbers_must_give_the_same_ones() -> None:
    x = torch.arange(6)
    call = Call(torch.ops.aten.remainder.Scalar, (x, 4), {})
    assert call.family not in BOUNDS and call.family not in MOVES
    right, off = compare(call, [x % 4]), compare(call, [x % 3])
    assert right is not None and off is not None
    assert not right.wrong and off.wrong


def test_what_only_moves_values_must_have_their_bits() -> None:
    x = torch.randn(5, 4)
    call = Call(torch.ops.aten.clone.default, (x,), {})
    right, off = compare(call, [x.clone()]), compare(call, [x * (1 + 1e-7)])
    assert right is not None and off is not None
    assert not right.wrong and off.wrong
    narrow = Call(torch.ops.aten._to_copy.default, (x,), {"dtype": torch.bfloat16})
    rounded = compare(narrow, [x.bfloat16()])
    assert rounded is not None and 0 < rounded.times <= 0.5


def test_what_overflows_may_be_infinite_and_nothing_else_may() -> None:
    x = torch.tensor([6e4, 3.0], dtype=torch.float16)
    call = Call(torch.ops.aten.mul.Tensor, (x, x), {})
    right = compare(call, [x * x])
    wrong = compare(call, [torch.tensor([torch.inf, torch.inf], dtype=torch.float16)])
    assert right is not None and wrong is not None
    assert not right.wrong and wrong.wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_that_err_by_chance_stay_within_their_rules(dtype: torch.dtype) -> None:
    x, y = torch.randn(8, 16).to(dtype), torch.randn(16, 4).to(dtype)
    call = Call(torch.ops.aten.mm.default, (x, y), {})
    exact = exact_results(call)
    (within,) = limits(call, exact, [dtype])
    with Intercepting(Drawn(3).answer):
        made = x @ y
    rounding = within.min() * 0 + torch.finfo(dtype).eps * exact[0].abs()
    assert not torch.equal(made, x @ y)
    assert bool(((made.double() - exact[0]).abs() <= within + rounding).all())


# ---- units ----------------------------------------------------------------------------------


def given_unit(dtype: torch.dtype, *, backward: bool) -> tuple[Given, Any]:
    model = running(LLAMA, dtype=dtype)
    unit, batch = model.units["1"], batch_of(LLAMA)
    x = torch.randn(*batch.tokens.shape, LLAMA.hidden).to(dtype)
    seed = torch.randn_like(x) if backward else None
    return Given(unit, model.views["1"], None, x, batch, torch.float32, seed), model


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_unit_is_right_forward_and_back(dtype: torch.dtype) -> None:
    forward, _ = given_unit(dtype, backward=False)
    assert [(n, d.wrong) for n, d in compare_unit(forward, forward.computed())] == [(OUTPUT, False)]
    backward, _ = given_unit(dtype, backward=True)
    found = dict(compare_unit(backward, backward.computed()))
    assert INPUT_GRADIENT in found and "attention.q.weight" in found
    assert not [name for name, difference in found.items() if difference.wrong]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_unit_with_one_wrong_gradient_is_wrong_in_that_alone(dtype: torch.dtype) -> None:
    backward, _ = given_unit(dtype, backward=True)
    made: dict[str, Tensor] = backward.computed()
    made["mlp.up.weight"] = made["mlp.up.weight"] * 1.1
    wrong = [name for name, difference in compare_unit(backward, made) if difference.wrong]
    assert wrong == ["mlp.up.weight"]
