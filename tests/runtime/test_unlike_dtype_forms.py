"""Ranks that compute in different dtypes, with gradients in buckets and with averaged weights, on
real processes; and checkpoints of one mix of dtypes that another resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crew import Crew
from launched import cut_short, made, saved_steps, start
from runs_made import Setting
from training import train

MATRIX_ELEMENTS = 300 * 32
"""Of the largest matrix, which 16-bit products are not cut into pieces of."""
IN_BUCKETS = Setting(
    accumulation="sharded", data=2, skeleton="1f1b", dtype="bf16", old=(1,), timeout_s=240
)
OTHERS = Setting("1f1b", dtype="bf16", loss_scale=1024.0, overflow="unit", learning_rate=1e-3)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.matrix
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"old": (0,)},
        {"dtype": "fp16", "clip_norm": 0.5},
        {"old": (), "older": (1,)},
        {"old": (), "older": (0,), "dtype": "fp16", "dtypes": (("process", "bf16"),)},
        {"data": 3, "sequences": 6, "older": (0,), "error_feedback": True},
        {"pipeline": 2, "old": (0, 3), "sharding": 3},
        {"gradient_dtype": "bf16"},
        {"gradient_dtype": "bf16", "data": 3, "sequences": 6, "older": (0,), "overflow": "unit"},
    ],
    ids=str,
)
def test_buckets_of_unlike_dtypes_give_the_bits_of_whole_gradients_in_less_memory(
    changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = replace(IN_BUCKETS, **changes)
    whole = train(crew, setting, tmp_path / "whole")
    buckets = replace(setting, bucket_bytes=4 * MATRIX_ELEMENTS)
    result = train(crew, buckets, tmp_path / "buckets", delays=1)
    assert not result.differences(whole)
    assert result.norms == whole.norms
    for peak, bound, of_whole in zip(result.ledger_peaks, result.bounds, whole.bounds, strict=True):
        assert peak <= bound <= of_whole
    assert sum(result.bounds) < sum(whole.bounds)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("other", ["old", "older"])
def test_averaged_weights_of_unlike_dtypes_are_the_mean_of_replicas_that_trained_alone(
    dtype: str, other: str, crew: Crew, tmp_path: Path
) -> None:
    computed = "fp32" if other == "old" else "fp16"
    named: tuple[tuple[str, str], ...] = (("process", "bf16"),)
    hosts: dict[str, Any] = {other: (1,)}
    setting = replace(OTHERS, data=2, average_every=3, dtype=dtype, dtypes=named, **hosts)
    together = train(crew, setting, tmp_path / "together")
    alone = [
        train(
            crew,
            replace(OTHERS, sequences=4, first=first, dtype="fp16", dtypes=(("process", kind),)),
            tmp_path / str(first),
        )
        for first, kind in ((0, "bf16"), (4, computed))
    ]
    for unit, buffers in together.units.items():
        for kind, mean in enumerate(buffers):
            a, b = (result.units[unit][kind] for result in alone)
            assert np.array_equal(mean, (a + b) / np.float32(2)), (unit, kind)
    assert all(p <= b for p, b in zip(together.ledger_peaks, together.bounds, strict=True))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "other",
    [
        {"older": (0, 3)},
        {"old": (0,), "older": (2,)},
        {"pipeline": 1, "old": (1,)},
        {"dtype": "fp16", "dtypes": (("process", "bf16"),), "older": (1,), "sharding": 0},
        {"dtype": "fp32", "pipeline": 1, "data": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("sent", ["bf16", "fp16"])
def test_a_checkpoint_of_one_mix_of_dtypes_is_resumed_by_another(
    sent: str, other: dict[str, Any], tmp_path: Path
) -> None:
    setting = Setting(
        pipeline=2, data=2, dtype=sent, older=(1, 2), dtypes=(("process", "bf16"),), steps=6,
        every=2, keep=9, learning_rate=1e-3, loss_scale=1024.0,
    )  # fmt: skip
    whole = made(tmp_path / "whole", setting)
    start(whole)
    assert saved_steps(whole) == [2, 4, 6]
    plain = replace(setting, dtype="bf16", dtypes=(), older=())
    elsewhere = cut_short(whole, tmp_path / "elsewhere", replace(plain, **other), 4)
    start(elsewhere)
    losses = [[row["loss"] for row in run.read_metrics()] for run in (whole, elsewhere)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
