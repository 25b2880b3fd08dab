"""The examples that come with the package, each with the files it refers to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.readers import files
from ratrain.readers.json import read_json
from ratrain.readers.toml import read_toml
from ratrain.readers.writing import write_whole

FOLDER = Path(__file__).parents[2] / "examples"
_SUFFIXES = (".toml", ".json", ".py")
_README = "README.md"


@dataclass(frozen=True)
class Example:
    """A file, and what it is about: the first words of its own comment. Or a folder with a
    README.md, whose first line says it."""

    path: Path
    about: str

    @property
    def name(self) -> str:
        return self.path.name


def examples() -> list[Example]:
    """All of them, by name."""
    found = sorted(
        path for path in FOLDER.iterdir() if path.suffix in _SUFFIXES or (path / _README).is_file()
    )
    return [Example(path, _about(path)) for path in found]


def write_example(name: str, folder: Path) -> list[Path]:
    """Writes an example and what it refers to, at the same places below `folder`; returns the new
    files, the example first. What is there already and is the same stays."""
    names = [example.name for example in examples()]
    name = next((full for full in names if full.partition(".")[0] == name), name)
    if name not in names:
        raise SpecError(
            f"there is no example {name!r}", place="ratrain init example", fix=nearest(name, names)
        )
    sources = list(dict.fromkeys(_with_references(FOLDER / name)))
    targets = [folder / file.relative_to(FOLDER) for file in sources]
    for file, target in zip(sources, targets, strict=True):
        if target.exists() and files.read_bytes(target) != files.read_bytes(file):
            raise SpecError(
                "already exists, and is another file",
                place=str(target),
                fix="choose another folder with -o",
            )
    for file, target in zip(sources, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, files.read_text(file))
    return targets


def _about(path: Path) -> str:
    """Its leading comment; of a file that can hold none, what it is."""
    if path.is_dir():
        return files.read_text(path / _README).splitlines()[0]
    if path.suffix == ".json":
        model = read_json(path)[0]["model"]["name"]
        return f"A plan file: {model}, on devices that differ."
    lines = files.read_text(path).lstrip('"#').splitlines()
    first = [lines[0]]
    for line in lines[1:]:
        if not line.startswith("#"):
            break
        first.append(line)
    return " ".join(line.strip('"# ') for line in first)


def _with_references(file: Path) -> Iterator[Path]:
    """A file, and those that its values name, relative to it, and so on; of a folder all, its
    README.md first."""
    if file.is_dir():
        yield file / _README
        every = sorted(path for path in file.rglob("*") if path.is_file())
        yield from (path for path in every if path.parent.name != "__pycache__")
        return
    yield file
    for text in _texts(file):
        other = file.parent / text
        if text and "\n" not in text and other.is_file():
            yield from _with_references(other)


def _texts(file: Path) -> Iterator[str]:
    """All texts among a file's values."""
    body: Any = None
    if file.suffix == ".toml":
        body = read_toml(file)[0]
    elif file.suffix == ".json":
        body = read_json(file)[0]
    values: list[Any] = [body]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += cast("dict[str, Any]", value).values()
        elif isinstance(value, list):
            values += cast("list[Any]", value)
        elif isinstance(value, str):
            yield value
