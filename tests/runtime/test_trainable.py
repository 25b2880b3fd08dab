"""A job that cannot be trained is refused while it is prepared: no folder, no rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launched import made
from runs_made import Setting, write_job

from ratrain.errors import SpecError
from ratrain.runtime.run.prepare import RunRequest
from ratrain.runtime.run.resume import resume_run

DYNAMIC = {"rope_type": "dynamic", "factor": 8.0}
UNTRAINABLE: dict[str, tuple[dict[str, Any], str]] = {
    "angles by length": ({"rope_scaling": DYNAMIC}, 'rotary positions of type "dynamic"'),
    "as transformers 5 writes it": (
        {"rope_parameters": {**DYNAMIC, "rope_theta": 5e5}},
        'rotary positions of type "dynamic"',
    ),
    "another activation": ({"hidden_act": "xielu"}, "not trained: activation = 'xielu'"),
    "odd heads": ({"head_dim": 7}, "not trained: rotary positions of 7 dimensions"),
}


@pytest.mark.parametrize("planned", [False, True], ids=["with a layout", "planned"])
@pytest.mark.parametrize("name", UNTRAINABLE)
def test_a_model_that_cannot_be_trained_is_refused_before_a_folder_is_made(
    name: str, planned: bool, tmp_path: Path
) -> None:
    config, message = UNTRAINABLE[name]
    with pytest.raises(SpecError, match=message) as error:
        made(tmp_path, Setting(model=tuple(config.items()), planned=planned))
    assert error.value.place and error.value.fix
    assert not (tmp_path / "run").exists()


def test_weights_that_are_not_there_are_named_before_a_folder_is_made(tmp_path: Path) -> None:
    write_job(tmp_path / "empty", Setting())  # a config.json and no weights
    with pytest.raises(SpecError, match=r"neither model\.safetensors nor"):
        made(tmp_path, Setting(weights="empty"))
    assert not (tmp_path / "run").exists()


def test_weights_of_another_model_are_named_before_a_folder_is_made(tmp_path: Path) -> None:
    write_job(tmp_path / "other", Setting(model=(("intermediate_size", 64),)))
    with pytest.raises(SpecError, match="ffn is 64 here and 48 in the job's model"):
        made(tmp_path, Setting(weights="other"))
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_resumed_with_a_model_that_can_no_longer_be_trained(tmp_path: Path) -> None:
    setting = Setting(files=("text.txt",))
    folder = made(tmp_path, Setting())
    job = write_job(tmp_path, replace(setting, model=(("rope_scaling", DYNAMIC),)))
    assert json.loads((tmp_path / "config.json").read_text())["rope_scaling"] == DYNAMIC
    with pytest.raises(SpecError, match="dynamic"):
        resume_run(RunRequest(job), folder)
