"""What every command of the tree says with --help."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner
from verbs import groups, leaves

from ratrain.cli.main import ratrain


def help_of(path: str, columns: int = 80) -> str:
    ran = CliRunner().invoke(ratrain, [*path.split(), "--help"], env={"COLUMNS": str(columns)})
    assert ran.exit_code == 0, ran.output
    return ran.output


@pytest.mark.parametrize("path", [path for path, _ in leaves()])
def test_every_verb_teaches_with_an_example_in_eighty_columns(path: str) -> None:
    text = help_of(path)
    assert re.search(rf"Examples?[^:]*:[^§]*?\bratrain {path}\b", text), text
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"--json +\w", text), "--json is not explained"


@pytest.mark.parametrize("path", ["", *groups()])
def test_every_group_lists_what_it_holds_in_eighty_columns(path: str) -> None:
    text = help_of(path)
    inner = {leaf.removeprefix(path).split()[0] for leaf, _ in leaves() if leaf.startswith(path)}
    assert all(re.search(rf"^ +{name} +\w", text, re.M) for name in inner), text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("path", [path for path, _ in leaves()])
def test_every_option_is_explained(path: str) -> None:
    (command,) = (command for leaf, command in leaves() if leaf == path)
    options = (each for each in command.params if isinstance(each, click.Option))
    silent = [option.name for option in options if not option.help]
    assert silent == []
