"""Data that a job reads from an object store, and exports that go there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from uuid import uuid4

import pytest
from engine_jobs import losses, ratrain, write_job
from s3_server import BUCKET, environment, variables

from ratrain.corpus.sources import sources_of
from ratrain.errors import SpecError
from ratrain.objects.client import close_stores, stores
from ratrain.objects.remote import Remote, remote_of
from ratrain.runtime.run_folder import RunFolder


@pytest.fixture
def url(server: int, tmp_path: Path) -> Generator[Remote]:
    """A place in the store that is empty, and a cache of its own."""
    with variables({**environment(server), "XDG_CACHE_HOME": str(tmp_path / "cache")}):
        try:
            yield remote_of(f"s3://{BUCKET}/{uuid4().hex}/of [one]")
        finally:
            close_stores()


def put(remote: Remote, text: str) -> None:
    stores().put(remote, text)


@pytest.mark.slow
def test_files_are_objects_that_a_url_names_or_matches_and_are_copied_once(url: Remote) -> None:
    above = Remote(f"{url.parent}/texts")
    for name in ("b.txt", "a.txt", "c.jsonl", "deep/d.txt"):
        put(above / name, f"text of {name}")

    def read(pattern: str) -> list[str]:
        return [source.path.read_text() for source in sources_of((pattern,))]

    assert read(f"{above}/*.txt") == ["text of a.txt", "text of b.txt"]
    assert read(f"{above}/**.txt")[-1] == "text of deep/d.txt"
    assert read(f"{above}/c.jsonl") == ["text of c.jsonl"]
    (first,) = sources_of((f"{above}/a.txt",))
    assert sources_of((f"{above}/a.txt",)) == (first,)
    put(above / "a.txt", "TEXT of a.txt")  # of the same size
    assert read(f"{above}/a.txt") == ["TEXT of a.txt"]
    assert first.path.read_text() == "text of a.txt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("{}/none.txt", "no object: s3://"),
        ("{}/*.txt", "no object matches s3://"),
        ("hf://datasets/x.jsonl", "hf:// is not an object store"),
        ("s3://bucket", "names no place in a bucket"),
    ],
)
def test_a_url_without_objects_is_refused_at_its_key(url: Remote, pattern: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as raised:
        sources_of((pattern.format(url.parent),))
    assert raised.value.place == "[data] files" and raised.value.fix


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_reads_its_text_from_a_store_and_is_exported_to_it(
    tmp_path: Path, url: Remote
) -> None:
    def typed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            ratrain(*arguments), cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    job = write_job(tmp_path, steps=3)
    stores().put_file(tmp_path / "text.txt", url.parent / "text.txt")
    train = ("train", job, "--threads", "1", "--no-calibrate")
    there = ("--set", f'data.files=["{url.parent}/*.txt"]')
    for run, more in (("here", ()), ("there", there)):
        done = typed(*train, "--run", run, *more)
        assert done.returncode == 0, done.stderr
    assert losses(RunFolder(tmp_path / "here")) == losses(RunFolder(tmp_path / "there"))
    out = f"{url.parent}/out"
    done = typed("export", "there", out)
    assert done.returncode == 0 and f"wrote {out}" in done.stdout, done.stderr
    assert {"config.json", "model.safetensors"} <= set(stores().sizes(remote_of(out)))
    again = typed("export", "there", out)
    assert again.returncode == 2 and "holds objects already" in again.stderr
    assert not (tmp_path / "s3:").exists()
