"""Every command of the manual, typed in the order of its page."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from console import Desk, blocks
from pages import DOCS, ROOT, pages

from ratrain.cli.main import ratrain

FOLDERS = ("tutorials", "how-to", "reference", "explanation")
TYPED = [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]
TRIED_ELSEWHERE = (
    "plugins",
    "extending",
    "python",
    "verbs",
    "json",
    "code-in-15-minutes",
    "checker",
)
"""Pages whose commands other tests run, or that list what verbs print of themselves."""
PROGRAMS = Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in TYPED if blocks(page)], ids=lambda page: page.stem
)
def test_a_page_goes_as_written(page: Path, tmp_path: Path) -> None:
    desk = Desk(tmp_path, ROOT / "examples", PROGRAMS)
    for block in blocks(page):
        if not block.why_not():
            for step in block.steps:
                desk.do(step)


def test_every_tutorial_has_something_to_type() -> None:
    assert all(blocks(page) for page in (DOCS / "tutorials").glob("*.md"))


def test_commands_stand_where_they_are_tried() -> None:
    for page in TYPED:
        outside = re.findall(r"^ {4,}(?:\$ )?ratrain [a-z].*$", page.read_text(), re.MULTILINE)
        if page.stem not in TRIED_ELSEWHERE:
            assert all(re.search("net serve|net check --secret|s3://", line) for line in outside), (
                page,
                outside,
            )


def _mentioned() -> Iterator[tuple[Path, str]]:
    """Every command line that a page of the manual shows, in a block or in a sentence."""
    for page in pages():
        if page.name == "CHANGELOG.md" or "notes" in page.parts:
            continue
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"(?:^ *\$? *|`)(ratrain [a-z][^`\n]*)", text, re.MULTILINE):
            yield page, line


def test_every_verb_and_option_that_the_manual_names_exists() -> None:
    mentioned = list(_mentioned())
    assert len(mentioned) > 100
    for page, line in mentioned:
        assert not (wrong := _unknown(line)), f"{page.name}: {line!r}: {wrong}"


def _unknown(line: str) -> str:
    """The verb or option of a command line that there is not."""
    try:
        words = shlex.split(line, comments=True)[1:]
    except ValueError:
        return "its quotes do not close"
    command: click.Command = ratrain
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z-]+", words[0]):
        with click.Context(command) as context:
            verb = command.get_command(context, words[0])
        if verb is None:
            return f"no verb {words[0]}"
        command, words = verb, words[1:]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    known |= {"--help", "--json", "-h"}
    for word in words:
        if word in ("--", "|", ">", "&&", ";", "&"):
            break
        option = word.partition("=")[0].rstrip(".,)")
        if re.fullmatch(r"-{1,2}[a-z][a-z-]*", option) and option not in known:
            return f"no option {option}"
    return ""
