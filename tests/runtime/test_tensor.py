"""Tensor groups: one rank's numbers to rounding, and among themselves the same bits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from crew import Crew
from launched import (
    assert_same_end,
    killer,
    loss_bits,
    made,
    meanwhile,
    saved_steps,
    start,
    steps_done,
)
from runs_made import Setting, write_job
from training import Result, train

from ratrain.errors import RunFailed, SpecError
from ratrain.program.kind import Lane
from ratrain.program.strategies import PASSES, STRATEGIES
from ratrain.runtime.run.export import export_run
from ratrain.runtime.run.prepare import RunRequest, prepare_run
from ratrain.runtime.run.reports.merge import write_measured
from ratrain.runtime.run.trained import trained_model
from ratrain.runtime.run_folder import RunFolder
from ratrain.timeline.timeline import read_timeline

pytestmark = pytest.mark.slow

WIDE = (("num_key_value_heads", 4),)
BIASED = (*WIDE, ("attention_bias", True), ("mlp_bias", True))
GENTLE = Setting("1f1b", steps=4, model=WIDE, learning_rate=1e-3)
LAYOUTS = {"t2": (1, 1), "t2p2": (2, 1), "t2d2": (1, 2)}
INTERLEAVED = [name for name in STRATEGIES if STRATEGIES[name].skeleton == "interleaved"]
CHOICES = [
    *(Setting(name) for name in STRATEGIES if name not in INTERLEAVED),
    *(Setting(without=(left_out,)) for left_out in PASSES),
    *(Setting(recovery=recovery) for recovery in ("keep-all", "everywhere")),
    *(Setting("tensor-parallel-heavy", sharding=level) for level in range(4)),
    *(Setting("zb-h1", sharding=level) for level in (0, 3)),
]


def assert_near(actual: Result, expected: Result) -> None:
    """The same losses, weights and moments, to the rounding of fp32."""
    assert actual.loss_values == pytest.approx(expected.loss_values, rel=1e-6)
    assert actual.units.keys() == expected.units.keys()
    for unit, buffers in actual.units.items():
        for kind, a, b in zip("wmv", buffers, expected.units[unit], strict=True):
            off, largest = float(np.abs(a - b).max()), float(np.abs(b).max())
            assert off <= 1e-5 * largest, f"{unit}/{kind}: by {off:g} of {largest:g}"


@pytest.mark.matrix
@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("name", ["tensor-parallel-heavy", "ratrain", "zb-h1"])
def test_a_tensor_group_gives_one_rank_s_numbers(
    tensor: int, name: str, crew: Crew, tmp_path: Path
) -> None:
    alone = train(crew, GENTLE, tmp_path / "alone")
    group = train(crew, replace(GENTLE, name=name, tensor=tensor), tmp_path / "group")
    assert_near(group, alone)
    assert group.losses != alone.losses or group.differences(alone), "were sums made at all?"


def test_tensor_groups_in_a_pipeline_and_in_replicas_give_one_rank_s_numbers(
    crew: Crew, tmp_path: Path
) -> None:
    alone = train(crew, GENTLE, tmp_path / "alone")
    for name, layout in LAYOUTS.items():
        setting = replace(GENTLE, name="ratrain", tensor=2)
        assert_near(train(crew, setting.at(layout), tmp_path / name), alone)


def test_grouped_keys_are_shared_out_with_their_queries(crew: Crew, tmp_path: Path) -> None:
    setting = replace(GENTLE, model=(("num_key_value_heads", 2),))
    alone = train(crew, setting, tmp_path / "alone")
    assert_near(train(crew, replace(setting, tensor=2), tmp_path / "group"), alone)


@pytest.mark.matrix
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_strategy_gives_the_same_bits(name: str, crew: Crew, tmp_path: Path) -> None:
    usual = train(crew, replace(GENTLE, tensor=2).at(LAYOUTS[name]), tmp_path / "usual")
    settings = [
        replace(choice, steps=4, model=WIDE, learning_rate=1e-3)
        for choice in CHOICES
        if choice.sharding is None or name == "t2d2"
    ]
    if name == "t2p2":
        settings += [replace(GENTLE, name=schedule, virtual=2) for schedule in INTERLEAVED]
    for number, choice in enumerate(settings):
        setting = replace(choice, tensor=2).at(LAYOUTS[name])
        result = train(crew, setting, tmp_path / str(number))
        assert not result.differences(usual), str(setting)


def test_the_depth_of_a_pipeline_of_tensor_groups_changes_no_bit(
    crew: Crew, tmp_path: Path
) -> None:
    flat = train(crew, replace(GENTLE, tensor=2), tmp_path / "flat")
    deep = train(crew, replace(GENTLE, tensor=2, pipeline=2), tmp_path / "deep")
    assert not deep.differences(flat)


def test_the_global_norm_counts_what_all_ranks_have_once(crew: Crew, tmp_path: Path) -> None:
    setting = replace(GENTLE, model=BIASED, clip_norm=0.5)
    alone = train(crew, setting, tmp_path / "alone")
    assert min(alone.norms) > 0.5, "nothing was clipped"
    for number, (tensor, data, level) in enumerate([(2, 1, 0), (4, 1, 2), (2, 2, 2), (2, 2, 0)]):
        sharded = replace(setting, name="ratrain", tensor=tensor, data=data, sharding=level)
        result = train(crew, sharded, tmp_path / str(number))
        assert result.norms == pytest.approx(alone.norms, rel=1e-6)
        assert_near(result, alone)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_lower_precision_gives_the_same_bits_at_every_level_and_schedule(
    dtype: str, crew: Crew, tmp_path: Path
) -> None:
    choices = [
        replace(GENTLE, name=name, sharding=level, dtype=dtype, clip_norm=0.5, tensor=2, data=2)
        for name in ("tensor-parallel-heavy", "zb-h1")
        for level in (0, 2, 3)
    ]
    results = [train(crew, result, tmp_path / str(number)) for number, result in enumerate(choices)]
    alone = train(crew, replace(GENTLE, dtype=dtype, clip_norm=0.5), tmp_path / "alone")
    assert results[0].loss_values == pytest.approx(alone.loss_values, rel=2e-3)
    for result, setting in zip(results, choices, strict=True):
        assert not result.differences(results[0]), str(setting)
        assert result.norms == results[0].norms, str(setting)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(3))
def test_no_timing_changes_a_bit_nor_outgrows_the_proof(
    seed: int, crew: Crew, tmp_path: Path
) -> None:
    for number, (name, layout) in enumerate([("tensor-parallel-heavy", (1, 2)), ("zb-h1", (2, 1))]):
        setting = replace(GENTLE, name=name, tensor=2).at(layout)
        usual = train(crew, setting, tmp_path / f"usual-{number}")
        result = train(crew, setting, tmp_path / str(number), delays=seed)
        assert not result.differences(usual)
        for peak, bound in zip(result.ledger_peaks, result.bounds, strict=True):
            assert 0 < peak <= bound


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ((*WIDE, ("intermediate_size", 50)), "ffn = 50, which 4 ranks"),
        ((*WIDE, ("vocab_size", 302)), "vocab = 302, which 4 ranks"),
    ],
)
def test_a_job_whose_ranks_cannot_share_evenly_is_refused(
    model: tuple[tuple[str, object], ...], message: str, tmp_path: Path
) -> None:
    setting = Setting("tensor-parallel-heavy", tensor=4, model=model, files=("none.txt",))
    with pytest.raises(SpecError, match=message):
        prepare_run(RunRequest(write_job(tmp_path, setting)))


def test_a_tied_model_trains_in_tensor_groups(crew: Crew, tmp_path: Path) -> None:
    model = (*WIDE, ("tie_word_embeddings", True))
    setting = replace(GENTLE, model=model, clip_norm=0.5)
    alone = train(crew, setting, tmp_path / "alone")
    for layout in ((1, 1), (2, 1)):
        group = replace(setting, name="ratrain", tensor=2).at(layout)
        result = train(crew, group, tmp_path / str(layout[0]))
        assert_near(result, alone)
        assert result.norms == pytest.approx(alone.norms, rel=1e-6)
        words = result.units["e"][0].size
        assert result.units["e"][0].tobytes() == result.units["h"][0][:words].tobytes()


def test_a_lost_rank_of_a_tensor_group_ends_the_run_with_its_name(tmp_path: Path) -> None:
    folder = made(tmp_path, replace(GENTLE, tensor=2, steps=2000))
    with (
        meanwhile(killer(folder, 1, lambda: steps_done(folder) > 2)),
        pytest.raises(RunFailed, match="rank 1 was killed by SIGKILL"),
    ):
        start(folder)


# ---- checkpoints ----------------------------------------------------------------------------

SAVING = replace(GENTLE, name="ratrain", steps=6, every=3, clip_norm=0.5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An undisturbed run of tensor groups with all its checkpoints, calibrated first."""
    folder = made(
        tmp_path_factory.mktemp("whole"), replace(SAVING, tensor=2, data=2), calibrate=True
    )
    start(folder)
    assert saved_steps(folder) == [3, 6]
    return folder


