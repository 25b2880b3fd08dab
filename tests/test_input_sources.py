"""What users hand in is read by the readers alone: read from the source of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ratrain.cli.main import ratrain
from ratrain.cli.terminal.options import FilePath

SOURCE = Path(__file__).parents[1] / "src" / "ratrain"
PARSERS = {
    "json": {"load", "loads"},
    "tomllib": {"load", "loads"},
    "csv": {"reader", "DictReader"},
    "pickle": {"load", "loads", "Unpickler"},
    "marshal": {"load", "loads"},
    "torch": {"load"},
    "yaml": {"load", "safe_load"},
    "literal": {"literal_eval"},
}
READS = {"read_text", "read_bytes"}
KERNEL = {
    "lab/cluster.py",
    "lab/faults.py",
    "lab/groups.py",
    "lab/place.py",
    "lab/relay.py",
    "lab/wires.py",
    "profile/doubt.py",
    "profile/quota.py",
    "runtime/devices_here.py",
    "runtime/host.py",
    "runtime/memory_here.py",
    "runtime/step/network/near.py",
    "runtime/step/process.py",
    "transport/wire/nics.py",
}
"""These read what the kernel says of processes, devices and networks, in /proc and /sys."""
OWN = {
    "corpus/sample_text.py": READS,
    "objects/agent.py": {"loads"},
    "objects/client.py": {"loads"},
    "report/page.py": READS,
    "runtime/run/facts.py": {"loads"},
}
"""Python's own sources as a text to train on; what a process and its agent say to each other; the
page's own scripts and style; a table that was made a moment before."""
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE / "readers")


def calls(path: Path) -> list[tuple[str, str, int]]:
    """(what it is called on, name, line) of every call of an attribute."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (ast.unparse(node.func.value), node.func.attr, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_but_the_readers_parses_a_format_or_reads_a_file(path: Path) -> None:
    name = str(path.relative_to(SOURCE))
    for owner, call, line in calls(path):
        if call in OWN.get(name, set()):
            continue
        assert call not in PARSERS.get(owner, set()), f"{name}:{line} calls {owner}.{call}"
        reads = call in READS and owner != "files" and name not in KERNEL
        assert not reads, f"{name}:{line} reads a file: use ratrain.readers.files"


@pytest.mark.parametrize("path", sorted((SOURCE / "cli").rglob("*.py")), ids=lambda path: path.stem)
def test_no_verb_writes_a_file_but_whole_and_without_waiting_for_a_pipes_reader(path: Path) -> None:
    for owner, call, line in calls(path):
        assert call not in ("write_text", "write_bytes"), (
            f"{path.name}:{line} writes {owner}: use ratrain.readers.writing.write_whole"
        )


@pytest.mark.slow
def test_python_started_by_python_imports_nothing_of_the_folder_that_it_stands_in() -> None:
    starts = 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.List) and node.elts:
                words = [ast.unparse(word) for word in node.elts]
                if words[0] == "sys.executable":
                    starts += 1
                    assert words[1] == "'-P'", f"{path.name}:{node.lineno}"
    assert starts > 5


def test_the_readers_are_seen_to_parse() -> None:
    seen = {
        (owner, call)
        for path in (SOURCE / "readers").glob("*.py")
        for owner, call, _ in calls(path)
    }
    assert {("json", "loads"), ("tomllib", "loads"), ("csv", "reader")} <= seen


def options(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    """Every option and argument of a command and of those in it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options(inner, f"{path} {name}")
    for parameter in command.params:
        yield f"{path} {parameter.opts[0]}", parameter


def test_every_number_on_the_command_line_has_bounds_and_every_path_may_be_one() -> None:
    names: list[str] = []
    for name, parameter in options(ratrain, "ratrain"):
        names.append(name)
        kind = parameter.type
        if isinstance(kind, (click.IntRange, click.FloatRange)):
            assert kind.min is not None and kind.max is not None, f"{name} has no bound"
        else:
            assert kind not in (click.INT, click.FLOAT), f"{name} has no bounds"
        assert not isinstance(kind, (click.File, click.Path)) or isinstance(kind, FilePath), name
    assert len(names) == len(set(names)) > 100
