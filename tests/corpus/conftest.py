"""A small tokenizer.json of Hugging Face, trained here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = ["the step of a state is a state of the step, über all", "naïve 数 🦀 the end"] * 8


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
