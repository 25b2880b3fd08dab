"""Error feedback: what rounding takes away from a gradient that is sent comes with the next one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from crew import Crew, grid_routes, network_among
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import made
from runs_made import Setting, write_job
from torch import Tensor
from training import train

from ratrain.cost.scratch import RESIDUAL_ELEMENTS
from ratrain.errors import SpecError
from ratrain.plan.layout.jobs import load_job
from ratrain.runtime.seats import Seats
from ratrain.runtime.step.exchange.buckets import Span
from ratrain.runtime.step.exchange.feedback import Residual

slow = pytest.mark.slow
BF16 = Setting(data=2, gradient_wire="bf16", error_feedback=True, steps=3)
DTYPES = (torch.bfloat16, torch.float16)


def drawn(length: int, seed: int) -> Tensor:
    """Numbers of any size that both 16-bit types hold, and of any sign."""
    dice = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-30, 12, (length,), generator=dice).float().exp2()
    return torch.randn(length, generator=dice) * sizes


# ---- in the arithmetic that is defined ---------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    length=st.one_of(
        st.integers(0, 300), st.integers(-2, 2).map(lambda more: RESIDUAL_ELEMENTS + more)
    ),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from([1.0, 1024.0]),
    twice=st.booleans(),
    seed=st.integers(0, 999),
)
def test_what_is_sent_and_the_new_residual_are_the_gradient_and_the_old_residual(
    length: int, dtype: torch.dtype, scale: float, twice: bool, seed: int
) -> None:
    gradient, before = drawn(length, seed), drawn(length, seed + 1000) / scale
    residual = Residual(before.clone(), torch.zeros(length) if twice else None)
    total = gradient + scale * before
    sent = residual.narrowed(gradient.clone(), dtype, first=True, scale=scale)
    residual.settle(skipped=False)
    assert sent.dtype == dtype and torch.equal(sent, total.to(dtype))
    rest = residual.kept.double() * scale
    assert torch.equal(sent.double() + rest, total.double())


@settings(max_examples=30, deadline=None)
@given(dtype=st.sampled_from(DTYPES), seed=st.integers(0, 999), cut=st.integers(1, 99))
def test_a_gradient_in_buckets_has_the_bits_of_a_whole_one(
    dtype: torch.dtype, seed: int, cut: int
) -> None:
    """In another order, with gaps between its pieces, which are sent as zeros."""
    gradient, before = drawn(100, seed), drawn(100, seed + 1000)
    whole, pieces = Residual(before.clone()), Residual(before.clone())
    sent = whole.narrowed(gradient.clone(), dtype, first=True, scale=1.0)
    bucket = torch.zeros(128)
    spans = [Span(0, cut, 100 - cut), Span(128 - cut, 0, cut)]
    for span in spans:
        bucket[span.at : span.at + span.count] = gradient[span.begin : span.begin + span.count]
    left = pieces.narrowed(bucket, dtype, spans, first=True, scale=1.0)
    for span in spans:
        here, there = (
            slice(span.at, span.at + span.count),
            slice(span.begin, span.begin + span.count),
        )
        assert torch.equal(left[here], sent[there])
    assert not left[100 - cut : 128 - cut].any()
    assert torch.equal(pieces.kept, whole.kept)


@given(seed=st.integers(0, 999), micro_batches=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_a_skipped_step_leaves_the_residual_as_it_was(seed: int, micro_batches: int) -> None:
    before = drawn(50, seed)
    residual = Residual(before.clone(), torch.zeros(50))
    for number in range(micro_batches):
        gradient = drawn(50, seed + number)
        gradient[number] = float("inf")
        residual.narrowed(gradient, torch.float16, first=number == 0, scale=8.0)
    residual.settle(skipped=True)
    assert torch.equal(residual.kept, before)
    fresh = Residual(before.clone(), torch.zeros(50))
    sent = [
        each.narrowed(drawn(50, seed + 7), torch.float16, first=True, scale=4.0)
        for each in (residual, fresh)
    ]
    for each in (residual, fresh):
        each.settle(skipped=False)
    assert torch.equal(sent[0], sent[1]) and torch.equal(residual.kept, fresh.kept)


@given(seed=st.integers(0, 999), dtype=st.sampled_from(DTYPES))
@settings(max_examples=20, deadline=None)
def test_a_constant_gradient_is_sent_in_the_mean_as_it_is(seed: int, dtype: torch.dtype) -> None:
    """Within a rounding step over the number of steps; without feedback the error stays."""
    steps, gradient = 256, drawn(64, seed).abs() + 2.0**-10
    residual, total = Residual(torch.zeros(64)), torch.zeros(64, dtype=torch.float64)
    for _ in range(steps):
        total += residual.narrowed(gradient.clone(), dtype, first=True, scale=1.0).double()
    step = gradient * torch.finfo(dtype).eps
    assert ((total / steps - gradient).abs() <= 2 * step / steps + gradient * 1e-6).all()


# ---- on real networks --------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["direct", "ring"])
@pytest.mark.slow
def test_weights_move_by_gradients_smaller_than_a_rounding_step_with_feedback_alone(
    by: str, crew: Crew
) -> None:
    """Replicas whose gradients all but cancel: 1 + 1/1024 and -1, where bf16 rounds the first to
    1. Their sum is 1/1024 in every step; without feedback nothing of it ever arrives."""
    moved = {fed: crew.ask(2, _descend, fed, by) for fed in (True, False)}
    assert moved[False] == [0.0, 0.0]
    assert moved[True] == pytest.approx([64 / 1024] * 2, abs=2.0**-7)


def _descend(rank: int, world_size: int, fed: bool, by: str) -> float:
    """How far a weight that this rank owns has come after 64 steps of plain descent."""
    seats = Seats(1, world_size, (0,) * world_size, (0,))
    network = network_among(seats, seats.seat(rank), grid_routes(seats), hosts=(0,) * world_size)
    residual, moved = Residual(torch.zeros(128)), 0.0
    for _ in range(64):
        gradient = torch.full((128,), 1 + 2.0**-10 if rank == 0 else -1.0)
        if fed:
            flat = residual.narrowed(gradient, torch.bfloat16, first=True, scale=1.0)
        else:
            flat = gradient.to(torch.bfloat16)
        mine = flat.view(world_size, -1)[rank]
        network.reduce(flat, mine, tuple(range(world_size)), by)
        moved += float(mine[0])
    return moved


# ---- jobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "problem", "fix"),
    [
        (
            Setting(data=2),
            "gradients add up in fp32 and are sent in fp32",
            'gradient_wire = "bf16"',
        ),
        (
            Setting(data=2, dtype="bf16", gradient_dtype="bf16"),
            "gradients add up in bf16 and are sent in bf16",
            'gradient_dtype = "fp32"',
        ),
        (Setting(data=2, average_every=3), "send no gradients", "average_every"),
    ],
)
def test_error_feedback_is_refused_where_nothing_is_rounded(
    setting: Setting, problem: str, fix: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=problem) as error:
        load_job(write_job(tmp_path, replace(setting, error_feedback=True)))
    assert "[schedule] error_feedback" in error.value.place and fix in error.value.fix


def test_a_run_and_its_facts_say_that_errors_are_fed_back(tmp_path: Path) -> None:
    run = made(tmp_path, BF16)
    words = "gradients travel in bf16, error feedback"
    facts = json.loads((run.path / "case.json").read_text())
    assert words in facts["headline"] and facts["facts"]["error_feedback"]
    assert run.read_spec().precision == f"fp32, {words}"
    assert "error_feedback 1" in run.program.read_text()
    half = made(tmp_path / "half", Setting(data=2, dtype="bf16", error_feedback=True))
    assert half.read_spec().precision == "bf16, gradients in fp32, error feedback"


def test_one_replica_sends_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    alone = replace(BF16, data=1, pipeline=2)
    without = made(tmp_path / "without", replace(alone, error_feedback=None))
    assert made(tmp_path / "with", alone).program.read_bytes() == without.program.read_bytes()


# ---- runs --------------------------------------------------------------------------------------


@pytest.mark.matrix
@slow
@pytest.mark.parametrize(
    "choices",
    [
        [BF16, replace(BF16, name="1f1b", sharding=1), replace(BF16, sharding=0)],
        [
            replace(BF16, accumulation="sharded"),
            replace(BF16, accumulation="sharded", bucket_bytes=40_000),
            replace(BF16, name="zb-h1", sharding=3, accumulation="sharded"),
        ],
        [replace(BF16, clip_norm=0.05), replace(BF16, name="gpipe", sharding=0, clip_norm=0.05)],
        [
            replace(BF16, gradient_wire=None, dtype="fp16"),
            replace(BF16, gradient_wire=None, dtype="fp16", name="zb-h1", sharding=3),
        ],
        [
            replace(BF16, model=(("tie_word_embeddings", True),)),
            replace(BF16, model=(("tie_word_embeddings", True),), sharding=0, pipeline=2),
        ],
        [replace(BF16, collective="ring"), replace(BF16, network="staged")],
        [replace(BF16, tensor=2), replace(BF16, tensor=2, sharding=0)],
        [replace(BF16, data=3, sequences=9), replace(BF16, data=3, sequences=9, name="zb-h1")],
    ],
    ids=["levels", "sharded", "clipped", "fp16", "tied", "networks", "tensor", "three"],
)
def test_every_schedule_feeds_back_the_same_bits_within_the_bound(
    choices: list[Setting], crew: Crew, tmp_path: Path
) -> None:
    results = [train(crew, setting, tmp_path / str(n)) for n, setting in enumerate(choices)]
    for result, setting in zip(results, choices, strict=True):
        assert not result.differences(results[0]), str(setting)
        for peak, bound in zip(result.ledger_peaks, result.bounds, strict=True):
            assert peak <= bound
    plain = train(crew, replace(choices[0], error_feedback=None), tmp_path / "plain")
    assert plain.losses != results[0].losses
    same = 1 if choices[0].accumulation == "sharded" else 2  # updates before a residual is sent
    assert plain.losses[:same] == results[0].losses[:same]
