"""A tied model in real runs: predicted, saved, gone on with under another pipeline, exported."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from launched import assert_same_end, made, saved_steps, start
from runs_made import Setting, write_job
from safetensors import safe_open

from ratrain.errors import RunFailed
from ratrain.runtime.run.export import export_run
from ratrain.runtime.run.reports.merge import merge_records
from ratrain.runtime.run_folder import RunFolder
from ratrain.timeline.timeline import read_timeline

MODEL = (("tie_word_embeddings", True),)
TIED = Setting(model=MODEL, pipeline=2, steps=4, clip_norm=0.5, every=2, keep=9)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run over two ranks from its beginning to its end, with its own prediction."""
    folder = made(tmp_path_factory.mktemp("whole"), TIED, calibrate=True)
    start(folder)
    return folder


def test_a_run_predicts_and_measures_one_sum_a_step_that_both_ends_begin_together(
    whole: RunFolder,
) -> None:
    measured = merge_records(whole, whole.read_spec())
    assert measured is not None
    for timeline in (measured, read_timeline(whole.predicted)):
        steps = {span.step for span in timeline.spans}
        for step in steps:
            ties = [s for s in timeline.spans if s.step == step and s.word.endswith("TieSync")]
            assert {tie.rank for tie in ties} == {0, 1}
            assert ties[0].start_s == pytest.approx(ties[1].start_s)
            assert all(tie.end_s > tie.start_s for tie in ties)


def test_another_pipeline_goes_on_with_the_same_bits(whole: RunFolder, tmp_path: Path) -> None:
    alone = made(tmp_path, replace(TIED, pipeline=1))
    shutil.copytree(whole.checkpoints, alone.checkpoints, dirs_exist_ok=True)
    shutil.rmtree(alone.checkpoints / "step-00000004")
    start(alone)
    assert saved_steps(alone) == [2, 4]
    assert_same_end(alone, whole)


def test_an_export_holds_the_matrix_once(whole: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_run(whole.path, out, "fp32")
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"]
    (file,) = out.glob("*.safetensors")
    with safe_open(file, "np") as tensors:
        names = set(tensors.keys())
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_a_program_that_would_let_the_copies_drift_does_not_run(tmp_path: Path) -> None:
    folder = made(tmp_path, Setting(steps=1))
    write_job(tmp_path, Setting(steps=1, model=MODEL, files=("text.txt",)))
    with pytest.raises(RunFailed, match="ties its embedding and its head"):
        start(folder)
    assert not folder.checkpoints.exists() or saved_steps(folder) == []
