"""Text to token ids and back: bytes, which need no file, or a `tokenizer.json` of Hugging Face."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ratrain.errors import SpecError
from ratrain.readers.files import decoded, exists, read_bytes
from ratrain.readers.json import parse_json, read_json_table
from ratrain.readers.limits import TOKENIZER_BYTES

Ids = NDArray[np.uint32]

Spans = Sequence[tuple[int, int]]
ANSWER = np.uint32(1 << 31)
"""Added to the id of a token that an assistant says, in the tokens of conversations."""

BYTES = "bytes"
"""The name of the tokenizer that needs no file."""

END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<|end▁of▁sentence|>",
    "[SEP]",
)
"""End-of-document tokens of known families, looked for where no `tokenizer_config.json` says."""


class Tokenizer(Protocol):
    """What turns text into ids in [0, vocab_size) and back."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def end_id(self) -> int:
        """The id that follows every document."""
        ...

    @property
    def fingerprint(self) -> str:
        """A text that differs wherever another id could come out of `encode`."""
        ...

    def encode(self, text: str) -> Ids:
        """The ids of a text, with no special token added."""
        ...

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, the same as one by one."""
        ...

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """The text of ids; the end of a document gives none."""
        ...


class ByteTokenizer:
    """The UTF-8 bytes of a text as ids 0 to 255; 256 ends a document."""

    vocab_size = 257
    end_id = 256
    fingerprint = "bytes-1"

    def encode(self, text: str) -> Ids:
        """One id a byte."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise SpecError(
                f"half a surrogate pair at character {error.start} is not text",
                place="text",
                fix="remove or replace it in the source",
            ) from error
        return np.frombuffer(data, np.uint8).astype(np.uint32)

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """One id a byte, for each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """The text; bytes that are not UTF-8, as at a cut character, become U+FFFD."""
        array = np.asarray(ids, np.int64)
        _check_ids(array, self.vocab_size)
        return array[array < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class HuggingFaceTokenizer:
    """A `tokenizer.json`, without the truncation, padding or added tokens it may ask for.

    A special token that is spelled out in the text is recognised, as Hugging Face does.
    """

    def __init__(self, path: Path) -> None:
        library = _library()
        content = read_bytes(path, TOKENIZER_BYTES)
        text = decoded(content, str(path))
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception for a bad file
            parse_json(text, str(path))  # where it is not JSON, the line is reported
            raise SpecError(
                f"not a Hugging Face tokenizer: {error}",
                place=str(path),
                fix='use a tokenizer.json, or tokenizer = "bytes"',
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocab: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.end_id = _end_id(vocab, path)
        self.end_token = str(self._tokenizer.id_to_token(self.end_id))
        self.fingerprint = f"{hashlib.sha256(content).hexdigest()}-{self.end_id}"

    def encode(self, text: str) -> Ids:
        """The ids of a text, with no special token added."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text; the library uses every core."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, np.uint32) for encoding in encoded]

    def encode_answers(self, texts: Sequence[str], answers: Sequence[Spans]) -> list[Ids]:
        """The ids of each text, with `ANSWER` added to those of which a character is in one of its
        spans."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        marked: list[Ids] = []
        for encoding, spans in zip(encoded, answers, strict=True):
            ids = np.asarray(encoding.ids, np.uint32)
            begins, ends = np.asarray(encoding.offsets, np.int64).reshape(-1, 2).T
            for begin, end in spans:
                ids[(begins < end) & (ends > begin)] |= ANSWER
            marked.append(ids)
        return marked

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """The text, as the tokenizer's own decoder joins it."""
        array = np.asarray(ids, np.int64)
        _check_ids(array, self.vocab_size)
        text_ids = array[array != self.end_id].tolist()
        return str(self._tokenizer.decode(text_ids, skip_special_tokens=False))


def tokenizer_of(name: str, base: Path | None = None) -> Tokenizer:
    """The tokenizer of a job's `tokenizer`: "bytes", a tokenizer.json, or a folder that has one.

    A relative path starts at `base`.
    """
    if name == BYTES:
        return ByteTokenizer()
    path = (base or Path()) / name
    if path.is_dir():
        path /= "tokenizer.json"
    if not exists(path):
        raise SpecError(
            "no such tokenizer", place=str(path), fix='give a tokenizer.json, or "bytes"'
        )
    return HuggingFaceTokenizer(path)


def check_vocabulary(tokenizer: Tokenizer, vocab: int, *, place: str = "") -> None:
    """A SpecError where the model has no embedding for some id of the tokenizer."""
    if tokenizer.vocab_size > vocab:
        raise SpecError(
            f"the tokenizer has {tokenizer.vocab_size:,} ids, but the model only {vocab:,}",
            place=place,
            fix=f"use a model with vocab >= {tokenizer.vocab_size}, or another tokenizer",
        )


def _check_ids(ids: NDArray[np.int64], vocab: int) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= vocab):
        unknown = int(ids[(ids < 0) | (ids >= vocab)][0])
        raise SpecError(
            f"{unknown} is not a token id; the tokenizer has ids 0 to {vocab - 1}",
            place="tokenizer",
            fix="use the tokenizer that the tokens were made with",
        )


def _end_id(vocab: dict[str, int], path: Path) -> int:
    """The id of the end token: what `tokenizer_config.json` beside it says, else a known name."""
    config = path.parent / "tokenizer_config.json"
    configured = _named_end(config) if exists(config) else None
    for token in (configured, *END_TOKENS):
        if token is not None and token in vocab:
            return vocab[token]
    raise SpecError(
        "none of its tokens ends a document",
        place=str(path),
        fix='put a tokenizer_config.json with "eos_token" next to it',
    )


def _named_end(config: Path) -> str | None:
    table, _ = read_json_table(config)
    token: Any = table.get("eos_token")
    if isinstance(token, dict):  # older files write the token with its flags
        token = cast("dict[str, Any]", token).get("content")
    return token if isinstance(token, str) else None


def _library() -> Any:
    try:
        return import_module("tokenizers")
    except ImportError as error:
        raise SpecError(
            "a tokenizer.json needs the library `tokenizers`",
            place="[data] tokenizer",
            fix='pip install "ratrain[train]", or use tokenizer = "bytes"',
        ) from error
