"""What Tab offers, by the protocol that click's shell scripts speak."""

from __future__ import annotations

import pytest

from ratrain.cli.main import ratrain


def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> str:
    words = line.split(" ")
    monkeypatch.setenv("_RATRAIN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        ratrain.main(prog_name="ratrain")
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "wanted", "not_wanted"),
    [
        ("ratrain sched", "schedules", "simulate"),
        ("ratrain simulate --sched", "--schedule", "--steps"),
        ("ratrain simulate --schedule zb", "zb-h1", "gpipe"),
        ("ratrain train --without forw", "forward-recovery", "update-prefetch"),
        ("ratrain train --model tiny", "tiny-llama", "qwen2.5-32b"),
        ("ratrain models qwen", "qwen2.5-32b", "tiny-llama"),
        ("ratrain clusters lab", "lab-mixed", "mt3000"),
        ("ratrain plan --set layout.pipe", "layout.pipeline=", "layout.data="),
        ("ratrain plan --set train.learn", "train.learning_rate=", "train.steps="),
        ("ratrain plan --set model.seq", "model.sequence_length=", "model.name="),
    ],
)
def test_tab_offers_the_words_that_begin_like_this_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    wanted: str,
    not_wanted: str,
) -> None:
    words = [entry.partition(",")[2] for entry in offered(monkeypatch, capsys, line).splitlines()]
    assert wanted in words
    assert not_wanted not in words
