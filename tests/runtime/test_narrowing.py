"""Gradients add up in fp32 and are rounded once, in their own memory, before they are sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import made
from runs_made import Setting, write_job

from ratrain.cost.scratch import ON_CPU
from ratrain.errors import SpecError
from ratrain.models.functions.rows import Rows
from ratrain.models.parameters import lay_out
from ratrain.models.weights import Weights
from ratrain.plan.layout.jobs import load_job
from ratrain.runtime.step.exchange.narrowing import narrowed
from ratrain.runtime.step.schedule import schedule_of

BITS_16 = [torch.bfloat16, torch.float16]


@settings(max_examples=40, deadline=None)
@given(
    length=st.one_of(
        st.integers(0, 2000),
        st.integers(-3, 3).map(lambda more: ON_CPU.narrowed + more),
        st.integers(-3, 3).map(lambda more: 3 * ON_CPU.narrowed + more),
    ),
    dtype=st.sampled_from(BITS_16),
    seed=st.integers(0, 99),
)
def test_a_narrowed_tensor_is_the_rounded_one_in_the_same_memory(
    length: int, dtype: torch.dtype, seed: int
) -> None:
    wide = torch.randn(length, generator=torch.Generator().manual_seed(seed))
    rounded, place = wide.to(dtype), wide.data_ptr()
    narrow = narrowed(wide, dtype)
    assert torch.equal(narrow, rounded)
    assert narrow.data_ptr() == place and narrow.is_contiguous()
    assert narrowed(narrow, dtype) is narrow


@pytest.mark.parametrize("dtype", BITS_16)
def test_many_small_gradients_are_not_lost_beside_a_large_sum(dtype: torch.dtype) -> None:
    """4,000 gradients of 1 are 4,000; in 8 or 11 bits the sum stands still at 256 or 2,048."""
    weights = Weights(lay_out([("layer.weight", (8, 16)), ("norm.weight", (16,))]))
    ones, flat = torch.ones((1, 8), dtype=dtype), torch.zeros(weights.layout.size)
    weights.attach_gradient(flat)
    for _ in range(4000):
        weights.add_product("layer.weight", Rows(ones), Rows(torch.ones((1, 16), dtype=dtype)))
        weights.add("norm.weight", torch.ones(16))
    for parameter in weights.layout.parameters:
        assert (flat[parameter.offset : parameter.end] == 4000).all()


@pytest.mark.parametrize("dtype", BITS_16)
def test_a_word_that_occurs_often_gets_all_of_its_gradient(dtype: torch.dtype) -> None:
    weights = Weights(lay_out([("embedding.tokens", (4, 16))]))
    flat = torch.zeros(weights.layout.size)
    weights.attach_gradient(flat)
    rows = torch.tensor([3, 1] * 3000)
    weights.add_rows("embedding.tokens", rows, torch.ones((6000, 16), dtype=dtype))
    assert flat.view(4, 16).sum(1).tolist() == [0, 3000 * 16, 0, 3000 * 16]


# ---- jobs, plans and bills ---------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", ["local", "sharded"])
def test_a_16_bit_run_counts_fp32_gradients_unless_it_is_told_otherwise(
    accumulation: str, tmp_path: Path
) -> None:
    setting = Setting(dtype="bf16", data=2, accumulation=accumulation)
    wide = made(tmp_path / "fp32", setting)
    lean = made(tmp_path / "bf16", replace(setting, gradient_dtype="bf16"))
    assert (wide.read_spec().gradient_dtype, lean.read_spec().gradient_dtype) == ("fp32", "bf16")
    for family in ("gradient", "shard"):
        sizes = [
            [
                held.size_bytes
                for op in schedule_of(run.read_program(), 0).ops
                for held in op.births
                if held.family == family
            ]
            for run in (wide, lean)
        ]
        assert sizes[0] == [2 * size for size in sizes[1]], family
    bounds = [json.loads((run.path / "case.json").read_text()) for run in (wide, lean)]
    items = [body["bound_items"][0] for body in bounds]
    held = ["gradient", "transit", "shard"]
    assert sum(items[0].get(name, 0) for name in held) == 2 * sum(
        items[1].get(name, 0) for name in held
    )
    words = [body["headline"][1] for body in bounds]
    assert f"gradients {accumulation} in fp32" in words[0]
    assert f"gradients {accumulation} in bf16" in words[1]


@pytest.mark.parametrize(("dtype", "asked"), [("fp32", "bf16"), ("bf16", "fp16")])
def test_gradients_add_up_in_fp32_or_in_the_job_s_own_dtype(
    dtype: str, asked: str, tmp_path: Path
) -> None:
    job = write_job(tmp_path, Setting(dtype=dtype, gradient_dtype=asked))
    with pytest.raises(
        SpecError, match=f"cannot be summed in {asked} when everything else is in {dtype}"
    ):
        load_job(job)


def test_a_run_of_an_earlier_version_goes_on_in_16_bits(tmp_path: Path) -> None:
    run = made(tmp_path, Setting(dtype="bf16", gradient_dtype="bf16"))
    path = run.path / "run.json"
    body = json.loads(path.read_text())
    del body["gradient_dtype"]
    path.write_text(json.dumps(body))
    assert run.read_spec().precision == "bf16, gradients in bf16"
