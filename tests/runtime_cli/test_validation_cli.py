"""Held-out text: what a run shows of it, and the best checkpoint that it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import ratrain, write_job

from ratrain.checkpoint.listing import listed

pytestmark = pytest.mark.slow


def held_out_job(folder: Path, *, every: int = 3, steps: int = 12) -> Path:
    """A job that soon forgets what it is validated on: other words than it is trained on."""
    job = write_job(folder, steps=steps)
    (folder / "held.txt").write_text("ZQXWVJKU" * 80)
    text = job.read_text().replace(
        "learning_rate = 1e-2", "learning_rate = 1e-2\nvalidate_every = "
    )
    text = text.replace("validate_every = ", f"validate_every = {every}")
    job.write_text(text.replace('["text.txt"]', '["text.txt"]\nvalidation = ["held*.txt"]'))
    return job


def test_what_is_wrong_with_held_out_text_is_named_before_any_rank_starts(tmp_path: Path) -> None:
    job = held_out_job(tmp_path)
    text = job.read_text()
    for old, new, words in (
        ("held*.txt", "text.txt", ("text.txt is also trained on", "[data] validation", "fix:")),
        ("held*.txt", "gone.txt", ("gone.txt", "no such file")),
        (
            'validation = ["held*.txt"]',
            "",
            ("no held-out text", "[train] validate_every", "fix: add validation"),
        ),
    ):
        job.write_text(text.replace(old, new))
        ran = ratrain(tmp_path, "train", "job.toml")
        assert ran.status == 2, ran
        assert all(word in ran.err for word in words), ran.err
        assert not (tmp_path / "runs").exists()


def test_a_run_shows_its_validation_and_keeps_the_best_checkpoint(tmp_path: Path) -> None:
    held_out_job(tmp_path)
    begun = ratrain(tmp_path, "train", "job.toml", "--run", "run", "--steps", "6", "--no-calibrate")
    assert begun.status == 0, begun.err
    shown = [line for line in begun.out.splitlines() if line.startswith("validation loss")]
    assert "after step 3, the best so far" in shown[0] and len(shown) >= 2
    rest = ratrain(
        tmp_path,
        *("train", "job.toml", "--run", "run", "--resume", "--steps", "12", "--no-calibrate"),
        "--json",
    )
    assert rest.status == 0, rest.err
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {row["step"] + 1: row["validation_loss"] for row in lines if "loss" not in row}
    assert list(losses) == [3, 6, 9, 12]
    best = min(losses, key=lambda step: losses[step])
    assert best < 12, "the text was not unlike enough"
    validation = rest.body["validation"]
    assert validation["best"] == {"step": best, "loss": losses[best]}
    assert validation["last"] == {"step": 12, "loss": losses[12]}
    assert f"best {losses[best]:.4f} after step {best}" in rest.err
    steps = [each.step for each in listed(run / "checkpoints")]
    assert steps == sorted({best, 9, 12})
    listing = ratrain(tmp_path, "checkpoints", "run")
    assert f"the best so far: validation loss {losses[best]:.4f}" in listing.out
    assert ratrain(tmp_path, "checkpoints", "run", "--prune", "1", "--json").status == 0
    assert [each.step for each in listed(run / "checkpoints")] == sorted({best, 12})
    assert ratrain(tmp_path, "export", "run", "out", "--step", str(best)).status == 0

    whole = ratrain(tmp_path, "train", "job.toml", "--run", "whole", "--no-calibrate")
    assert whole.status == 0, whole.err
    assert ratrain(tmp_path, "compare", "run", "whole").status == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "whole" / "tensorboard")).Reload()
    curve = [(event.step, event.value) for event in events.Scalars("validation_loss")]
    assert curve == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in losses.items()]
