"""What a rank records of its ops is read back, or refused where it is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratrain.errors import RatrainError
from ratrain.runtime.run_files import read_records


def written(folder: Path, word: str) -> Path:
    row: list[Any] = [3, "send_b", word, 0.1, 0.2, 0.3]
    path = folder / "records-00001.json"
    path.write_text(json.dumps({"rank": 1, "clock_s": 5.0, "rows": [row]}))
    return path


@pytest.mark.parametrize("word", ["1SEND_B1", "2.1R7", "0.3GradSync", "2F0@1", "0AllReady"])
def test_the_word_of_any_op_is_read(tmp_path: Path, word: str) -> None:
    (row,) = read_records(written(tmp_path, word), 1)["rows"]
    assert row[2] == word


@pytest.mark.parametrize("word", [" SEND_B1", "", "SEND_B1", "1SEND_B1 ", "1 2", "9" * 5000])
def test_a_word_that_no_op_has_is_damage_that_names_its_row(tmp_path: Path, word: str) -> None:
    path = written(tmp_path, word)
    with pytest.raises(RatrainError, match="is not an op that ran") as caught:
        read_records(path, 1)
    assert str(path) in caught.value.place and "rows" in caught.value.place
    assert caught.value.fix
