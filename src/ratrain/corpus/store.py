"""Prepared tokens on disk: `tokens.bin`, and the `index.json` that vouches for it.

tokens.bin is every document's ids in order, each document followed by the end id, as
little-endian uint16 (vocabularies up to 65,536) or uint32; of conversations uint32, and ids that
count have a bit more. index.json carries the SHA-256 of
tokens.bin and, in `checksum`, of its own other fields.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from ratrain.corpus.sources import Source
from ratrain.describe.amounts import FileName
from ratrain.describe.strict import Rule, load
from ratrain.errors import SpecError
from ratrain.readers.files import read_at, read_open, unreadable
from ratrain.readers.json import as_table, parse_json
from ratrain.readers.limits import JSON_BYTES

FORMAT = "ratrain-corpus-1"
TOKENS, INDEX = "tokens.bin", "index.json"
TokenArray = NDArray[np.uint16] | NDArray[np.uint32]
READ_TOKENS = 1 << 20
REMAKE = "delete the folder and prepare it again"


@dataclass(frozen=True)
class SourceRecord:
    """A source file as it was when it was tokenised."""

    path: FileName
    size_bytes: Annotated[int, Rule(low=0)]
    mtime_ns: Annotated[int, Rule(low=-(1 << 63), high=1 << 63)]


@dataclass(frozen=True)
class Index:
    """What tokens.bin holds and what it was made from. File: index.json."""

    format: str
    dtype: Literal["uint16", "uint32"]
    tokens: Annotated[int, Rule(low=1)]
    documents: Annotated[int, Rule(low=1)]
    vocab_size: Annotated[int, Rule(low=1, high=1 << 32)]
    end_id: Annotated[int, Rule(low=0, high=1 << 32)]
    tokenizer: str  # its fingerprint
    text_key: Annotated[str, Rule(low=0)]
    sources: tuple[SourceRecord, ...]
    sha256: str  # of tokens.bin
    conversations: bool = False  # ids of answers have ANSWER (tokenizer.py) added

    @property
    def size_bytes(self) -> int:
        """Of tokens.bin."""
        return self.tokens * np.dtype(self.dtype).itemsize

    def is_of(self, sources: tuple[Source, ...]) -> bool:
        """Whether the sources are still those that were tokenised, by name, size and time."""
        return self.sources == records_of(sources)


@dataclass(frozen=True)
class TokenStore:
    """A prepared folder, open for reading. `file`: tokens.bin, as it was when it was opened,
    whatever takes its name; it is read, not mapped: where a mapped file is cut, the process that
    looks there ends without a word (SIGBUS)."""

    folder: Path
    index: Index
    file: BinaryIO

    def __len__(self) -> int:
        return self.index.tokens

    def read(self, start: int, stop: int) -> TokenArray:
        """The tokens from `start` to `stop`; a SpecError where the file was cut meanwhile."""
        tokens = np.empty(stop - start, np.dtype(self.index.dtype).newbyteorder("<"))
        path, size = self.folder / TOKENS, tokens.itemsize
        try:
            read_bytes = read_at(self.file.fileno(), tokens.data.cast("B"), start * size)
        except OSError as error:
            raise unreadable(path, error) from error
        if read_bytes < tokens.nbytes:
            raise SpecError(
                f"ends after {start * size + read_bytes:,} of {self.index.size_bytes:,} bytes: it "
                "was cut while it was in use",
                place=str(path),
                fix="start again, which tokenises its text anew",
            )
        return tokens

    def verify(self) -> None:
        """Read every token; a SpecError where they are not those that were written."""
        digest = hashlib.sha256()
        for start in range(0, len(self), READ_TOKENS):
            digest.update(self.read(start, min(start + READ_TOKENS, len(self))).tobytes())
        if digest.hexdigest() != self.index.sha256:
            raise SpecError(
                "the tokens differ from those written",
                place=str(self.folder / TOKENS),
                fix=REMAKE,
            )


def records_of(sources: tuple[Source, ...]) -> tuple[SourceRecord, ...]:
    """What an index remembers of sources."""
    return tuple(SourceRecord(str(s.path), s.size_bytes, s.mtime_ns) for s in sources)


def dtype_of(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest type that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def open_store(folder: Path) -> TokenStore:
    """The store of a prepared folder; one that is absent, truncated or altered is a SpecError.

    Both files are opened through one handle of the folder, so that a folder that is replaced at
    this moment gives the old pair or the new one, never a mixture.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.fdopen(os.open(INDEX, os.O_RDONLY, dir_fd=handle), "rb") as file:
                index = read_index(read_open(file, JSON_BYTES), str(folder / INDEX))
            tokens = os.fdopen(os.open(TOKENS, os.O_RDONLY, dir_fd=handle), "rb", buffering=0)
            _require_whole(tokens, index, str(folder / TOKENS))
            return TokenStore(folder, index, tokens)
        finally:
            os.close(handle)
    except OSError as error:
        raise SpecError(
            f"no prepared tokens: {error.strerror}", place=str(folder), fix="prepare them first"
        ) from error


def _require_whole(file: BinaryIO, index: Index, place: str) -> None:
    size_bytes = os.fstat(file.fileno()).st_size
    if size_bytes != index.size_bytes or not size_bytes:
        file.close()
        raise SpecError(
            f"{size_bytes:,} bytes instead of {index.size_bytes:,}", place=place, fix=REMAKE
        )


def write_index(index: Index) -> bytes:
    """The content of index.json."""
    table = asdict(index)
    return json.dumps({**table, "checksum": _checksum(table)}, indent=1).encode()


def read_index(content: bytes, place: str) -> Index:
    """The index of a file's content; an altered or older one is a SpecError."""
    try:
        table, root = as_table(*parse_json(content, place))
    except SpecError as error:
        raise SpecError(
            f"not a complete index: {error.what}", place=error.place, fix=REMAKE
        ) from error
    if table.get("format") != FORMAT:
        raise SpecError(f"the format is not {FORMAT}", place=place, fix=REMAKE)
    if table.pop("checksum", None) != _checksum(table):
        raise SpecError("the index was altered", place=place, fix=REMAKE)
    return load(Index, table, root)


def _checksum(table: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
