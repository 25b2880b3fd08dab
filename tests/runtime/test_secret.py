"""The run's secret: new for each start, for its owner's eyes alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratrain.errors import SpecError
from ratrain.runtime.secret import read_secret, write_secret


def test_a_secret_is_new_each_time_and_its_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    before = os.umask(0)
    try:
        write_secret(path)
        first = read_secret(path)
        write_secret(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(first) == 32 and read_secret(path) != first
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o777])
def test_a_secret_that_others_may_read_or_write_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    path.chmod(mode)
    with pytest.raises(SpecError, match=rf"mode {mode:o}(.|\n)*fix: chmod 600"):
        read_secret(path)


@pytest.mark.parametrize("content", [None, b"", b"short", bytes(33)])
def test_a_secret_that_is_none_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(SpecError, match=r"secret(.|\n)*--prepare-only"):
        read_secret(path)
