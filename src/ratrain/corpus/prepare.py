"""Tokenise a job's files once into a cache folder, complete or absent, and use it again.

The folder's name follows from the files' names, the tokenizer and the text key. It is made again
where a file's size or time has changed. While it is made it is called NAME.part; whoever makes it
holds a lock on NAME.lock, which the kernel drops with the process.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratrain.corpus.cache import default_cache
from ratrain.corpus.chat import ChatTemplate, conversations_of
from ratrain.corpus.documents import Piece, pieces_of
from ratrain.corpus.sources import Source, source_of, sources_of
from ratrain.corpus.store import (
    FORMAT,
    INDEX,
    TOKENS,
    Index,
    TokenStore,
    dtype_of,
    open_store,
    records_of,
    write_index,
)
from ratrain.corpus.tokenizer import HuggingFaceTokenizer, Tokenizer, tokenizer_of
from ratrain.describe.train import DataSpec
from ratrain.errors import SpecError

Progress = Callable[[int, int], None]
"""Called with (done_bytes, total_bytes) of the source files."""

BATCH_CHARS = 1 << 20
"""Text that is tokenised at once; bounds the memory with PIECE_CHARS of documents.py."""
BATCH_PIECES = 4096


@dataclass(frozen=True)
class Prepared:
    """An open store and how it came about."""

    store: TokenStore
    made_because: str  # "" where it was already there
    tokenizer: Tokenizer
    sources: tuple[Source, ...]


def prepare(
    data: DataSpec,
    base: Path | None = None,
    *,
    cache: Path | None = None,
    verify: bool = False,
    progress: Progress | None = None,
    place: str = "[data] files",
    sequence_length: int = 0,
) -> Prepared:
    """The tokens of a job's data, made where they are not there yet.

    Relative file names start at `base`, the job file's folder. `verify` reads every token of a
    store that already exists; `place` names the key in messages; of conversations none that fits
    into `sequence_length` tokens is cut. Any number of processes may
    call this at once: one makes the tokens, the others wait for it.
    """
    sources = sources_of(data.files, base, place)
    tokenizer = tokenizer_of(data.tokenizer, base)
    reading = _reading(data, base, tokenizer, sequence_length)
    folder = (cache or default_cache()) / _name(sources, tokenizer, reading)
    store, because = _ready(folder, sources, verify)
    if store is None:
        with _write_errors(folder), _locked(folder):
            store, because = _ready(folder, sources, verify)  # made while this one waited
            if store is None:
                _make(folder, sources, tokenizer, reading, progress)
                store = open_store(folder)
    return Prepared(store, because, tokenizer, sources)


@dataclass(frozen=True)
class _Reading:
    """How documents are read. `chat`: of conversations the template, and the tokens of a sample."""

    key: str
    chat: tuple[ChatTemplate, int] | None = None

    @property
    def identity(self) -> list[str]:
        """What else than the key decides which tokens come out."""
        return [] if self.chat is None else [self.chat[0].fingerprint, str(self.chat[1])]

    def pieces(self, source: Source) -> Iterator[Piece]:
        if self.chat is None:
            return pieces_of(source, self.key)
        return conversations_of(source, self.key, self.chat[0])


def _reading(
    data: DataSpec, base: Path | None, tokenizer: Tokenizer, sequence_length: int
) -> _Reading:
    if data.messages_key is None:
        return _Reading(data.text_key)
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise SpecError(
            f'tokenizer = "{data.tokenizer}" has no chat template',
            place="[data] messages_key",
            fix="give the folder of a tokenizer that has one",
        )
    template = ChatTemplate((base or Path()) / data.tokenizer)
    return _Reading(data.messages_key, (template, max(1, sequence_length)))


def _name(sources: tuple[Source, ...], tokenizer: Tokenizer, reading: _Reading) -> str:
    paths = (str(s.path) for s in sources)
    parts = [FORMAT, tokenizer.fingerprint, reading.key, *reading.identity, *paths]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return f"{sources[0].path.name[:40]}-{key}"


def _ready(
    folder: Path, sources: tuple[Source, ...], verify: bool
) -> tuple[TokenStore | None, str]:
    """The store where it is there, whole and up to date, else None and why it is not."""
    if not folder.is_dir():
        return None, "new"
    try:
        store = open_store(folder)
        if not store.index.is_of(sources):
            return None, "its files changed"
        if verify:
            store.verify()
    except SpecError as error:
        return None, f"it was damaged: {error.what}"
    return store, ""


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Alone among all processes; waits for the one that is making the folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _write_errors(folder: Path) -> Generator[None]:
    """A disk that is full or not writable is one SpecError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problem = "the disk is full" if full else f"cannot be written: {error.strerror}"
        raise SpecError(
            f"{problem}; no partial file is left",
            place=str(folder),
            fix="free some space, or choose another cache folder"
            if full
            else "choose another folder",
        ) from error


