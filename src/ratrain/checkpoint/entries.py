"""What a rank's file holds: ranges of the flat buffers of units, one kind of state each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratrain.errors import CheckpointError

OPTIMIZER = "optimizer"
"""The key of a manifest's state that names it; earlier versions had none but AdamW."""

ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
"""Bytes of an element, by the name that safetensors gives the type."""

BUFFER_FORMATS = {"F32": ("f",), "BF16": ("H",), "F16": ("e", "H")}
"""The buffer formats that may hold each type; numpy has no bfloat16, its bits come as uint16."""

BLOCK_BYTES = 16 << 20
"""One checksum covers this much of a tensor: a reader verifies only the blocks it touches."""


@dataclass(frozen=True)
class Entry:
    """Elements [begin, begin + elements) of one kind of state of one unit.

    `size` counts the elements of the whole unit, without the padding that a layout adds.
    """

    unit: str
    kind: str
    begin: int
    elements: int
    size: int
    dtype: str = "F32"

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES:
            raise CheckpointError(
                f"unknown type {self.dtype!r}",
                place=self.name,
                fix=f"use {', '.join(ELEMENT_BYTES)}",
            )
        if self.begin < 0 or self.elements < 1 or self.end > self.size:
            raise CheckpointError(
                f"a range [{self.begin}, {self.end}) of {self.size} elements",
                place=self.name,
                fix="store at least one element, and none past the unit's size",
            )

    @property
    def name(self) -> str:
        """The tensor's name: "7/moment1@4096" for layer 7 from element 4096 on."""
        return f"{self.unit}/{self.kind}@{self.begin}"

    @property
    def end(self) -> int:
        return self.begin + self.elements

    @property
    def size_bytes(self) -> int:
        return self.elements * ELEMENT_BYTES[self.dtype]

    @property
    def block_elements(self) -> int:
        """Elements under one checksum; the last block may hold fewer."""
        return BLOCK_BYTES // ELEMENT_BYTES[self.dtype]

    @property
    def blocks(self) -> int:
        return -(-self.elements // self.block_elements)


def clipped(
    unit: str, kind: str, begin: int, end: int, size: int, dtype: str = "F32"
) -> Entry | None:
    """The entry of a range that may reach into padding; None where it holds padding alone."""
    end = min(end, size)
    return Entry(unit, kind, begin, end - begin, size, dtype) if begin < end else None


def gaps(entries: list[Entry], size: int) -> Iterator[tuple[str, int, int]]:
    """("missing" or "double", begin, end) wherever entries do not cover [0, size) exactly once."""
    reached = 0
    for entry in sorted(entries, key=lambda entry: entry.begin):
        if entry.begin > reached:
            yield "missing", reached, entry.begin
        elif entry.begin < reached:
            yield "double", entry.begin, min(entry.end, reached)
        reached = max(reached, entry.end)
    if reached < size:
        yield "missing", reached, size
