"""What `make run` shows: the installation of packages, and the first training run."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from screens import BAR, ROWS, Terminal

ROOT = Path(__file__).parents[2]
INSTALL = [sys.executable, str(ROOT / "scripts" / "install.py")]


def installing(folder: Path, *pins: str) -> Terminal:
    """scripts/install.py with a lock file, and no index to reach."""
    lock = folder / "a.lock"
    lock.write_text("".join(f"{pin}\n" for pin in pins))
    return Terminal(
        [*INSTALL, str(lock)], columns=80, folder=folder, PIP_NO_INDEX="1", PIP_FIND_LINKS=""
    )


@pytest.mark.slow
def test_packages_that_are_there_are_said_to_be(tmp_path: Path) -> None:
    pins = [f"{name}=={version(name)}" for name in ("click", "rich")]
    terminal = installing(tmp_path, *pins)
    assert terminal.end() == 0, terminal.text
    assert re.fullmatch(r"  2/2  all packages are there \(0 new\)  0:\d\d", terminal.text)


def test_a_package_that_cannot_be_had_is_named_and_the_status_is_not_0(tmp_path: Path) -> None:
    terminal = installing(tmp_path, "no-such-package==1.0")
    assert terminal.end() == 1
    assert "no-such-package==1.0" in terminal.text
    assert "error: pip ended with status 1; all that it said is in\n  /" in terminal.text
    assert "Traceback" not in terminal.text


def test_what_pip_prints_becomes_one_line_of_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from install import Installation  # pyright: ignore[reportMissingImports]

    (tmp_path / "a.lock").write_text("click==8.5.1\ntorch==2.13.0\n")
    installation = Installation(tmp_path / "a.lock")
    seen: list[str] = []
    for line in (
        "Looking in indexes: somewhere",
        "Collecting click==8.5.1 (from -r a.lock (line 1))",
        "Using cached click-8.5.1-py3-none-any.whl (126 kB)",
        "Processing /wheels/torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl (from -r a.lock)",
        "Installing collected packages: torch, click",
    ):
        installation.take(line)
        seen.append(re.sub(r" +\d+:\d\d$", "", installation.words()).strip())
    assert seen == [
        "0/2  starting pip",
        "1/2  fetching click",
        "1/2  fetching click (126 kB)",
        "2/2  fetching torch",
        "0/2  unpacking torch",
    ]


@pytest.mark.slow
@pytest.mark.skipif("CI" in os.environ, reason=".ci/run ends with `make run`, the same script")
def test_the_quickstart_ends_with_a_verdict_and_what_to_do_next(tmp_path: Path) -> None:
    terminal = Terminal(
        [str(ROOT / "scripts" / "quickstart.sh")],
        columns=80,
        folder=tmp_path,
        RATRAIN=str(Path(sys.executable).parent / "ratrain"),
        RUNS=str(tmp_path / "runs"),
        STEPS="4",
    )
    assert terminal.end() == 0, terminal.text
    last = "\n".join(terminal.lines[-ROWS:])
    assert "Verdict" in last and "identical bit by bit" in last and "What next" in last
    assert "Traceback" not in terminal.text
    assert not BAR & set(terminal.text)
    shortened = str(tmp_path.parent.parent)  # the tests' long paths are cut at the width
    _, _, rest = terminal.text.partition("4. What it has learned")
    written, _, _ = rest.partition("5. Verdict")  # by the model: as long as it likes
    wrapped = [line for line in terminal.wrapped if shortened not in line]
    assert [line for line in wrapped if line.rstrip() not in written] == []