def cut_short(whole: RunFolder, to: Path, setting: Setting) -> RunFolder:
    """A run of `setting` that has the whole run's first checkpoint."""
    folder = made(to, setting)
    shutil.copytree(whole.checkpoints / "step-00000003", folder.checkpoints / "step-00000003")
    lines = whole.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(lines[:3]))
    return folder


def test_tensor_groups_go_on_bit_by_bit(whole: RunFolder, tmp_path: Path) -> None:
    folder = cut_short(whole, tmp_path, replace(SAVING, tensor=2, data=2))
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert_same_end(folder, whole)


@pytest.mark.parametrize("tensor", [1, 4])
def test_another_degree_goes_on_with_the_same_numbers(
    tensor: int, whole: RunFolder, tmp_path: Path
) -> None:
    folder = cut_short(whole, tmp_path / "run", replace(SAVING, tensor=tensor))
    start(folder)
    theirs = [row["loss"] for row in whole.read_metrics()]
    ours = [row["loss"] for row in folder.read_metrics()]
    assert len(ours) == 6 and ours == pytest.approx(theirs, rel=1e-6)
    for unit in ("e", "2", "h"):
        a, b = (trained_model(run.path).source(unit) for run in (folder, whole))
        assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


def test_a_group_s_weights_are_exported_whole_and_train_on_at_another_degree(
    whole: RunFolder, tmp_path: Path
) -> None:
    export_run(whole.path, tmp_path / "model", "fp32")
    trained, read = trained_model(whole.path), trained_model(tmp_path / "model")
    for unit in ("e", "0", "3", "h"):
        assert torch.equal(trained.source(unit), read.source(unit))
    losses: list[float] = []
    for tensor in (1, 2):
        setting = replace(SAVING, tensor=tensor, steps=1, weights=str(tmp_path / "model"))
        folder = made(tmp_path / str(tensor), setting)
        start(folder)
        losses += [row["loss"] for row in folder.read_metrics()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] < whole.read_metrics()[0]["loss"]


def test_sums_of_a_group_are_predicted_and_measured(whole: RunFolder) -> None:
    measured = write_measured(whole, whole.read_spec())
    assert measured is not None
    for timeline in (measured, read_timeline(whole.predicted)):
        words = {span.word for span in timeline.spans if span.lane == Lane.TENSOR.word}
        assert {"0.0AllReduce_F0", "0.1AllReduce_B0"} <= words
