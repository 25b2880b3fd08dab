"""Verbs say what of their input they did not look at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain
from ratrain.errors import SpecError
from ratrain.storage.folder import RankFolder

ROWS = """id,level,dtype,mode,M,K,N,cores,KA,value,note
A1,uk,f64,NN,6,64,48,1,64,159.03
O1,irr,f64,plain MG144 KG512 C3,144,4096,12288,8,512,98
M1,gemm,f64,NTm,large,large,large,1,512,155.42
"""


def said(*words: str) -> str:
    ran = CliRunner().invoke(ratrain, words)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.output


def test_rows_of_products_that_no_kernel_computes_are_named(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(ROWS)
    assert "not scored, for want of a kernel or a size: O1, M1" in said(
        "kernels", "score", str(rows)
    )
    body = json.loads(said("kernels", "score", str(rows), "--json"))
    assert ([row["id"] for row in body["rows"]], body["not_scored"]) == (["A1"], ["O1", "M1"])


def test_a_folder_that_is_no_tier_is_not_called_clean(tmp_path: Path) -> None:
    assert "no rank has files in it; folders below it were not" in said("clean", str(tmp_path))
    rank = RankFolder(tmp_path, "run", 0)
    assert "all files in it are of runs that go on" in said("clean", str(tmp_path))
    rank.leave()
    assert "no rank has files in it" in said("clean", str(tmp_path))


@pytest.mark.parametrize("size", ["-3GB", "0GB"])
def test_no_memory_is_less_than_nothing(size: str) -> None:
    with pytest.raises(SpecError, match="is not more than nothing"):
        said("fit", "--model", "small-llama", "--memory", size)
