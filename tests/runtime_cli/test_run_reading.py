"""What reads a run: timeline, compare, sample, export."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import Ran, here, write_job
from cli_runs import ratrain as in_own_process
from transformers import AutoModelForCausalLM

from ratrain.runtime.run.export import export_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two replicas: "ours" and "plain", which take the same steps."""
    made = tmp_path_factory.mktemp("reading")
    write_job(made, pipeline=1)
    ours = in_own_process(made, "train", "job.toml", "--run", "ours")
    plain = in_own_process(
        made, "train", "job.toml", "--run", "plain", "--schedule", "baseline-1f1b", "--no-calibrate"
    )
    assert ours.status == plain.status == 0, ours.err + plain.err
    return made


Terminal = Callable[..., Ran]


@pytest.fixture
def ratrain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """`ratrain` in this process, so that torch is loaded once."""

    def run(folder: Path, *arguments: str) -> Ran:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["ratrain", *arguments])
        return here(capsys)

    return run


def test_the_timeline_has_every_op_of_the_prediction(ratrain: Terminal, folder: Path) -> None:
    ran = ratrain(folder, "timeline", "ours", "--json")
    assert ran.status == 0, ran.err
    assert ran.body["missing"] == ran.body["extra"] == []
    kinds = {kind["kind"]: kind for kind in ran.body["kinds"]}
    assert {"F", "B", "GradSync", "PrefetchW", "UpdateShard"} <= set(kinds)
    assert all(kind["measured_s"] > 0 for kind in kinds.values())


def test_trace_and_picture_hold_both_timelines(ratrain: Terminal, folder: Path) -> None:
    ran = ratrain(folder, "timeline", "ours", "--trace", "t.json", "--svg", "s.svg")
    assert ran.status == 0 and all(len(line) <= 80 for line in ran.out.splitlines())
    events = json.loads((folder / "t.json").read_text())["traceEvents"]
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(names) == {"predicted rank 0", "measured rank 0"}
    assert {e["pid"] for e in events if e["ph"] == "X"} == set(names.values())
    assert all(
        word in (folder / "s.svg").read_text() for word in ("predicted: ", "measured, step ")
    )


def test_a_step_that_was_not_recorded_is_named_with_those_that_were(
    ratrain: Terminal, folder: Path
) -> None:
    ran = ratrain(folder, "timeline", "ours", "--step", "99")
    assert ran.status == 2 and "no op of step 99" in ran.err
    assert re.search(r"choose one of steps \d+ to 8$", ran.err, re.MULTILINE), ran.err
    ran = ratrain(folder, "timeline", "plain")
    assert ran.status == 2 and "not calibrated" in ran.err


def test_two_schedules_take_the_same_steps_bit_by_bit(ratrain: Terminal, folder: Path) -> None:
    ran = ratrain(folder, "compare", "ours", "plain", "--json")
    assert ran.status == 0 and ran.body["identical"]
    assert ran.body["checkpoint_step"] == 8
    assert {each["kind"] for each in ran.body["weights"]} == {"weights", "moment1", "moment2"}


def test_a_folder_without_a_run_is_no_run_to_compare(ratrain: Terminal, folder: Path) -> None:
    ran = ratrain(folder, "compare", "ours", "elsewhere")
    assert ran.status == 2 and "elsewhere: is not a run's folder" in ran.err


def test_one_other_bit_is_found_and_its_step_named(ratrain: Terminal, folder: Path) -> None:
    shutil.copytree(folder / "ours", folder / "other")
    metrics = folder / "other" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    loss = float.fromhex(rows[4]["loss_bits"]) * (1 + 2**-52)
    rows[4] = {**rows[4], "loss": loss, "loss_bits": loss.hex()}
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = ratrain(folder, "compare", "ours", "other", "--json")
    assert ran.status == 1
    losses = ran.body["losses"]
    assert (losses["differing"], losses["first_step"]) == (1, 5)
    assert 0 < losses["largest"] < 1e-15


@pytest.fixture
def exported(folder: Path) -> Path:
    """The run "ours" as a Hugging Face folder, written once."""
    if not (folder / "hf").exists():
        export_run(folder / "ours", folder / "hf", "fp32")
    return folder / "hf"


def test_transformers_goes_on_with_the_text_that_sample_prints(
    ratrain: Terminal, folder: Path, exported: Path
) -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    prompt = torch.tensor([list(b"line ")])
    made = theirs.generate(prompt, max_new_tokens=12, do_sample=False)[0, 5:].tolist()
    wanted = bytes(made).decode()
    for model in ("ours", "hf"):
        ran = ratrain(folder, "sample", model, "--prompt", "line ", "--tokens", "12", "--json")
        assert ran.body["text"] == wanted, ran.err
    shown = ratrain(folder, "sample", "ours", "--prompt", "line ", "--tokens", "12")
    assert shown.out == f"line {wanted}\n"


@pytest.mark.usefixtures("exported")
def test_an_export_does_not_overwrite_weights(ratrain: Terminal, folder: Path) -> None:
    first = ratrain(folder, "export", "ours", "again", "--dtype", "bf16", "--json")
    assert first.status == 0 and first.body["step"] == 8
    ran = ratrain(folder, "export", "ours", "hf")
    assert ran.status == 2 and "weights already" in ran.err


def test_a_checkpoint_that_is_not_there_is_named(ratrain: Terminal, folder: Path) -> None:
    ran = ratrain(folder, "export", "ours", "never", "--step", "3")
    assert ran.status == 2 and "no checkpoint of step 3" in ran.err
