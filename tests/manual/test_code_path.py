"""The worked example of the path through the code is what this commit prints."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from console import File, blocks
from pages import DOCS, ROOT

from ratrain.cli.main import main

PAGE = DOCS / "explanation" / "code-in-15-minutes.md"
SOURCE = ROOT / "src" / "ratrain"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (step,) = blocks(PAGE)[0].steps
    assert isinstance(step, File)
    (tmp_path / step.name).write_text(step.text)
    return tmp_path / step.name


def test_the_printed_program_is_the_examples(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["ratrain", "program", str(job), *words])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out.splitlines()

    page = PAGE.read_text().splitlines()
    program = [line for line in printed("--form", "text") if line.startswith("rank 0 ")]
    assert program == [line for line in page if re.match(r"rank 0 [a-z_]+ ", line)]
    assert printed()[-3:] == [line.strip() for line in page if re.match(r" {4}(time|rank) ", line)]


def test_every_file_on_the_path_exists() -> None:
    for name in re.findall(r"`([\w/]+\.(?:py|c)|[\w/]+/)`", PAGE.read_text()):
        near = {SOURCE / name, ROOT / name, SOURCE / "simulate" / name}
        near |= {SOURCE / "runtime" / "step" / name}
        assert any(path.exists() for path in near), name
