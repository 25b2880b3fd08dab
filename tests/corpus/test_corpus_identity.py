"""What a checkpoint remembers of its data, and which data it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratrain.corpus.identity import identity_of, require_same
from ratrain.corpus.prepare import prepare
from ratrain.describe.train import DataSpec
from ratrain.errors import SpecError

CHECKPOINT = Path("run/checkpoints/step-00000004")


def identity(folder: Path, *texts: str) -> dict[str, Any]:
    """The identity of a corpus of these texts, in a folder."""
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text)
    return identity_of(prepare(DataSpec(files=("*.txt",)), folder, cache=folder / "cache"))


def test_the_same_text_in_another_folder_is_the_same_data(tmp_path: Path) -> None:
    first, other = (identity(tmp_path / name, "some words", "more") for name in "ab")
    assert first == other
    assert first["text"] == "0.txt and 1 more" and first["tokenizer"] == "bytes-1"
    require_same({"data": first}, other, None, CHECKPOINT)


@pytest.mark.parametrize("texts", [("some word", "more"), ("more", "some words"), ("some words",)])
def test_another_text_or_order_is_refused_with_a_way_to_go_on(
    texts: tuple[str, ...], tmp_path: Path
) -> None:
    first, other = identity(tmp_path / "a", "some words", "more"), identity(tmp_path / "b", *texts)
    with pytest.raises(SpecError) as error:
        require_same({"data": first}, other, Path("job.toml"), CHECKPOINT)
    assert error.value.place == "job.toml [data]"
    assert "step-00000004 was trained on different text: 0.txt and 1 more" in error.value.what
    assert "`ratrain export run OUT`" in error.value.fix


def test_another_tokenizer_is_refused_whatever_the_tokens(tmp_path: Path) -> None:
    now = identity(tmp_path / "a", "some words")
    then = {**now, "tokenizer": "another"}
    with pytest.raises(SpecError, match="was trained with another tokenizer"):
        require_same({"data": then}, now, None, CHECKPOINT)


def test_a_checkpoint_that_does_not_tell_goes_on_with_any_data(tmp_path: Path) -> None:
    require_same({"loss_scale": 1.0}, identity(tmp_path / "a", "some words"), None, CHECKPOINT)
