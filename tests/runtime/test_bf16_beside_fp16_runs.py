"""Ranks that compute in bf16 beside ranks that compute in fp16, and in fp32, on real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from runs_made import Setting, Unlike
from test_unlike_dtype_runs import FIRST_HALF, SECOND_HALF, assert_held, assert_near
from training import train

# A host that is "older" computes in fp16 alone, one that is "old" in fp32 alone; each has one
# device. All send in the job's dtype: bf16 here, fp16 below.
BF16_SENT = Setting("1f1b", dtype="bf16", learning_rate=1e-3, loss_scale=1024.0, older=(1,))
FP16_SENT = replace(BF16_SENT, dtype="fp16", dtypes=(("process", "bf16"),))
SENT = pytest.mark.parametrize("sent", [BF16_SENT, FP16_SENT], ids=["bf16-sent", "fp16-sent"])
PIPELINE = {"pipeline": 2}
PIPELINE_BACK = {"pipeline": 2, "older": (0,)}
GROUP = {"name": "ratrain", "data": 2}
BOTH = {"name": "ratrain", "pipeline": 2, "data": 2, "older": (1, 2)}
ALL_THREE = {"name": "ratrain", "pipeline": 2, "data": 2, "old": (0,), "older": (3,)}
THREE_REPLICAS = {"name": "ratrain", "data": 3, "sequences": 9, "old": (0,)}
DEGREES = {
    "name": "ratrain",
    "older": (2,),
    "devices_per_host": 1,
    "unlike": (Unlike((4,), 4, tensor=(2,)), Unlike((4,), 4)),
}
MEMBERS = {
    "name": "ratrain",
    "unlike": (Unlike((2, 2), 8),),
    "serving": (("0-4", "5-7"), ("all",)),
}

pytestmark = [pytest.mark.slow]


def alone(setting: Setting) -> Setting:
    """The same training in fp32 on one process."""
    return Setting(
        "1f1b",
        learning_rate=setting.learning_rate,
        sequences=setting.sequences,
        clip_norm=setting.clip_norm,
        model=setting.model,
    )


@pytest.mark.matrix
@SENT
@pytest.mark.parametrize(
    "where",
    [PIPELINE, PIPELINE_BACK, GROUP, BOTH, ALL_THREE, THREE_REPLICAS, DEGREES, MEMBERS],
    ids=str,
)
def test_ranks_of_bf16_and_fp16_train_as_one_process_of_fp32_does(
    sent: Setting, where: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = replace(sent, **where)
    result = train(crew, setting, tmp_path / "unlike")
    assert_near(result, train(crew, alone(setting), tmp_path / "alone"))
    assert_held(result)
    assert result.loss_scales == {1024.0}, "no step overflowed"


@pytest.mark.matrix
@SENT
@pytest.mark.parametrize("where", [GROUP, BOTH, ALL_THREE, DEGREES], ids=str)
def test_every_schedule_level_and_timing_of_bf16_and_fp16_has_the_same_bits(
    sent: Setting, where: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = replace(sent, **where)
    first = train(crew, setting, tmp_path / "ratrain")
    others: list[dict[str, Any]] = [
        {"name": "1f1b", "sharding": 0},
        {"name": "gpipe", "sharding": 1},
        {"name": "zb-h1", "sharding": 2},
        {"name": "pe-zero", "sharding": 3},
    ]
    for number, changes in enumerate(others):
        other = train(crew, replace(setting, **changes), tmp_path / str(number))
        assert not other.differences(first), changes
        assert_held(other)
    assert not train(crew, setting, tmp_path / "late", delays=3).differences(first)


@pytest.mark.matrix
@SENT
@pytest.mark.parametrize("collective", ["ring", "hierarchical"])
def test_every_collective_and_level_of_bf16_and_fp16_has_the_sums_that_it_says(
    sent: Setting, collective: str, crew: Crew, tmp_path: Path
) -> None:
    """Two hosts of two replicas each."""
    setting = replace(sent, **GROUP | {"data": 4, "devices_per_host": 2}, collective=collective)
    first = train(crew, replace(setting, sharding=2), tmp_path / "2")
    assert_near(first, train(crew, alone(setting), tmp_path / "alone"))
    for changes in ({"sharding": 0}, {"sharding": 3}, {"name": "pe-zero", "sharding": 3}):
        other = train(crew, replace(setting, **changes), tmp_path / str(changes))
        assert not other.differences(first), changes
        assert_held(other)


@pytest.mark.matrix
@SENT
@pytest.mark.parametrize("sharding", [0, 2, 3])
@pytest.mark.parametrize("silent", [FIRST_HALF, SECOND_HALF], ids=["first", "second"])
def test_a_replica_has_the_bits_of_its_own_16_bits_beside_one_whose_tokens_do_not_count(
    sent: Setting, silent: tuple[int, ...], sharding: int, crew: Crew, tmp_path: Path
) -> None:
    setting = replace(sent, **GROUP, silent=silent, sharding=sharding)
    mixed = train(crew, setting, tmp_path / "mixed")
    computed = "bf16" if silent == SECOND_HALF else "fp16"
    alike = replace(setting, older=(), dtypes=(("process", computed),))
    assert not mixed.differences(train(crew, alike, tmp_path / "alike"))


@pytest.mark.matrix
@SENT
@pytest.mark.parametrize(
    "changes",
    [
        {"accumulation": "sharded"},
        {"gradient_dtype": "16 bits"},
        {"gradient_dtype": "16 bits", "accumulation": "sharded"},
        {"error_feedback": True, "clip_norm": 0.5},
        {"model": (("tie_word_embeddings", True),)},
        {"validate_every": 1},
        {"network": "staged"},
        {"overflow": "unit"},
    ],
    ids=str,
)
def test_bf16_beside_fp16_goes_with_what_else_a_job_asks_for(
    sent: Setting, changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = replace(sent, **BOTH, **changes)
    if setting.gradient_dtype is not None:
        setting = replace(setting, gradient_dtype=setting.dtype)
    result = train(crew, setting, tmp_path / "unlike")
    assert_near(result, train(crew, alone(setting), tmp_path / "alone"))
    assert_held(result)


@pytest.mark.matrix
@SENT
@pytest.mark.parametrize("where", [PIPELINE, GROUP, ALL_THREE], ids=str)
def test_a_step_that_overflows_in_fp16_is_skipped_by_all_ranks_which_scale_alike(
    sent: Setting, where: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = replace(sent, **where, loss_scale=2.0**40)
    result = train(crew, setting, tmp_path / "unlike")
    assert result.loss_scales == {2.0**37}
    begun = train(crew, replace(setting, end_step=1), tmp_path / "one")
    assert all(
        ours[0].tobytes() == theirs[0].tobytes()
        for ours, theirs in zip(result.units.values(), begun.units.values(), strict=True)
    )
