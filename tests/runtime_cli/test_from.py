"""A new run from another one's checkpoint, in another layout, schedule and number of devices."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli_runs import here, ratrain, write_job

from ratrain.runtime.run_folder import RunFolder

QUICK = ("--no-calibrate", "--json", "--threads", "1")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two stages over 10 steps, saved after steps 4, 8 and 10."""
    folder = tmp_path_factory.mktemp("source")
    job = write_job(folder, steps=10)
    job.write_text(job.read_text().replace("every = 4", "every = 4\nkeep = 5"))
    ran = ratrain(folder, "train", job, "--run", "whole", *QUICK)
    assert ran.status == 0, ran.err
    return folder


def losses(run: Path) -> dict[int, str]:
    return {row["step"]: row["loss_bits"] for row in RunFolder(run).read_metrics()}


LAYOUTS = {
    "one device": (1, 1, "gpipe"),
    "two replicas": (1, 2, "ratrain"),
    "two stages, two replicas": (2, 2, "baseline-1f1b"),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_losses_go_on_as_those_of_the_run_that_it_began_from(source: Path, layout: str) -> None:
    pipeline, data, schedule = LAYOUTS[layout]
    name = layout.replace(" ", "-").replace(",", "")
    options = (
        *("--set", f"layout.pipeline={pipeline}", "--set", f"layout.data={data}"),
        *("--set", f"cluster.devices={pipeline * data}", "--schedule", schedule),
    )
    run = source / name
    ran = ratrain(source, "train", "job.toml", "--from", "whole@4", "--run", run, *options, *QUICK)
    assert ran.status == 0, ran.err
    assert ran.body["from"] == {
        "run": str(source / "whole"),
        "step": 4,
        "data_restarted": False,
    }
    whole, begun = losses(source / "whole"), losses(run)
    assert list(begun) == list(range(4, 10))
    if data == 1:  # gradients add in one order: the same bits
        assert begun == {step: bits for step, bits in whole.items() if step >= 4}
    for step, bits in begun.items():
        assert float.fromhex(bits) == pytest.approx(float.fromhex(whole[step]), rel=1e-4)


@pytest.mark.slow
def test_text_that_is_read_anew_may_be_another_and_begins_at_its_beginning(source: Path) -> None:
    text = (source / "text.txt").read_text()
    (source / "other.txt").write_text(text.upper())
    options = ("--set", 'data.files=["other.txt"]', "--from", "whole@8", "--steps", "12", *QUICK)
    refused = ratrain(source, "train", "job.toml", "--run", "kept", *options)
    assert refused.status == 2 and not (source / "kept").exists(), refused.err
    ran = ratrain(source, "train", "job.toml", "--run", "anew", *options, "--restart-data")
    assert ran.status == 0, ran.err
    assert list(losses(source / "anew")) == [8, 9, 10, 11]
    resumed = ratrain(
        source,
        "train",
        "job.toml",
        "--run",
        "anew",
        "--resume",
        "--steps",
        "14",
        *QUICK,
        *options[:2],
    )
    assert resumed.status == 0, resumed.err
    assert list(losses(source / "anew")) == list(range(8, 14))


@pytest.mark.slow
def test_what_cannot_be_continued_is_refused_and_leaves_no_folder(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(source)
    config = json.loads((source / "config.json").read_text()) | {"intermediate_size": 64}
    (source / "wider.json").write_text(json.dumps(config))
    for words, message in {
        ("whole@5",): "holds no whole checkpoint of step 5 fix: choose one of its steps: 4, 8, 10",
        ("nothing",): "is not a run's folder",
        ("whole",): "the checkpoint is of step 10, the job ends at step 10",
        ("whole@4", "--set", "model.name=wider.json"): "the run was of another model",
        ("whole@4", "--set", "batch.sequences=16"): "the run had sequences = 8, the job has 16",
        ("whole@4", "--resume"): "--from begins a new run",
    }.items():
        arguments = ["ratrain", "train", "job.toml", "--run", "refused", "--from", *words]
        monkeypatch.setattr(sys, "argv", arguments)
        refused = here(capsys)
        assert refused.status == 2, refused.err
        assert message in " ".join(refused.err.split())
        assert not (source / "refused").exists()
