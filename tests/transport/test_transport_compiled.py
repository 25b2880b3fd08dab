"""The hot modules compiled and interpreted: the same source, and the same tests."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ratrain.transport import Config, Engine

ROOT = Path(__file__).parents[2]
with (ROOT / "pyproject.toml").open("rb") as _file:
    MODULES = tomllib.load(_file)["tool"]["ratrain"]["compiled-modules"]


def is_compiled(source: str) -> bool:
    name = source.removeprefix("src/").removesuffix(".py").replace("/", ".")
    return not str(importlib.import_module(name).__file__).endswith(".py")


def test_all_hot_modules_are_compiled_or_none_is() -> None:
    compiled = {source: is_compiled(source) for source in MODULES}
    assert len(set(compiled.values())) == 1, compiled


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_where_there_is_a_compiler_the_engine_says_that_it_is_compiled() -> None:
    with Engine(Config(b"a secret of 16 b")) as engine:
        assert engine.stats()["compiled"] is True


@pytest.mark.slow
def test_the_interpreted_modules_pass_the_same_tests(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*__mypyc*", "transport")
    )
    plain = tmp_path / "src/ratrain/transport"
    shutil.copytree(
        ROOT / "src/ratrain/transport", plain, ignore=shutil.ignore_patterns("*.cpython-*")
    )
    for built in (ROOT / "src/ratrain/transport/providers").glob("fabric_c.*.so"):
        shutil.copy(built, plain / "providers")
    files = [
        ROOT / f"tests/transport/test_transport_{name}.py"
        for name in ("surface", "frames", "loopback", "tls")
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-k", "not idle", *files],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    asked = "import ratrain.transport.engine.peer as p; print(p.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip() == str(plain / "engine/peer.py")
