"""The header of a rank's file, so that any safetensors library can read it.

A safetensors file is 8 bytes of header length, a JSON header, then the tensors without a gap.
Checksums are not in it: the header is written before they are known. They stand in the
manifest, together with the header's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratrain.checkpoint.entries import ELEMENT_BYTES, Entry
from ratrain.errors import CheckpointError

ALIGN_BYTES = 64


@dataclass(frozen=True)
class FileLayout:
    """Where each tensor is in a rank's file. Offsets count bytes from the file's beginning."""

    header: bytes
    entries: tuple[Entry, ...]
    offsets: tuple[int, ...]
    size_bytes: int


def lay_out_file(entries: Sequence[Entry], path: Path) -> FileLayout:
    """The header and offsets of a file that holds `entries`, four-byte types first."""
    ordered = sorted(entries, key=lambda entry: -ELEMENT_BYTES[entry.dtype])
    if len({entry.name for entry in ordered}) < len(ordered):
        raise CheckpointError(
            "two ranges begin at the same element", place=str(path), fix="store each range once"
        )
    tensors: dict[str, object] = {"__metadata__": _metadata(ordered)}
    ends = [0]
    for entry in ordered:
        ends.append(ends[-1] + entry.size_bytes)
        tensors[entry.name] = _row(entry.dtype, entry.elements, *ends[-2:])
    text = _text(tensors)
    header = _header(text, -(8 + len(text)) % ALIGN_BYTES)
    offsets = tuple(len(header) + begin for begin in ends[:-1])
    return FileLayout(header, tuple(ordered), offsets, len(header) + ends[-1])


def header_ahead(
    placed: Sequence[tuple[Entry, int]], ahead_bytes: int, size_bytes: int
) -> bytes | None:
    """The header, of `ahead_bytes`, of a file of that size in which tensors lie at some offsets;
    what is between them and behind them has names too. None where there is not so much room."""
    tensors: dict[str, object] = {"__metadata__": _metadata([entry for entry, _ in placed])}
    reached = ahead_bytes
    for entry, begin in (*sorted(placed, key=lambda pair: pair[1]), (None, size_bytes)):
        if begin > reached:
            unused = reached - ahead_bytes, begin - ahead_bytes
            tensors[f"unused@{reached}"] = _row("U8", begin - reached, *unused)
        if entry is not None:
            reached = begin + entry.size_bytes
            ends = begin - ahead_bytes, reached - ahead_bytes
            tensors[entry.name] = _row(entry.dtype, entry.elements, *ends)
    text = _text(tensors)
    spare_bytes = ahead_bytes - 8 - len(text)
    return _header(text, spare_bytes) if spare_bytes >= 0 else None


def _row(dtype: str, elements: int, begin: int, end: int) -> object:
    return {"dtype": dtype, "shape": [elements], "data_offsets": [begin, end]}


def _text(tensors: dict[str, object]) -> bytes:
    return json.dumps(tensors, separators=(",", ":")).encode()


def _header(text: bytes, spare_bytes: int) -> bytes:
    text += b" " * spare_bytes
    return len(text).to_bytes(8, "little") + text


def _metadata(entries: Sequence[Entry]) -> dict[str, str]:
    """What the file says of itself without a manifest; safetensors allows only strings."""
    ranges = {entry.name: f"begin={entry.begin} size={entry.size}" for entry in entries}
    return {"format": "ratrain-checkpoint", **ranges}
