"""What a layer does between its products, in C: the same as in torch, but for rounding."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import MODELS, batch_of, running
from torch import Tensor
from torch.nn import functional

from ratrain.models import kernels
from ratrain.models.functions.norm import rms_norm, rms_norm_gradients
from ratrain.models.functions.positions import Rotary, rotary_table, rotate_
from ratrain.models.shapes import unit_names

EPSILON = 1e-5
C = kernels._built()
pytestmark = pytest.mark.skipif(
    C is None and shutil.which("cc") is None, reason="needs a C compiler at install"
)
ROWS, WIDTHS = st.integers(1, 9), st.integers(1, 80)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul_(scale)


def close(ours: Tensor, wide: Tensor, within: float = 1e-6) -> bool:
    """Whether fp32 figures are those in fp64, relative to the largest."""
    return bool((ours - wide).abs().max() <= within * wide.abs().max())


@given(ROWS, WIDTHS, st.sampled_from((1e-3, 1.0, 1e4)))
def test_a_norm_is_that_of_torch_in_fp64(rows: int, width: int, scale: float) -> None:
    x, weight = drawn(rows, width, scale=scale), drawn(width, seed=1)
    ours, rstd = rms_norm(x, weight, EPSILON)
    wide, wide_rstd = rms_norm(x.double(), weight.double(), EPSILON)
    assert close(ours, wide)
    assert close(rstd, wide_rstd)


@given(ROWS, WIDTHS, st.booleans())
def test_gradients_of_a_norm_are_those_of_torch_in_fp64(
    rows: int, width: int, residual: bool
) -> None:
    x, grad, weight = drawn(rows, width), drawn(rows, width, seed=1), drawn(width, seed=2)
    more = drawn(rows, width, seed=3) if residual else None
    _, rstd = rms_norm(x, weight, EPSILON)
    ours = rms_norm_gradients(grad, x, rstd, weight, more)
    wide = rms_norm_gradients(
        grad.double(),
        x.double(),
        rstd.double(),
        weight.double(),
        None if more is None else more.double(),
    )
    # The gradient of x is a small difference where a row has few elements.
    assert (ours[0] - wide[0]).abs().max() <= 2e-5
    assert close(ours[1], wide[1], 5e-6)


@given(st.integers(1, 300), st.sampled_from((0.1, 1.0, 30.0)))
def test_gating_and_its_gradients_are_those_of_torch_in_fp64(count: int, scale: float) -> None:
    gate, up, grad = (drawn(1, count, seed=seed, scale=scale) for seed in range(3))
    assert C is not None
    assert close(C.gated(gate, up), functional.silu(gate.double()) * up.double())
    d_gate, d_up = gate.clone(), up.clone()
    C.gated_gradients_(grad, d_gate, d_up)
    wide_gate, wide_up = gate.double().requires_grad_(), up.double().requires_grad_()
    (functional.silu(wide_gate) * wide_up).backward(grad.double())
    assert wide_gate.grad is not None
    assert wide_up.grad is not None
    assert close(d_gate, wide_gate.grad)
    assert close(d_up, wide_up.grad)


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.integers(1, 20))
def test_positions_turn_as_torch_turns_them_in_fp64(
    batch: int, length: int, heads: int, half: int
) -> None:
    x = drawn(batch, length, heads, 2 * half)
    cos, sin, _ = rotary_table(length, Rotary(2 * half, 10000.0), x.device)
    wide = rotate_(x.double(), cos.double(), sin.double())
    assert close(rotate_(x, cos, sin), wide)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), 1e20, -1e20])
def test_what_is_not_finite_does_not_look_finite_and_large_values_saturate(wrong: float) -> None:
    assert C is not None
    gate, up, grad = torch.full((1, 40), wrong), torch.ones(1, 40), torch.ones(1, 40)
    out = C.gated(gate, up)
    normed, _ = rms_norm(gate, torch.ones(40), EPSILON)
    C.gated_gradients_(grad, gate, up)
    if abs(wrong) == 1e20:
        assert torch.allclose(out, functional.silu(torch.full((1, 40), wrong)))
        assert gate.isfinite().all()
    else:
        assert not out.isfinite().any()
        assert not up.isfinite().any()
        assert not normed.isfinite().any()


def test_inputs_need_not_be_contiguous() -> None:
    x, grad, weight = drawn(12, 8).t(), drawn(12, 8, seed=1).t(), drawn(12, seed=2)
    ours, whole = rms_norm(x, weight, EPSILON), rms_norm(x.contiguous(), weight, EPSILON)
    assert ours[0].equal(whole[0])
    made = rms_norm_gradients(grad, x, ours[1], weight, x)
    again = rms_norm_gradients(grad.contiguous(), x.contiguous(), whole[1], weight, x.contiguous())
    assert made[0].equal(again[0])
    assert made[1].equal(again[1])
    turned = drawn(1, 3, 2, 8)
    cos, sin, _ = rotary_table(3, Rotary(8, 10000.0), x.device)
    apart = turned.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.allclose(rotate_(apart, cos, sin), rotate_(turned, cos, sin))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_same_loss_and_gradients_without_the_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, batch = MODELS[name], batch_of(MODELS[name])
    fused, plain = running(spec), running(spec)
    loss = fused.loss(batch)
    loss.backward()
    monkeypatch.setattr(kernels, "kernels_for", lambda _: None)
    wanted = plain.loss(batch)
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    for unit in unit_names(spec):
        expected = plain.gradients[unit]
        assert (fused.gradients[unit] - expected).abs().max() <= 2e-6 * expected.abs().max()


def test_torch_computes_where_it_has_several_threads_and_other_dtypes() -> None:
    assert kernels.kernels_for(drawn(2, 2)) is not None
    assert kernels.kernels_for(drawn(2, 2).to(torch.bfloat16)) is None
    assert kernels.kernels_for(drawn(2, 2).double()) is None
    torch.set_num_threads(2)
    assert kernels.kernels_for(drawn(2, 2)) is None


def test_bits_do_not_depend_on_the_width_of_the_processors_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    built, source = tmp_path / "narrow.so", Path(kernels.__file__).with_suffix(".c")
    flags = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    command = [compiler, *flags, "-DONE_WIDTH", "-shared", "-fPIC", str(source), "-lm"]
    subprocess.run([*command, "-o", str(built)], check=True)
    narrow = ctypes.CDLL(str(built))
    monkeypatch.setattr(kernels, "library", lambda *_: narrow)
    kernels._built.cache_clear()
    one_width = results()
    monkeypatch.undo()
    kernels._built.cache_clear()
    assert all(a.equal(b) for a, b in zip(results(), one_width, strict=True))


def results() -> list[Tensor]:
    """What each kernel makes of some figures."""
    c = kernels._built()
    assert c is not None
    x, grad, weight = drawn(5, 77), drawn(5, 77, seed=1), drawn(77, seed=2)
    normed, rstd = rms_norm(x, weight, EPSILON)
    made = [normed, rstd, *rms_norm_gradients(grad, x, rstd, weight, x), c.gated(x, grad)]
    gate, up = x.clone(), grad.clone()
    c.gated_gradients_(normed, gate, up)
    turned = drawn(2, 5, 3, 14)
    return [*made, gate, up, rotate_(turned, *rotary_table(5, Rotary(14, 10000.0), x.device)[:2])]


def test_lanes_that_ask_for_operators_at_once_get_the_same_ones() -> None:
    kernels._built.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(kernels.declare_operators) for _ in range(32)]
        first, *others = (each.result() for each in asked)
    assert all(each is first for each in others)
