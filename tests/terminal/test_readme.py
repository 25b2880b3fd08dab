"""README.md: its length, and what it says that a command prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratrain.cli.main import main

ROOT = Path(__file__).parents[2]


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000


@pytest.mark.slow
def test_the_readme_shows_what_simulate_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "ratrain simulate examples/qwen32b-mt3000.toml"
    block = (ROOT / "README.md").read_text().partition(f"    $ {words}\n")[2]
    shown = [line.removeprefix("    ") for line in block.partition("    ...")[0].splitlines()]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", words.split())
    with pytest.raises(SystemExit):
        main()
    assert len(shown) > 4
    assert capsys.readouterr().out.splitlines()[: len(shown)] == shown
