"""The manifest: everything that makes a checkpoint whole, under a checksum of its own.

It is JSON. Its last key holds the SHA-256 of the file's own bytes, taken with zeros in that
place, so that a change of any bit shows.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from ratrain.checkpoint.entries import Entry, gaps
from ratrain.checkpoint.own import own_kinds, shared_kind
from ratrain.describe.saved import saved_as
from ratrain.errors import CheckpointError, SpecError
from ratrain.readers.files import shown
from ratrain.readers.json import as_table, parse_json
from ratrain.readers.limits import NAME_BYTES, TENSOR_HEADER_BYTES

FORMAT = "ratrain-checkpoint"
VERSION = 1
NAME = "manifest.json"

_ZEROS = "0" * 64
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_BYTES = 1 << 53
_MOST_SECONDS = 1e12
MOST_STEPS = 10**12
_TAIL = re.compile(rb'"sha256": "([0-9a-f]{64})"\n}\n\Z')


class Damage(ValueError):
    """What is wrong with a manifest; the reader adds which file it is and what to do."""


@dataclass(frozen=True)
class StoredEntry:
    """An entry in its file: `offset` in bytes, and a SHA-256 for each block of it."""

    entry: Entry
    offset: int
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class RankRecord:
    """What one rank has written: it travels to the rank that commits."""

    file: str
    size_bytes: int
    header_bytes: int
    header_sha256: str
    stored: tuple[StoredEntry, ...]

    def as_json(self) -> dict[str, Any]:
        stored = [
            {**asdict(tensor.entry), "offset": tensor.offset, "sha256": list(tensor.sha256)}
            for tensor in self.stored
        ]
        return {**vars(self), "stored": stored}

    @staticmethod
    def of_json(body: Any) -> RankRecord:
        """The record that `as_json` gave; `Damage` says what is wrong with it."""
        _require(isinstance(body, dict), f"a file is {shown(body)}")
        file = _text_of(body, "file")
        _require(Path(file).name == file, f"{shown(file)} is not the name of a file in its folder")
        size_bytes = _whole_of(body, "size_bytes", 0, _MOST_BYTES)
        header_bytes = _whole_of(body, "header_bytes", 8, min(size_bytes, TENSOR_HEADER_BYTES))
        rows = body.get("stored")
        _require(isinstance(rows, list), f"{file} lists no tensors")
        stored = tuple(_stored(row, header_bytes, size_bytes) for row in cast("list[Any]", rows))
        return RankRecord(file, size_bytes, header_bytes, _digest_of(body, "header_sha256"), stored)


@dataclass(frozen=True)
class Meta:
    """What a checkpoint is of. `state` is free JSON: loss scale, data position, ..."""

    step: int
    model: str
    config_hash: str
    units: Mapping[str, int]  # elements of each unit, without padding
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """Where the files of a checkpoint lie that was saved to several disks, each with this manifest:
    `disks` names the disks' hosts, `disk_of` gives each file's, and `here` is this disk."""

    disks: tuple[str, ...]
    disk_of: Mapping[str, int]
    here: int

    def host_of(self, file: str) -> str:
        return self.disks[self.disk_of[file]]


def own_file(file: str) -> str:
    """The file that a rank writes, of any file of its."""
    return f"{file.partition('.')[0]}.safetensors"


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's list of files and what is in them. `spread` is None where all files lie
    beside the manifest."""

    meta: Meta
    created_s: float  # since 1970
    files: tuple[RankRecord, ...]
    spread: Spread | None = None

    @property
    def local_files(self) -> tuple[RankRecord, ...]:
        """The files that were written to this disk."""
        spread = self.spread
        if spread is None:
            return self.files
        return tuple(file for file in self.files if spread.disk_of[file.file] == spread.here)

    @property
    def ranks(self) -> int:
        """How many wrote it."""
        return len({own_file(record.file) for record in self.files})

    @cached_property
    def identity(self) -> str:
        """The same on all disks that a checkpoint was saved to, and for no other checkpoint."""
        spread = self.spread and replace(self.spread, here=0)
        return sha256(render(replace(self, spread=spread))).hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def tensor_bytes(self) -> int:
        """Bytes under the tensors' checksums: all but the headers."""
        return self.size_bytes - sum(file.header_bytes for file in self.files)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of state it holds: weights and moments of every unit, others of some."""
        return tuple(sorted({kind for _, kind in self.ranges}))

    def kinds_of(self, unit: str) -> tuple[str, ...]:
        """The kinds of state that it holds of a unit."""
        return self._kinds.get(unit, ())

    @cached_property
    def _kinds(self) -> dict[str, tuple[str, ...]]:
        kinds: dict[str, list[str]] = defaultdict(list)
        for unit, kind in self.ranges:
            kinds[unit].append(kind)
        return {unit: tuple(sorted(of_unit)) for unit, of_unit in kinds.items()}

    @cached_property
    def ranges(self) -> dict[tuple[str, str], list[tuple[RankRecord, StoredEntry]]]:
        """By unit and kind, where each range is stored, in ascending order."""
        placed = [(file, stored) for file in self.files for stored in file.stored]

        def key(pair: tuple[RankRecord, StoredEntry]) -> tuple[str, str]:
            return pair[1].entry.unit, pair[1].entry.kind

        placed.sort(key=lambda pair: (key(pair), pair[1].entry.begin))
        return {name: list(entries) for name, entries in groupby(placed, key)}


def faults(manifest: Manifest) -> list[str]:
    """In words, why a manifest's ranges do not hold every element of each unit exactly once."""
    units, kinds = manifest.meta.units, manifest.kinds
    of_all = {kind for kind in map(shared_kind, kinds) if saved_as(kind).begins is None}
    expected: set[tuple[str, str]] = set()
    for unit in units:
        here = manifest.kinds_of(unit)
        for kind in of_all | set(map(shared_kind, here)):
            expected |= {(unit, each) for each in own_kinds(kind, here) or [kind]}
    problems = [
        f"unit {unit!r} is not one of the model's" for unit, _ in manifest.ranges.keys() - expected
    ]
    if not kinds:
        problems.append("it holds no tensor")
    for unit, kind in sorted(expected):
        entries = [stored.entry for _, stored in manifest.ranges.get((unit, kind), [])]
        problems += [
            f"{unit}/{kind} was written for a unit of {entry.size} elements, not {units[unit]}"
            for entry in entries
            if entry.size != units[unit]
        ]
        for fault, begin, end in gaps(entries, units[unit]):
            verdict = "is missing" if fault == "missing" else "appears twice"
            problems.append(f"{unit}/{kind} [{begin}, {end}) {verdict}")
    return problems


