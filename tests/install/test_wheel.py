"""What `pip install` gives somebody who has no torch: a real wheel in a fresh environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SINGLE = "pyproject.toml", "setup.py", "README.md", "LICENSE"
FEWER = "--set", "batch.sequences=2048"
NEEDED = "click", "numpy", "numpy.libs", "rich", "pygments", "markdown_it", "mdurl"
"""The packages that the wheel asks for, and theirs."""


def python(folder: Path) -> Path:
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip builds it, from a copy without what this checkout has compiled."""
    folder = tmp_path_factory.mktemp("built")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, tracked):
        source, target = ROOT / name, folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists() and name.partition("/")[0] in ("src", "examples", *SINGLE):
            target.write_bytes(source.read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(folder), str(folder / "source")], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    here = Path(sysconfig.get_path("purelib"))
    (there,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        if (here / name).exists():
            (there / name).symlink_to(here / name)
    pip = [sys.executable, "-m", "pip", "--python", str(python(folder)), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    return folder


def typed(folder: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [str(python(folder)), "-m", "ratrain", *words],
        cwd=cwd, capture_output=True, text=True, env=environment,
    )  # fmt: skip


@pytest.mark.slow
def test_a_wheel_serves_every_python_and_holds_the_examples(wheel: Path) -> None:
    assert wheel.name.startswith("ratrain-") and "-py3-none-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if "cpython" in name]
    assert "ratrain/simulate/engine_c.so" in names
    tracked = subprocess.run(
        ["git", "ls-files", "examples"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {f"ratrain/{name}" for name in tracked} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["between-sites.toml", "convert", "extending", "plugin"])
def test_an_example_comes_with_all_that_the_manual_types_about_it(
    installed: Path, tmp_path: Path, name: str
) -> None:
    assert typed(installed, tmp_path, "init", "example", name, "-o", "there").returncode == 0
    there = tmp_path / "there"
    same = {path.relative_to(there) for path in there.rglob("*") if path.is_file()}
    assert all((there / p).read_bytes() == (ROOT / "examples" / p).read_bytes() for p in same)
    if name.endswith(".toml"):
        assert typed(installed, tmp_path, "simulate", f"there/{name}").returncode == 0
        return
    of_folder = (ROOT / "examples" / name).rglob("*")
    files = [path for path in of_folder if path.is_file() and path.parent.name != "__pycache__"]
    assert {path.relative_to(ROOT / "examples") for path in files} == same


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", ["train job.toml", "sample runs/x --prompt a", "export runs/x out", "train --resume"]
)
def test_a_verb_that_needs_torch_names_the_extra(
    installed: Path, tmp_path: Path, verb: str
) -> None:
    assert typed(installed, tmp_path, "init", "example", "small.toml").returncode == 0
    ran = typed(installed, tmp_path, *verb.replace("job.toml", "small.toml").split())
    assert ran.returncode == 2
    assert ran.stderr == (
        f"error: ratrain {verb.split()[0]}: needs the package torch, which is not installed\n"
        '  fix: pip install "ratrain[train]"\n'
    )


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["timeline runs/x", "compare runs/x runs/y", "report runs/x"])
def test_a_verb_that_reads_runs_needs_no_torch(installed: Path, tmp_path: Path, verb: str) -> None:
    ran = typed(installed, tmp_path, *verb.split())
    assert ran.returncode == 2
    assert "runs/x" in ran.stderr and "install" not in ran.stderr


@pytest.mark.slow
def test_from_python_the_extra_is_named_too(installed: Path) -> None:
    code = "import ratrain\ntry: ratrain.train\nexcept ratrain.RatrainError as e: print(e)"
    ran = subprocess.run([python(installed), "-c", code], capture_output=True, text=True)
    assert 'pip install "ratrain[train]"' in ran.stdout, ran.stderr


@pytest.mark.slow
def test_without_compiled_parts_the_version_says_so_and_a_long_verb_too(
    installed: Path, tmp_path: Path
) -> None:
    assert "C parts compiled" in typed(installed, tmp_path, "--version").stdout
    (room,) = installed.glob("lib/python*/site-packages/ratrain")
    hidden = [path.rename(path.with_suffix(".away")) for path in room.rglob("*_c.so")]
    try:
        said = typed(installed, tmp_path, "--version").stdout
        assert "not compiled: edges_c, walk_c, engine_c; planning" in said
        assert "no torch" in said
        typed(installed, tmp_path, "init", "example", "qwen32b-mt3000.toml")
        ran = typed(installed, tmp_path, "simulate", "qwen32b-mt3000.toml", *FEWER)
        assert ran.stderr.count("not compiled") == 1, ran.stderr
        small = typed(installed, tmp_path, "models")
        assert not small.stderr
    finally:
        for path in hidden:
            path.rename(path.with_suffix(".so"))
