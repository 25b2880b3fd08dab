"""Sequence parallelism on real processes: one rank's numbers, in what was proved."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from launched import cut_short, made, saved_steps, start
from runs_made import Setting, Unlike, write_job
from test_tensor import BIASED, WIDE, assert_near
from training import Result, train

from ratrain.errors import SpecError
from ratrain.program.kind import Lane
from ratrain.program.skeletons import layer_major_name
from ratrain.runtime.run.prepare import RunRequest, prepare_run
from ratrain.runtime.run.reports.merge import write_measured
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run_folder import RunFolder

slow = pytest.mark.slow

SIX_HEADS = (("hidden_size", 36), ("num_attention_heads", 6), ("num_key_value_heads", 6))
TIED = (*WIDE, ("tie_word_embeddings", True))
ALONE = Setting("1f1b", steps=3, model=WIDE, learning_rate=1e-3, clip_norm=0.5)
DIVIDED = replace(ALONE, name="ratrain", tensor=2, sequence_parallel=True)
CHOICES: list[dict[str, Any]] = [
    {"name": "1f1b"},
    {"name": "tensor-parallel-heavy", "sharding": 1},
    {"name": "zb-h1", "sharding": 3},
    {"name": "zb-h1", "sharding": 0, "pipeline": 2, "data": 1},
    {"recovery": "everywhere", "sharding": 2},
    {"recovery": "selective", "skeleton": layer_major_name(2)},
    {"name": "backward-checkpoint", "pipeline": 2, "data": 1},
]
UNLIKE = [
    ((Unlike((2, 2), 8, tensor=(1, 2)),), {}),
    ((Unlike((2, 2), 4, micro_batch=2, tensor=(2, 3)),), {"model": SIX_HEADS}),
    ((Unlike((1, 3), 5, tensor=(2, 1)), Unlike((4,), 3, tensor=(2,))), {"network": "staged"}),
]


@pytest.fixture(scope="module")
def six() -> Generator[Crew]:
    with Crew(6) as made:
        yield made


def assert_held(result: Result) -> None:
    """Every rank stayed within what was proved for it."""
    for peak, bound in zip(result.ledger_peaks, result.bounds, strict=True):
        assert 0 < peak <= bound


@pytest.mark.matrix
@slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pipeline": 2, "model": TIED},
        {"data": 2, "model": BIASED, "sharding": 3},
        {"tensor": 3, "pipeline": 2, "model": SIX_HEADS, "sequence_length": 15, "micro_batch": 2},
        {"pipeline": 2, "network": "staged", "masked": True},
    ],
    ids=str,
)
def test_divided_sequences_give_one_rank_s_numbers(
    changes: dict[str, Any], six: Crew, tmp_path: Path
) -> None:
    setting = replace(DIVIDED, **changes)
    kept = ("model", "masked", "sequence_length", "micro_batch")
    alone = replace(ALONE, **{key: value for key, value in changes.items() if key in kept})
    result = train(six, setting, tmp_path / "divided")
    assert_near(result, train(six, alone, tmp_path / "alone"))
    assert_held(result)


@slow
def test_every_schedule_of_divided_sequences_has_the_same_bits(six: Crew, tmp_path: Path) -> None:
    usual = {
        layout: train(six, DIVIDED.at(layout), tmp_path / "p{}d{}".format(*layout))
        for layout in ((1, 2), (2, 1))
    }
    for number, changes in enumerate(CHOICES):
        setting = replace(DIVIDED, **{"data": 2, **changes})
        result = train(six, setting, tmp_path / str(number), delays=number)
        assert not result.differences(usual[setting.layout]), str(setting)
        assert_held(result)


@slow
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_divided_sequences_train_in_sixteen_bits(dtype: str, six: Crew, tmp_path: Path) -> None:
    setting = replace(DIVIDED, dtype=dtype, pipeline=2)
    result = train(six, setting, tmp_path / "divided")
    other = train(six, replace(setting, name="zb-h1"), tmp_path / "other")
    assert not result.differences(other)
    alone = train(six, replace(ALONE, dtype=dtype), tmp_path / "alone")
    assert result.loss_values == pytest.approx(alone.loss_values, rel=2e-3)
    assert_held(result)


@pytest.mark.matrix
@slow
@pytest.mark.parametrize(("replicas", "changes"), UNLIKE, ids=["1+2", "2+3", "2+1 beside 2"])
def test_stages_of_unlike_degrees_pass_their_own_parts_on(
    replicas: tuple[Unlike, ...], changes: dict[str, Any], six: Crew, tmp_path: Path
) -> None:
    setting = replace(DIVIDED, unlike=replicas, sequence_length=12, tensor=1, **changes)
    alone = replace(ALONE, sequence_length=12, model=setting.model)
    result = train(six, setting, tmp_path / "unlike")
    assert_near(result, train(six, alone, tmp_path / "alone"))
    assert_held(result)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An undisturbed run of divided sequences with its checkpoints, calibrated first."""
    setting = replace(DIVIDED, pipeline=2, steps=4, every=2)
    folder = made(tmp_path_factory.mktemp("whole"), setting, calibrate=True)
    start(folder)
    assert saved_steps(folder) == [2, 4]
    return folder


@slow
def test_a_run_resumes_without_divided_sequences_and_with_them_again(
    whole: RunFolder, tmp_path: Path
) -> None:
    plain = replace(DIVIDED, sequence_parallel=False, steps=4, every=1, keep=4)
    folder = cut_short(whole, tmp_path / "plain", plain, 2)
    start(folder)
    again = replace(DIVIDED, pipeline=2, steps=4, every=2)
    divided = cut_short(folder, tmp_path / "divided", again, 3)
    start(divided)
    theirs = [row["loss"] for row in whole.read_metrics()]
    for resumed in (folder, divided):
        losses = [row["loss"] for row in resumed.read_metrics()]
        assert len(losses) == 4 and losses == pytest.approx(theirs, rel=1e-6)


@slow
def test_a_run_of_divided_sequences_is_predicted_and_stays_in_its_memory(whole: RunFolder) -> None:
    measured = write_measured(whole, whole.read_spec())
    assert measured is not None
    words = {span.word for span in measured.spans if span.lane == Lane.TENSOR.word}
    assert {"0.0AllReduce_F0", "0.1AllReduce_B0"} <= words
    report = report_of(whole)
    assert report["step_time_s"]["predicted"] > 0
    for row in report["memory"]:
        assert 0 < row["ledger_peak_bytes"] <= row["bound_bytes"] <= row["budget_bytes"]
    calibration = json.loads((whole.path / "prediction.json").read_text())["calibration"]
    units = [unit for member in whole.read_program().setup.members for unit in member.units]
    largest = max(unit.scratch_bytes for unit in units)
    for rank in calibration:
        assert all(0 <= unit["scratch_bytes"] <= largest for unit in rank["units"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor": 3, "model": SIX_HEADS}, "16 tokens of a sequence do not divide among 3 ranks"),
        ({"tensor": 1}, "tensor is 1"),
    ],
)
def test_sequences_that_a_group_cannot_divide_are_refused_before_any_rank_starts(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    setting = replace(DIVIDED, files=("none.txt",), **changes)
    with pytest.raises(SpecError, match=message) as refused:
        prepare_run(RunRequest(write_job(tmp_path, setting)))
    assert "sequence_parallel" in refused.value.place and refused.value.fix