def render(manifest: Manifest) -> bytes:
    """The manifest's file. ValueError or TypeError where `state` is not plain JSON."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        **vars(manifest.meta),
        "created_s": manifest.created_s,
        "files": [file.as_json() for file in manifest.files],
        **({"spread": asdict(manifest.spread)} if manifest.spread else {}),
        "sha256": _ZEROS,
    }
    text = (json.dumps(body, indent=1, allow_nan=False) + "\n").encode()
    digest = sha256(text).hexdigest()
    return text[: -len(_ZEROS) - 4] + digest.encode() + text[-4:]


def parse(text: bytes) -> Manifest:
    """The manifest of a file's bytes; `Damage` says what is wrong with them."""
    tail = _TAIL.search(text)
    if tail is None:
        raise Damage("is not a complete manifest: it is truncated, or was not written by ratrain")
    zeroed = text[: tail.start(1)] + _ZEROS.encode() + text[tail.end(1) :]
    if sha256(zeroed).hexdigest().encode() != tail[1]:
        raise Damage("is altered: its checksum does not match")
    try:
        body, _ = as_table(*parse_json(text, NAME))
    except SpecError as error:
        raise Damage(f"cannot be read: {error.place.removeprefix(NAME)} {error.what}") from error
    if (body.get("format"), body.get("version")) != (FORMAT, VERSION):
        raise Damage(
            f"has format {body.get('format')!r}, version {body.get('version')!r}; "
            f"this ratrain reads {FORMAT!r}, version {VERSION}"
        )
    files = body.get("files")
    _require(isinstance(files, list), "lists no files")
    records = tuple(RankRecord.of_json(row) for row in cast("list[Any]", files))
    created_s = body.get("created_s")
    _require(
        type(created_s) in (int, float) and 0 <= cast("float", created_s) < _MOST_SECONDS,
        f"has an invalid time, {shown(created_s)}",
    )
    spread = _spread(body.get("spread"), records)
    return Manifest(meta_of(body), float(cast("float", created_s)), records, spread)