def _make(
    folder: Path,
    sources: tuple[Source, ...],
    tokenizer: Tokenizer,
    reading: _Reading,
    progress: Progress | None,
) -> None:
    """Write NAME.part and put it in the place of NAME in one step. Called under the lock."""
    partial, old = Path(f"{folder}.part"), Path(f"{folder}.old")
    for leftover in (partial, old):  # by a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        index = _write_tokens(partial / TOKENS, sources, tokenizer, reading, progress)
        _check_unchanged(sources)
        with (partial / INDEX).open("wb") as file:
            file.write(write_index(index))
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(partial)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        _sync_folder(folder.parent)
    finally:
        for leftover in (partial, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _write_tokens(
    path: Path,
    sources: tuple[Source, ...],
    tokenizer: Tokenizer,
    reading: _Reading,
    progress: Progress | None,
) -> Index:
    kept_as = "uint32" if reading.chat else dtype_of(tokenizer.vocab_size)
    dtype = np.dtype(kept_as).newbyteorder("<")
    encoded = _encoding(tokenizer, reading, dtype)
    digest = hashlib.sha256()
    size_bytes = documents = 0
    total_bytes = sum(source.size_bytes for source in sources)
    with path.open("wb") as file:
        for batch, done_bytes in _batches(sources, reading):
            content = encoded(batch)
            documents += sum(piece.ends for piece in batch)
            digest.update(content)
            file.write(content)
            size_bytes += len(content)
            if progress is not None:
                progress(done_bytes, total_bytes)
        file.flush()
        os.fsync(file.fileno())
    if not documents:
        names = ", ".join(str(source.path) for source in sources[:3])
        raise SpecError("no text in any of the files", place=names, fix="give files with text")
    return Index(
        FORMAT,
        kept_as,
        size_bytes // dtype.itemsize,
        documents,
        tokenizer.vocab_size,
        tokenizer.end_id,
        tokenizer.fingerprint,
        reading.key,
        records_of(sources),
        digest.hexdigest(),
        reading.chat is not None,
    )


def _encoding(
    tokenizer: Tokenizer, reading: _Reading, dtype: np.dtype[Any]
) -> Callable[[list[Piece]], bytes]:
    """What makes the bytes of tokens.bin of pieces, batch after batch."""
    end, length = np.array([tokenizer.end_id], dtype), 0

    def texts(batch: list[Piece]) -> bytes:
        ids = tokenizer.encode_all([piece.text for piece in batch])
        ended = zip(batch, ids, strict=True)
        return b"".join(
            each.astype(dtype).tobytes() + (end.tobytes() if piece.ends else b"")
            for piece, each in ended
        )

    def conversations(batch: list[Piece]) -> bytes:
        nonlocal length
        assert isinstance(tokenizer, HuggingFaceTokenizer)
        assert reading.chat is not None
        sample, parts = reading.chat[1], list[bytes]()
        spans = [piece.answers for piece in batch]
        for ids in tokenizer.encode_answers([piece.text for piece in batch], spans):
            left = sample - length % sample
            if left < len(ids) <= sample:
                parts.append(np.repeat(end, left).tobytes())
                length += left
            parts.append(ids.astype(dtype).tobytes())
            length += len(ids)
        return b"".join(parts)

    return texts if reading.chat is None else conversations


def _batches(sources: tuple[Source, ...], reading: _Reading) -> Iterator[tuple[list[Piece], int]]:
    """Pieces to tokenise together, and how many source bytes have been read after them."""
    batch: list[Piece] = []
    chars = before_bytes = done_bytes = 0
    for source in sources:
        for piece in reading.pieces(source):
            batch.append(piece)
            chars += len(piece.text)
            done_bytes = before_bytes + piece.done_bytes
            if chars >= BATCH_CHARS or len(batch) >= BATCH_PIECES:
                yield batch, done_bytes
                batch, chars = [], 0
        before_bytes += source.size_bytes
    if batch:
        yield batch, before_bytes


def _check_unchanged(sources: tuple[Source, ...]) -> None:
    for source in sources:
        if source_of(source.path) != source:
            raise SpecError(
                "changed while it was read",
                place=str(source.path),
                fix="try again when nothing writes to it",
            )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):  # some file systems refuse it for folders
        os.fsync(handle)
    os.close(handle)
