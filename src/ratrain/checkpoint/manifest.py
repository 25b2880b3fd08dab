"""The manifest: everything that makes a checkpoint whole, under a checksum of its own.

It is JSON. Its last key holds the SHA-256 of the file's own bytes, taken with zeros in that
place, so that a change of any bit of it shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from typing import Any, cast

from ratrain.checkpoint.entries import Entry, gaps

FORMAT = "ratrain-checkpoint"
VERSION = 1
NAME = "manifest.json"

_ZEROS = "0" * 64
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
            {**asdict(each.entry), "offset": each.offset, "sha256": list(each.sha256)}
            for each in self.stored
        ]
        return {**vars(self), "stored": stored}

    @staticmethod
    def of_json(body: Mapping[str, Any]) -> RankRecord:
        stored: list[StoredEntry] = []
        for row in body["stored"]:
            fields = dict(row)
            offset, digests = fields.pop("offset"), fields.pop("sha256")
            stored.append(StoredEntry(Entry(**fields), int(offset), tuple(digests)))
        file, header_sha256 = str(body["file"]), str(body["header_sha256"])
        size_bytes, header_bytes = int(body["size_bytes"]), int(body["header_bytes"])
        return RankRecord(file, size_bytes, header_bytes, header_sha256, tuple(stored))


@dataclass(frozen=True)
class Meta:
    """What a checkpoint is of. `state` is free JSON: loss scale, data position, ..."""

    step: int
    model: str
    config_hash: str
    units: Mapping[str, int]  # elements of each unit, without padding
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's list of files and what is in them."""

    meta: Meta
    created_s: float  # since 1970
    files: tuple[RankRecord, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def tensor_bytes(self) -> int:
        """Bytes under the tensors' checksums: all but the headers."""
        return self.size_bytes - sum(file.header_bytes for file in self.files)

    @cached_property
    def ranges(self) -> dict[tuple[str, str], list[tuple[RankRecord, StoredEntry]]]:
        """By unit and kind, where each range lies, in ascending order."""
        placed = [(file, stored) for file in self.files for stored in file.stored]

        def key(one: tuple[RankRecord, StoredEntry]) -> tuple[str, str]:
            return one[1].entry.unit, one[1].entry.kind

        placed.sort(key=lambda one: (key(one), one[1].entry.begin))
        return {name: list(found) for name, found in groupby(placed, key)}


def faults(manifest: Manifest) -> list[str]:
    """What keeps a manifest's ranges from being each unit's every element once, in words."""
    units = manifest.meta.units
    kinds = {kind for _, kind in manifest.ranges}
    wanted = {(unit, kind) for unit in units for kind in kinds}
    found = [
        f"unit {unit!r} is not one of the model's" for unit, _ in manifest.ranges.keys() - wanted
    ]
    if not kinds:
        found.append("it holds no tensor")
    for unit, kind in sorted(wanted):
        entries = [stored.entry for _, stored in manifest.ranges.get((unit, kind), [])]
        found += [
            f"{unit}/{kind} was written for a unit of {entry.size} elements, not {units[unit]}"
            for entry in entries
            if entry.size != units[unit]
        ]
        for what, begin, end in gaps(entries, units[unit]):
            said = "is missing" if what == "missing" else "is there twice"
            found.append(f"{unit}/{kind} [{begin}, {end}) {said}")
    return found


def render(manifest: Manifest) -> bytes:
    """The manifest's file. ValueError or TypeError where `state` is not plain JSON."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        **vars(manifest.meta),
        "created_s": manifest.created_s,
        "files": [file.as_json() for file in manifest.files],
        "sha256": _ZEROS,
    }
    text = (json.dumps(body, indent=1, allow_nan=False) + "\n").encode()
    digest = sha256(text).hexdigest()
    return text[: -len(_ZEROS) - 4] + digest.encode() + text[-4:]


def parse(text: bytes) -> Manifest:
    """The manifest of a file's bytes; `Damage` says what is wrong with them."""
    tail = _TAIL.search(text)
    if tail is None:
        raise Damage("is not a whole manifest: it is cut off, or was written by something else")
    zeroed = text[: tail.start(1)] + _ZEROS.encode() + text[tail.end(1) :]
    if sha256(zeroed).hexdigest().encode() != tail[1]:
        raise Damage("is altered: its checksum does not match")
    body = cast(dict[str, Any], json.loads(text))
    if (body.get("format"), body.get("version")) != (FORMAT, VERSION):
        raise Damage(
            f"has format {body.get('format')!r}, version {body.get('version')!r}; "
            f"this ratrain reads {FORMAT!r}, version {VERSION}"
        )
    try:
        files = tuple(RankRecord.of_json(each) for each in body["files"])
        meta = Meta(**{key: body[key] for key in Meta.__dataclass_fields__})
        return Manifest(meta, float(body["created_s"]), files)
    except (KeyError, TypeError, AttributeError) as error:
        raise Damage(f"lacks a key: {error}") from error
