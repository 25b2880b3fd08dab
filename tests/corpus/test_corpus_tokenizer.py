"""Text to ids and back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.corpus.tokenizer import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    check_vocabulary,
    tokenizer_of,
)
from ratrain.errors import SpecError

unicode_texts = st.text(st.characters(exclude_categories=("Cs",)))


@given(unicode_texts)
def test_bytes_give_any_text_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode())
    assert (ids < 256).all()


def test_the_end_of_a_document_is_no_text() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([65, tokenizer.end_id, 66]) == "AB"


@pytest.mark.parametrize("bad", [-1, 257, 1 << 40])
def test_an_id_that_no_text_has_is_named(bad: int) -> None:
    with pytest.raises(SpecError, match=f"{bad} is not a token id"):
        ByteTokenizer().decode([65, bad])


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(SpecError, match="surrogate"):
        ByteTokenizer().encode("a\ud800")


def test_a_hugging_face_file_gives_text_back_uncut_and_unpadded(tokenizer_file: Path) -> None:
    tokenizer = tokenizer_of(str(tokenizer_file))
    for text in ("the step of a state, naïve 数 🦀\n\n  twice " * 9, "x", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 0 < tokenizer.encode("the step").max() < tokenizer.vocab_size <= 300


def test_texts_together_give_the_ids_of_each_alone(tokenizer_file: Path) -> None:
    texts = ["the state", "", "of the step " * 20]
    for tokenizer in (ByteTokenizer(), HuggingFaceTokenizer(tokenizer_file)):
        together = tokenizer.encode_all(texts)
        for text, ids in zip(texts, together, strict=True):
            np.testing.assert_array_equal(ids, tokenizer.encode(text))


def test_a_folder_is_taken_for_the_tokenizer_in_it_and_names_start_at_the_base(
    tokenizer_file: Path,
) -> None:
    folder = tokenizer_file.parent
    by_folder, by_name = tokenizer_of(str(folder)), tokenizer_of("tokenizer.json", folder)
    assert by_folder.fingerprint == by_name.fingerprint


@pytest.mark.parametrize("token", ["<stop>", {"content": "<stop>", "lstrip": False}])
def test_the_configuration_beside_it_says_what_ends_a_document(
    tokenizer_file: Path, token: object
) -> None:
    before = HuggingFaceTokenizer(tokenizer_file)
    config = tokenizer_file.with_name("tokenizer_config.json")
    config.write_text(json.dumps({"eos_token": token}))
    after = HuggingFaceTokenizer(tokenizer_file)
    assert (before.end_id, after.end_id) == (1, 2)
    assert before.fingerprint != after.fingerprint


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"model": 3}', b"[[["])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"tokenizer\.json"):
        tokenizer_of(str(path))


def test_a_damaged_configuration_is_named(tokenizer_file: Path) -> None:
    tokenizer_file.with_name("tokenizer_config.json").write_text("{")
    with pytest.raises(SpecError, match=r"tokenizer_config\.json:1: not valid JSON"):
        tokenizer_of(str(tokenizer_file))


def test_a_tokenizer_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gpt2: no such tokenizer"):
        tokenizer_of("gpt2", tmp_path)


def test_a_tokenizer_without_an_end_token_is_refused(tokenizer_file: Path) -> None:
    text = tokenizer_file.read_text().replace("<|endoftext|>", "<other>")
    tokenizer_file.write_text(text)
    with pytest.raises(SpecError, match="none of its tokens ends a document"):
        tokenizer_of(str(tokenizer_file))


def test_a_model_with_fewer_ids_than_the_tokenizer_is_refused() -> None:
    check_vocabulary(ByteTokenizer(), 257)
    with pytest.raises(
        SpecError, match=r"job\.toml: the tokenizer has 257 ids, but the model only 2"
    ):
        check_vocabulary(ByteTokenizer(), 256, place="job.toml")
