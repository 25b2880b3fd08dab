"""Gradients that leave in buckets while backward makes them: the same bits, in less memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from crew import Crew
from runs_made import Setting
from training import train

from ratrain.errors import RatrainError

BYTES = 4000
"""Less than any layer's gradient, and than some of its matrices."""
MATRIX_ELEMENTS = 300 * 32
"""Of the largest matrix. In 16 bits a product of some of its rows may be rounded otherwise."""
WHOLE = Setting(accumulation="sharded", data=2, skeleton="1f1b", timeout_s=240)
"""Of one compute order: the planner may hold more micro-batches in one than in the other."""
CHOICES = [
    WHOLE,
    replace(WHOLE, skeleton="layer-major-2", sequences=8),
    replace(WHOLE, pipeline=2),
    replace(WHOLE, data=3, sequences=6),
    replace(WHOLE, tensor=2),
    replace(WHOLE, sharding=3, pipeline=2),
    replace(WHOLE, recovery="everywhere", clip_norm=0.5),
    replace(WHOLE, without=("update-prefetch",), masked=True, micro_batch=2),
    replace(WHOLE, skeleton="zb-h1", pipeline=2),
    replace(WHOLE, dtype="bf16", data=3, sequences=6, bucket_bytes=MATRIX_ELEMENTS * 4),
    replace(
        WHOLE,
        dtype="fp16",
        gradient_dtype="fp16",
        overflow="unit",
        bucket_bytes=MATRIX_ELEMENTS * 2,
    ),
    replace(WHOLE, gradient_wire="bf16", data=3, sequences=6),
    replace(WHOLE, gradient_wire="bf16", error_feedback=True, data=3, sequences=6),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.matrix
@pytest.mark.parametrize("setting", CHOICES, ids=str)
def test_buckets_give_the_bits_of_whole_gradients_in_less_memory(
    setting: Setting, crew: Crew, tmp_path: Path
) -> None:
    whole = train(crew, replace(setting, bucket_bytes=None), tmp_path / "whole")
    buckets = replace(setting, bucket_bytes=setting.bucket_bytes or BYTES)
    result = train(crew, buckets, tmp_path / "buckets", delays=1)
    assert not result.differences(whole)
    assert result.norms == whole.norms
    ranks = zip(result.ledger_peaks, result.bounds, whole.bounds, strict=True)
    for peak, bound, bound_of_whole in ranks:
        assert peak <= bound < bound_of_whole


def test_a_norm_head_s_gradient_leaves_in_buckets_too(crew: Crew, tmp_path: Path) -> None:
    setting = replace(WHOLE, model=(("model_type", "baichuan"), ("vocab_size", 125696)))
    whole = train(crew, replace(setting, steps=2), tmp_path / "whole")
    buckets = replace(setting, steps=2, bucket_bytes=1_000_000)
    assert not train(crew, buckets, tmp_path / "buckets").differences(whole)


def test_a_job_that_fits_in_buckets_alone_trains_in_them(crew: Crew, tmp_path: Path) -> None:
    setting = replace(WHOLE, recovery="everywhere")  # nothing is left to recover instead
    whole = train(crew, setting, tmp_path / "whole")
    room = replace(setting, bucket_bytes=BYTES)
    free = train(crew, room, tmp_path / "free")
    budget = max(free.bounds)
    assert budget < max(whole.bounds)
    with pytest.raises(RatrainError, match="more than the budget"):
        train(crew, replace(setting, budget_bytes=budget), tmp_path / "refused")
    tight = train(crew, replace(room, budget_bytes=budget), tmp_path / "tight")
    assert not tight.differences(whole)
    assert max(tight.ledger_peaks) <= budget < max(whole.ledger_peaks)
