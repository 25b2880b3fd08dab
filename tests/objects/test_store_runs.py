"""Runs whose checkpoints are in an object store, and what is said where that cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from uuid import uuid4

import pytest
from engine_jobs import losses, ratrain, wait_until, write_job
from s3_server import BUCKET, Way, environment, variables

from ratrain.errors import RunTaken, StoreError
from ratrain.objects import owner
from ratrain.objects.bucket import Bucket
from ratrain.objects.client import Stores
from ratrain.objects.owner import UrlClaim
from ratrain.objects.remote import Remote, remote_of
from ratrain.runtime.run_folder import RunFolder


@pytest.fixture
def url(server: int) -> Generator[Remote]:
    """A place in the store that is empty."""
    with variables(environment(server)):
        yield remote_of(f"s3://{BUCKET}/{uuid4().hex}/run")


def typed(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`ratrain` in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ratrain(*arguments)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_resumed_on_another_machine_a_run_has_the_losses_of_one_that_was_not(
    tmp_path: Path, url: Remote
) -> None:
    job, train = write_job(tmp_path / "job", steps=24, every=4), ("--threads", "1")
    whole = typed(tmp_path, "train", job, "--run", "whole", "--no-calibrate", *train)
    assert whole.returncode == 0, whole.stderr
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    killed = subprocess.Popen(
        ratrain("train", job, "--run", str(url), *train),
        cwd=here,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with Stores() as stores:
        wait_until(
            lambda: "checkpoints/step-00000004/manifest.json" in stores.sizes(url), "a checkpoint"
        )
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    ended = typed(there, "train", job, "--run", str(url), "--resume", *train)
    assert ended.returncode == 0, ended.stderr
    assert losses(RunFolder(there / "runs" / "run")) == losses(RunFolder(tmp_path / "whole"))
    compared = typed(tmp_path, "checkpoints", "whole", "--compare", str(url))
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert "rank-" not in "".join(map(str, (there / "runs/run/checkpoints").rglob("*")))
    began = typed(there, "train", job, "--from", f"{url}@20", "--run", "began", *train)
    assert began.returncode == 0, began.stderr
    last = typed(tmp_path, "checkpoints", "there/began", "--compare", str(url))
    assert last.returncode == 0, last.stdout + last.stderr


@pytest.mark.slow
def test_of_two_launches_one_writes_below_a_url_and_one_that_died_is_replaced(
    url: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.5)
    monkeypatch.setattr(owner, "SILENT_S", 6.0)
    said: list[str] = []
    first = UrlClaim(url, "1", "the first", "here", said.append)
    with pytest.raises(RunTaken, match="belongs to the first"):
        UrlClaim(url, "2", "the second", "there", said.append)
    first.release()
    died = UrlClaim(url, "3", "the third", "here", said.append)
    died._released.set()  # pyright: ignore[reportPrivateUsage]
    next_one = UrlClaim(url, "4", "the fourth", "there", said.append)
    assert "died without releasing it" in said[-1]
    next_one.release()
    with Stores() as stores:
        assert stores.sizes(url) == {}


@pytest.mark.slow
def test_what_cannot_be_asked_of_a_store_is_one_message_with_its_fix(
    url: Remote, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(asked: Remote) -> StoreError:
        with Stores(0.5) as stores, pytest.raises(StoreError) as raised:
            stores.put(asked / "name", "text")
        return raised.value

    assert "make the bucket" in told(remote_of("s3://no-such-bucket/run")).fix
    assert 'pip install "ratrain[gs]"' in told(remote_of("gs://bucket/run")).fix
    way.begin(1)
    assert "tried for 0.5 s" in told(url).what
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("HOME", "/nowhere")
    assert "no credentials" in told(url).what


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("train", "job.toml", "--run", "ftp://host/run"), "is not an object store"),
        (("train", "job.toml", "--run", "s3://bucket"), "names no place in a bucket"),
        (("train", "s3://bucket/job.toml"), "is a URL, and no file or folder"),
        (("clean", "s3://bucket/run"), "is a URL, and no file or folder"),
    ],
)
def test_a_url_where_none_can_be_is_refused_and_no_folder_is_called_after_it(
    tmp_path: Path, arguments: tuple[str, ...], what: str
) -> None:
    refused = typed(tmp_path, *arguments)
    assert refused.returncode == 2
    assert what in refused.stderr and "fix:" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_package_is_missing_is_not_asked() -> None:
    with pytest.raises(StoreError, match="gcsfs"):
        Bucket("gs").sizes("gs://bucket/run")
