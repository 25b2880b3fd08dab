"""Which files a job's `[data] files` means, and how each is read."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ratrain.corpus.cache import default_cache
from ratrain.errors import SpecError
from ratrain.objects.mirror import mirrored
from ratrain.objects.remote import is_url
from ratrain.readers.files import inside, shown, unreadable
from ratrain.readers.json import as_table, read_json_table
from ratrain.readers.place import Place

Kind = Literal["text", "json-lines", "parquet", "arrow"]

TEXT_SUFFIXES = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".org"),
    *(".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".js", ".ts", ".sh"),
    *(".toml", ".yaml", ".yml", ".sql", ".lua", ".rb", ".pl", ".f90", ".jl", ".scala", ".kt"),
)
"""Files that are one document each, unchanged."""

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
KINDS: tuple[tuple[tuple[str, ...], Kind], ...] = (
    (JSON_LINES_SUFFIXES, "json-lines"),
    ((".parquet",), "parquet"),
    ((".arrow",), "arrow"),
    (TEXT_SUFFIXES, "text"),
)


MOST_DEEP = 2
"""Of `**` in a pattern: each one more multiplies the time to match by the number of folders."""

SAMPLE_TEXT = "quickstart-text.jsonl"
"""The text of the examples' jobs, which is made on the user's machine."""


_SAVE_AGAIN = "save the dataset again with save_to_disk()"


@dataclass(frozen=True)
class Source:
    """One file of documents as it was when it was looked at."""

    path: Path  # absolute
    kind: Kind
    compressed: bool  # gzip
    size_bytes: int
    mtime_ns: int


def sources_of(
    patterns: tuple[str, ...], base: Path | None = None, place: str = "[data] files"
) -> tuple[Source, ...]:
    """The files of all patterns in their order, each pattern's sorted by name, none twice.

    A pattern is a file, a folder that Hugging Face's `save_to_disk` wrote, or a glob in which
    `**` spans folders. Relative ones start at `base`. One that names nothing is a SpecError.
    """
    if not patterns:
        raise SpecError("no files", place=place, fix="give at least one file")
    sources: dict[Path, Source] = {}
    for pattern in patterns:
        try:
            for path in _matches(pattern, base or Path(), place):
                for file in _arrow_files(path, place) if path.is_dir() else (path,):
                    source = source_of(file)
                    sources.setdefault(source.path, source)
        except OSError as error:  # no permission on the way, a name too long, a loop of links
            refused = unreadable(Path(pattern), error)
            problem = f"{shown(refused.place)}: {refused.what}"
            raise SpecError(problem, place=place, fix=refused.fix) from error
    return tuple(sources.values())


def source_of(path: Path) -> Source:
    """The source of one file; its suffix gives its kind, a `.gz` after it aside."""
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "no such file"
        raise SpecError(problem, place=str(path), fix="give a file that exists")
    kind, compressed = _kind_of(path)
    stat = path.stat()
    return Source(path.resolve(), kind, compressed, stat.st_size, stat.st_mtime_ns)


def _matches(pattern: str, base: Path, place: str) -> list[Path]:
    """Paths that a pattern names; a name that exists is never taken for a pattern. Of a URL those
    of copies here."""
    if is_url(pattern):
        return mirrored(pattern, default_cache().parent / "objects", place)
    literal = base / pattern
    if literal.exists():
        return [literal]
    if pattern.count("**") > MOST_DEEP:
        raise SpecError(
            f"** more than {MOST_DEEP} times in a pattern",
            place=shown(pattern),
            fix="write it once: ** matches any number of folders",
        )
    # pathlib's own glob takes no absolute pattern and does not skip hidden files
    names = sorted(glob.glob(pattern, root_dir=base, recursive=True))  # noqa: PTH207
    paths = [base / name for name in names]
    if len(paths) > 1:  # `**` also gives the folders on the way
        paths = [path for path in paths if not path.is_dir() or _is_saved(path)]
    if not paths:
        magic = glob.has_magic(pattern)
        raise SpecError(
            f"no file matches {shown(str(literal))}" if magic else f"no such file: {literal}",
            place=place,
            fix=_fix_of_missing(literal, base, magic),
        )
    return paths


def _fix_of_missing(path: Path, base: Path, is_pattern: bool) -> str:
    """What to do where a name or pattern leads to nothing."""
    if path.name == SAMPLE_TEXT:
        return f"write it with `ratrain data --sample-text {path}`"
    from_where = " (relative to the job file)" if base.parts else ""
    if is_pattern:
        return f"correct the pattern{from_where}"
    return f"create it, or correct the path{from_where}"


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


def _arrow_files(folder: Path, named_at: str) -> tuple[Path, ...]:
    """The Arrow files of a folder that `Dataset.save_to_disk` wrote, in their order.

    The order and names stand in its state.json, as {"_data_files": [{"filename": ...}]}.
    """
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        table, place = read_json_table(splits)
        listed = table.get("splits")
        if not isinstance(listed, list):
            raise SpecError("it does not list its splits", place=str(place), fix=_SAVE_AGAIN)
        names = [str(name)[:80] for name in cast("list[Any]", listed)]
        raise SpecError(
            f"a dataset of {len(names)} splits: {', '.join(names)}",
            place=str(folder),
            fix=f'choose one: "{folder.name}/{names[0] if names else "train"}"',
        )
    state = folder / "state.json"
    if not state.is_file():
        raise SpecError(
            f"{folder} is a folder, but not one that save_to_disk wrote: it has no state.json",
            place=named_at,
            fix=f'give its files, as in "{folder / "*.jsonl"}"',
        )
    table, place = read_json_table(state)
    if table.get("_indices_data_files"):
        raise SpecError(
            "the dataset stores a selection of rows separately",
            place=str(state),
            fix="call flatten_indices() before save_to_disk()",
        )
    files, files_place = table.get("_data_files"), place.at("_data_files")
    if not isinstance(files, list) or not files:
        raise SpecError("it lists no files", place=str(files_place), fix=_SAVE_AGAIN)
    return tuple(
        _file_of(folder, entry, files_place.at(number))
        for number, entry in enumerate(cast("list[Any]", files))
    )


def _file_of(folder: Path, entry: Any, place: Place) -> Path:
    """The file of {"filename": ...}."""
    table, _ = as_table(entry, place)
    return inside(folder, table.get("filename"), str(place.at("filename")))
