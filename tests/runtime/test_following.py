"""Weights of a run while it trains: every version whole, of one step, in every layout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launched import loss_bits, made, ranks_of, start, wait_until
from runs_made import Setting

from ratrain.errors import DeadlineExceeded, RatrainError, SpecError
from ratrain.models.huggingface.writer import named_tensors
from ratrain.runtime.published import write_layout
from ratrain.runtime.run.following import Followed
from ratrain.runtime.run.trained import trained_model
from ratrain.runtime.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PUBLISHED = (("publish_every", 2),)


def begun(folder: RunFolder) -> threading.Thread:
    running = threading.Thread(target=start, args=(folder,), daemon=True)
    running.start()
    return running


@pytest.mark.parametrize(
    "setting",
    [
        Setting(data=2, sharding=0),
        Setting(pipeline=2, data=2, sharding=1),
        Setting(data=2, sharding=3, dtype="bf16"),
        Setting(tensor=2, pipeline=2),
        Setting(data=2, sharding=1, optimizer_tier="disk"),
        Setting(optimizer="muon"),
    ],
    ids=str,
)
def test_each_version_has_the_bits_of_the_checkpoint_of_its_step(
    tmp_path: Path, setting: Setting
) -> None:
    train = (*setting.train, *PUBLISHED)
    setting = Setting(
        **{**vars(setting), "train": train, "steps": 100_000, "every": 2, "keep": 10_000}
    )
    folder = made(tmp_path, setting)
    running = begun(folder)
    seen: dict[int, dict[str, torch.Tensor]] = {}
    with Followed(folder.path) as followed:
        for _ in range(3):
            step = followed.wait(120)
            seen[step] = dict(followed.tensors())
        folder.stop_request.touch()
        running.join()
        write_layout(folder.path, {"another": 4})  # as ranks of another plan would
        with pytest.raises(DeadlineExceeded):
            followed.wait(0.3)
        kept = dict(followed.tensors())
        assert all(
            torch.equal(kept[name], tensor) for name, tensor in list(seen.values())[-1].items()
        )
    assert sorted(seen) == list(seen) and all(step % 2 == 0 for step in seen)
    for step, tensors in seen.items():
        saved = trained_model(folder.path, step)
        expected = dict(named_tensors(saved.spec, torch.float32, saved.source))
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


FOLLOWER = """
import sys
from pathlib import Path
from ratrain.runtime.run.following import Followed
with Followed(Path(sys.argv[1])) as followed:
    while True:
        print(followed.wait(60), flush=True)
"""


def test_followers_that_come_are_stopped_and_die_change_no_bit_and_cost_no_step(
    tmp_path: Path,
) -> None:
    setting = Setting(pipeline=2, data=2, steps=100_000)
    folder = made(tmp_path / "followed", replace(setting, train=(("publish_every", 1),)))
    running = begun(folder)
    wait_until(lambda: (folder.path / "weights" / "layout.json").exists(), 120)
    words = [sys.executable, "-c", FOLLOWER, str(folder.path)]
    first, second = (subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2))
    assert first.stdout and first.stdout.readline()
    assert second.stdout and second.stdout.readline()
    os.kill(first.pid, signal.SIGSTOP)
    second.kill()
    with Followed(folder.path) as followed:
        assert followed.wait(60) > 0
    folder.stop_request.touch()
    running.join()
    first.kill()
    losses = loss_bits(folder)
    alone = made(tmp_path / "alone", replace(setting, end_step=min(len(losses), 400)))
    start(alone)
    assert loss_bits(alone) == losses[:400]


def test_a_run_that_publishes_nothing_and_one_that_has_ended_are_said(tmp_path: Path) -> None:
    folder = made(tmp_path / "silent", Setting(steps=2))
    with Followed(folder.path) as followed:
        with pytest.raises(SpecError, match="publishes no weights"):
            followed.wait(0.2)
        with pytest.raises(SpecError, match="no weights have come yet"):
            followed.model()
    ended = made(tmp_path / "ended", Setting(steps=2, train=PUBLISHED))
    start(ended)
    assert not ranks_of(ended)
    with Followed(ended.path) as followed, pytest.raises(DeadlineExceeded):
        followed.wait(0.5)
    assert not list((ended.path / "weights").glob("offer-*"))


def test_a_network_that_is_not_there_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    nowhere = (*PUBLISHED, ("publish_nics", "nowhere0"))
    folder = made(tmp_path, Setting(steps=2, train=nowhere))
    with pytest.raises(RatrainError, match="publish_nics: no interface 'nowhere0' is up here"):
        start(folder)
    assert not folder.read_metrics()
