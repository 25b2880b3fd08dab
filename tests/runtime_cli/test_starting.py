"""From nothing to a trained model: `ratrain init`, and `ratrain train` without a job file."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import CONFIG, ratrain, write_job

from ratrain.plan.layout.jobs import load_job

pytestmark = pytest.mark.slow

QUICK = ("--no-calibrate", "--threads", "1")


def test_what_init_writes_runs_as_it_is(tmp_path: Path) -> None:
    made = ratrain(tmp_path, "init", "job", "--json")
    assert made.status == 0, made.err
    names = {"job.toml", "this-machine.toml", "text.jsonl", "text.jsonl.LICENCE"}
    assert set(made.body["written"]) == names == {path.name for path in tmp_path.iterdir()}
    small = ("--set", "train.steps=2", "--set", "batch.sequences=2")
    small += ("--set", "model.sequence_length=64")
    assert ratrain(tmp_path, "plan", "job.toml", *small).status == 0
    ran = ratrain(tmp_path, "train", "job.toml", *small, *QUICK, "--json")
    assert ran.status == 0, ran.err
    assert ran.body["steps"]["done"] == ran.body["steps"]["end"] == 2
    assert all(len(line) <= 80 for line in ran.err.splitlines())
    again = ratrain(tmp_path, "init", "job")
    assert again.status == 2 and "job.toml: already exists" in again.err
    cluster = ratrain(tmp_path, "init", "cluster")
    assert cluster.status == 2 and "this-machine.toml: already exists" in cluster.err
    beside = ratrain(tmp_path, "init", "job", "other.toml", "--json")
    assert beside.body["written"] == ["other.toml"], "what is there is used"


def test_a_model_is_trained_on_text_without_a_job_file(tmp_path: Path) -> None:
    write_job(tmp_path)
    small = ("--set", "batch.sequences=2", "--set", "model.sequence_length=32")
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").rename(tmp_path / "model" / "config.json")
    first = ratrain(
        tmp_path,
        *("train", "--model", "model", "--data", "text.txt", "--steps", "2", *small, *QUICK),
    )
    assert first.status == 0, first.err
    run = tmp_path / "runs" / "model-ratrain"
    job = load_job(run / "job.toml")
    assert job.train.weights is None and job.model.spec.vocab == CONFIG["vocab_size"]
    assert ratrain(tmp_path, "export", run, "trained").status == 0
    tuned = ratrain(
        tmp_path,
        *("train", "--model", "trained", "--data", "text.txt", "--steps", "2", *small, *QUICK),
        "--json",
    )
    assert tuned.status == 0, tuned.err
    tuning = load_job(tmp_path / "runs" / "trained-ratrain" / "job.toml")
    assert tuning.train.weights == str((tmp_path / "trained").resolve())
    for arguments, message in (
        (("train",), "give a JOB, or --model and --data"),
        (("train", "--model", "model"), "give a JOB, or --model and --data"),
        (("train", "job.toml", "--data", "text.txt"), "give either JOB or --model and --data"),
        (("train", "--model", "nothing", "--data", "text.txt"), "--model: there is no model"),
    ):
        refused = ratrain(tmp_path, *arguments)
        assert refused.status == 2 and message in refused.err, refused


def test_mistakes_are_found_before_the_machine_is_measured_and_names_are_the_users(
    tmp_path: Path,
) -> None:
    write_job(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").rename(tmp_path / "model" / "config.json")
    (tmp_path / "held.txt").write_text("what is held out\n" * 500)
    words = ("train", "--model", "model", "--data", "text.txt", "--steps", "2", *QUICK)
    for mistake, message in {
        ("--set", "train.stepz=3"): "stepz",
        ("--schedule", "ratrian"): "ratrian",
        ("--set", 'data.files=["no.txt"]'): f"--set data.files: no such file: {tmp_path}/no.txt",
        ("--set", 'data.validation=["*.no"]'): "--set data.validation: no file matches",
        (
            "--set",
            "data.tokenizer=no.json",
        ): f"--set data.tokenizer: no such file or folder: {tmp_path}/no.json",
        (
            "--set",
            "train.weights=no",
        ): f"--set train.weights: no such file or folder: {tmp_path}/no",
        ("--set", "data.tokenizer=model/config.json"): "not a Hugging Face tokenizer",
    }.items():
        refused = ratrain(tmp_path, *words, *mistake)
        assert refused.status == 2 and message in refused.err.replace("\n", ""), refused.err
        assert "looking" not in refused.err and "busy" not in refused.err
    too_small = ratrain(tmp_path, *words, "--set", "schedule.memory_budget=1MB")
    assert too_small.status == 3 and "error: --model model: nothing fits" in too_small.err
    small = ("--set", "batch.sequences=2", "--set", "model.sequence_length=32")
    ran = ratrain(tmp_path, *words, *small, "--set", 'data.validation=["held.txt"]', "--json")
    assert ran.status == 0, ran.err
    assert ran.body["validation"]["last"]["step"] == 2
    assert "DOUBTFUL" not in ran.err
