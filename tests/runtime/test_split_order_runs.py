"""Where the planner takes ZB-H1 by itself, a run has the numbers of 1F1B, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from crew import Crew
from runs_made import Setting
from training import train

from ratrain.runtime.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PLAIN = Setting("ratrain", pipeline=4)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "setting",
    [
        PLAIN,
        replace(PLAIN, pipeline=2),
        replace(PLAIN, dtype="fp16"),
        replace(PLAIN, dtype="bf16", boundary_wire="bf16"),
        replace(PLAIN, clip_norm=0.5),
        replace(PLAIN, model=(("tie_word_embeddings", True),)),
        replace(PLAIN, recovery="keep-all"),
    ],
    ids=["four stages", "two stages", "fp16", "bf16", "clipped", "tied", "keeps all"],
)
def test_a_run_in_the_order_chosen_has_the_bits_of_1f1b(
    setting: Setting, crew: Crew, tmp_path: Path
) -> None:
    chosen = train(crew, setting, tmp_path / "chosen")
    assert RunFolder(tmp_path / "chosen" / "run").read_program().setup.split_backward
    usual = train(crew, replace(setting, skeleton="1f1b"), tmp_path / "usual")
    assert not chosen.differences(usual)
    pairs = zip(chosen.ledger_peaks, chosen.bounds, strict=True)
    assert all(peak <= bound for peak, bound in pairs)
