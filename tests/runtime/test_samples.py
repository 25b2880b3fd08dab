"""Texts that the model goes on with while it is trained: the likeliest words of its weights as they
are then, in every layout, and training does not notice it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew
from launched import made, start
from runs_made import Setting, Unlike, write_job
from training import Result, train

from ratrain.corpus.tokenizer import ByteTokenizer
from ratrain.errors import SpecError
from ratrain.models.sample import sample
from ratrain.models.shapes import unit_layout
from ratrain.models.weights import Weights
from ratrain.plan.layout.jobs import load_job
from ratrain.report.facts.run import contents_of_run
from ratrain.report.page import page
from ratrain.runtime.rank.trackers import TensorBoard
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run.reports.report_text import report_text

PROMPTS = ["abc", "de fg", "h"]
SAMPLED = {"sample_every": 2, "prompts": PROMPTS, "sample_tokens": 9}
SETTING = Setting(steps=5, train=tuple(SAMPLED.items()), micro_batch=2)
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "two stages, two replicas": {"pipeline": 2, "data": 2},
    "gathered": {"data": 4, "sharding": 3, "micro_batch": 1},
    "a tensor group that divides sequences": {
        "pipeline": 2,
        "tensor": 2,
        "sequence_parallel": True,
    },
    "interleaved": {"pipeline": 2, "virtual": 2, "name": "interleaved"},
    "joined micro-batches": {
        "unlike": (Unlike((2, 2), 4, micro_batch=2, joined=(2, 1)),),
        "name": "ratrain",
    },
}


def in_plain(setting: Setting, result: Result, folder: Path) -> list[tuple[int, ...]]:
    """What `ratrain sample` makes of the run's last weights."""
    spec = load_job(write_job(folder, setting)).model.spec
    weights = {name: Weights(unit_layout(spec, name)) for name in result.units}
    for name, buffers in result.units.items():
        weights[name].attach_view(torch.from_numpy(buffers[0]))
    ids = ByteTokenizer().vocab_size
    return [
        tuple(sample(spec, weights, list(prompt.encode()), 9, sequence_length=16, ids=ids))
        for prompt in PROMPTS
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_are_the_likeliest_words_of_the_weights_in_every_layout(
    layout: str, crew: Crew, tmp_path: Path
) -> None:
    setting = replace(SETTING, **LAYOUTS[layout], steps=4)
    result = train(crew, setting, tmp_path / "sampled")
    assert [step for step, _ in result.sampled] == [2, 4]
    assert list(result.sampled[-1][1]) == in_plain(setting, result, tmp_path)
    assert not result.differences(train(crew, replace(setting, train=()), tmp_path / "not"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_samples_are_in_metrics_report_page_and_tensorboard(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("second\n\nthird <b>\n")
    asked = {**SAMPLED, "prompts": ["first"], "prompts_file": "more.txt", "sample_tokens": 5}
    run = made(tmp_path, replace(SETTING, pipeline=2, train=tuple(asked.items())))
    start(run)
    rows = list(map(json.loads, run.metrics.read_text().splitlines()))
    sampled = [row for row in rows if "samples" in row]
    assert [row["step"] for row in sampled] == [1, 3]
    report = report_of(run)
    assert report["samples"]["step"] == 4
    prompts = [each["prompt"] for each in report["samples"]["texts"]]
    assert prompts == ["first", "second", "third <b>"]
    assert any('"third <b>" goes on' in line for line in report_text(report))
    text = page(contents_of_run(run.path))
    assert "third &lt;b&gt;" in text and text.count("<td>second") + text.count(">second<") >= 2
    board = TensorBoard(tmp_path / "board")
    board.write(sampled[-1])
    board.close()
    (events,) = (tmp_path / "board").iterdir()
    assert b"sample/2" in events.read_bytes() and b"**third <b>**" in events.read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": []}, "there is no prompt"),
        ({"prompts": ["abcdefgh"]}, "a prompt of 8 tokens and 9 more are longer"),
        ({"prompts_file": "none.txt"}, "none.txt"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused_before_the_run(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    setting = replace(SETTING, train=tuple({**SAMPLED, **changes}.items()))
    with pytest.raises(SpecError, match=words):
        made(tmp_path, setting)
