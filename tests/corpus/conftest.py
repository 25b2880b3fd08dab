"""A small tokenizer.json of Hugging Face, trained here, and token stores of made-up ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ratrain.corpus.store import FORMAT, INDEX, TOKENS, Index, TokenStore, open_store, write_index

TEXTS = ["the step of a state is a state of the step, über all", "naïve 数 🦀 the end"] * 8
MakeStore = Callable[[int], TokenStore]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A byte-level BPE that asks for truncation and padding, as files in the wild do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<|endoftext|>", "<stop>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16, pad_token="<pad>")
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    """A store whose tokens are 0, 1, 2, ... so that a token tells where it came from."""

    def make(tokens: int) -> TokenStore:
        folder = tmp_path / f"store-{tokens}"
        if not folder.exists():
            folder.mkdir()
            content = np.arange(tokens, dtype=np.uint32).tobytes()
            sha256 = hashlib.sha256(content).hexdigest()
            index = Index(FORMAT, "uint32", tokens, 1, tokens, 0, "made", "text", (), sha256)
            (folder / TOKENS).write_bytes(content)
            (folder / INDEX).write_bytes(write_index(index))
        return open_store(folder)

    return make
