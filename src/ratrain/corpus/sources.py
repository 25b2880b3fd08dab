"""Which files a job's `[data] files` means, and how each is read."""

from __future__ import annotations

import glob
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ratrain.errors import SpecError

Kind = Literal["text", "json-lines", "parquet", "arrow"]

TEXT_SUFFIXES = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".org"),
    *(".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".js", ".ts", ".sh"),
    *(".toml", ".yaml", ".yml", ".sql", ".lua", ".rb", ".pl", ".f90", ".jl", ".scala", ".kt"),
)
"""Files that are one document as they stand."""

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
KINDS: tuple[tuple[tuple[str, ...], Kind], ...] = (
    (JSON_LINES_SUFFIXES, "json-lines"),
    ((".parquet",), "parquet"),
    ((".arrow",), "arrow"),
    (TEXT_SUFFIXES, "text"),
)


@dataclass(frozen=True)
class Source:
    """One file of documents as it stood when it was looked at."""

    path: Path  # absolute
    kind: Kind
    compressed: bool  # gzip
    size_bytes: int
    mtime_ns: int


def sources_of(patterns: tuple[str, ...], base: Path | None = None) -> tuple[Source, ...]:
    """The files of all patterns in their order, each pattern's sorted by name, none twice.

    A pattern is a file, a folder that Hugging Face's `save_to_disk` wrote, or a glob in which
    `**` spans folders. Relative ones start at `base`. One that names nothing is a SpecError.
    """
    if not patterns:
        raise SpecError("no files", place="[data] files", fix="name at least one file")
    found: dict[Path, Source] = {}
    for pattern in patterns:
        try:
            for path in _matches(pattern, base or Path()):
                for file in _arrow_files(path) if path.is_dir() else (path,):
                    source = source_of(file)
                    found.setdefault(source.path, source)
        except OSError as error:  # no permission on the way, a name too long, a loop of links
            raise SpecError(f"cannot be read: {error.strerror}", place=pattern) from error
    return tuple(found.values())


def source_of(path: Path) -> Source:
    """The source of one file; its kind is told by its suffix, `.gz` behind it aside."""
    if not path.is_file():
        what = "not a regular file" if path.exists() else "no such file"
        raise SpecError(what, place=str(path), fix="name a file that exists")
    kind, compressed = _kind_of(path)
    stat = path.stat()
    return Source(path.resolve(), kind, compressed, stat.st_size, stat.st_mtime_ns)


def _matches(pattern: str, base: Path) -> list[Path]:
    """Paths that a pattern names; a name that exists is never taken for a pattern."""
    literal = base / pattern
    if literal.exists():
        return [literal]
    # pathlib's own glob takes no absolute pattern and does not skip hidden files
    names = sorted(glob.glob(pattern, root_dir=base, recursive=True))  # noqa: PTH207
    paths = [base / name for name in names]
    if len(paths) > 1:  # `**` also gives the folders on the way
        paths = [path for path in paths if not path.is_dir() or _is_saved(path)]
    if not paths:
        magic = glob.has_magic(pattern)
        raise SpecError(
            "no file matches" if magic else "no such file",
            place=str(literal),
            fix="paths are relative to the job file",
        )
    return paths


def _kind_of(path: Path) -> tuple[Kind, bool]:
    name = path.name.lower()
    compressed = name.endswith(".gz")
    suffix = Path(name.removesuffix(".gz")).suffix
    for suffixes, kind in KINDS:
        if suffix in suffixes and not (compressed and kind in ("parquet", "arrow")):
            return kind, compressed
    raise SpecError(
        f"no reader for the suffix {''.join(path.suffixes[-2:])!r}",
        place=str(path),
        fix="use .txt, .md, .rst or source code, .jsonl (both may end in .gz), .parquet, .arrow",
    )


def _is_saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _arrow_files(folder: Path) -> tuple[Path, ...]:
    """The Arrow files of a folder that `Dataset.save_to_disk` wrote, in their order.

    The order and names stand in its state.json, as {"_data_files": [{"filename": ...}]}.
    """
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = [str(name) for name in _read_json(splits).get("splits", [])]
        raise SpecError(
            f"a dataset of {len(names)} splits: {', '.join(names)}",
            place=str(folder),
            fix=f'name one: "{folder.name}/{names[0] if names else "train"}"',
        )
    state = folder / "state.json"
    if not state.is_file():
        raise SpecError(
            "a folder, but not one that save_to_disk wrote: it has no state.json",
            place=str(folder),
            fix=f'name its files, as in "{folder.name}/*.jsonl"',
        )
    table = _read_json(state)
    if table.get("_indices_data_files"):
        raise SpecError(
            "a selection of rows is saved beside the data",
            place=str(state),
            fix="call flatten_indices() before save_to_disk()",
        )
    files: Any = table.get("_data_files")
    try:
        paths = tuple(folder / str(file["filename"]) for file in files)
    except (TypeError, KeyError) as error:
        raise SpecError("it does not list _data_files", place=str(state)) from error
    if not paths:
        raise SpecError("its list of _data_files is empty", place=str(state))
    return paths


def _read_json(path: Path) -> dict[str, Any]:
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"cannot be read: {error}", place=str(path)) from error
    if not isinstance(table, dict):
        raise SpecError("not a JSON table", place=str(path))
    return cast("dict[str, Any]", table)