def meta_of(body: Mapping[str, Any]) -> Meta:
    """What a checkpoint is of, from a table of its fields; `Damage` says what is wrong with it."""
    sizes = _table_of(body, "units")
    return Meta(
        _whole_of(body, "step", 0, MOST_STEPS),
        _text_of(body, "model"),
        _text_of(body, "config_hash"),
        {name: _whole_of(sizes, name, 1, _MOST_BYTES) for name in sizes},
        _table_of(body, "state"),
    )


def _spread(body: Any, records: tuple[RankRecord, ...]) -> Spread | None:
    """On which disks the files lie; every one of them on one of the disks that are named."""
    if body is None:
        return None
    fields = _table_of({"spread": body}, "spread")
    disks, disk_of = fields.get("disks"), _table_of(fields, "disk_of")
    if not isinstance(disks, list) or not disks:
        raise Damage(f"has {shown(cast('object', disks))} for disks, not a list of their hosts")
    names = dict(enumerate(cast("list[Any]", disks)))
    hosts = tuple(_text_of(names, number) for number in names)
    last = len(hosts) - 1
    numbers = {record.file: _whole_of(disk_of, record.file, 0, last) for record in records}
    return Spread(hosts, numbers, _whole_of(fields, "here", 0, last))


def _stored(row: Any, header_bytes: int, size_bytes: int) -> StoredEntry:
    """A tensor of a file of `size_bytes` with this header."""
    _require(isinstance(row, dict), f"a tensor is {shown(row)}")
    fields = cast("dict[str, Any]", row)
    begin, elements, size = (
        _whole_of(fields, name, 0, _MOST_BYTES) for name in ("begin", "elements", "size")
    )
    try:
        entry = Entry(
            _text_of(fields, "unit"),
            _text_of(fields, "kind"),
            begin,
            elements,
            size,
            _text_of(fields, "dtype"),
        )
    except CheckpointError as error:
        raise Damage(f"says {error.place}: {error.what}") from error
    digests = fields.get("sha256")
    _require(
        isinstance(digests, list) and len(cast("list[Any]", digests)) == entry.blocks,
        f"has {entry.name} without the checksums of its {entry.blocks} blocks",
    )
    offset = _whole_of(fields, "offset", header_bytes, size_bytes)
    _require(
        offset + entry.size_bytes <= size_bytes, f"has {entry.name} beyond the end of its file"
    )
    numbered = dict(enumerate(cast("list[Any]", digests)))
    return StoredEntry(entry, offset, tuple(_digest_of(numbered, n) for n in numbered))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise Damage(message)


def _whole_of(body: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = body.get(key)
    if type(value) is not int or not low <= value <= high:
        raise Damage(f"has {shown(value)} for {key}, not a whole number from {low:,} to {high:,}")
    return value


def _text_of(body: Mapping[Any, Any], key: object) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value or len(value) > NAME_BYTES:
        raise Damage(f"has {shown(value)} for {key}, not a name")
    return value


def _table_of(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict):
        raise Damage(f"has {shown(value)} for {key}, not a table")
    return cast("dict[str, Any]", value)


def _digest_of(body: Mapping[Any, Any], key: object) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise Damage(f"has {shown(value)} for a checksum ({key})")
    return value
