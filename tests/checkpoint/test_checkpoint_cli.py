"""`ratrain checkpoints` as a user meets it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_made import save

from ratrain.checkpoint.folder import begin
from ratrain.cli.main import main

Ratrain = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ratrain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ratrain:
    """Runs the verb; returns its status and what it printed."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ratrain", "checkpoints", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (80, 100):
        save(tmp_path, step)
    begin(tmp_path, 120)
    return tmp_path


def test_it_says_once_on_which_text_a_run_was_trained(ratrain: Ratrain, tmp_path: Path) -> None:
    data = {
        "text": "a.txt and 3 more",
        "tokens": 12345,
        "sha256": "ab" * 32,
        "tokenizer": "bytes-1",
    }
    for step in (10, 20):
        save(tmp_path, step, state={"data": data})
    save(tmp_path, 30, state={"data": {**data, "text": "b" * 40, "tokenizer": "c" * 66}})
    status, out, _ = ratrain(tmp_path)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "trained on a.txt and 3 more"
    assert lines[1] == f"  12,345 tokens, sha256 {'ab' * 6}, tokenizer bytes-1"
    assert [line[:13] for line in lines[2:4]] == ["step-00000010", "step-00000020"]
    assert lines[4] == f"trained on {'b' * 40}" and lines[6].startswith("step-00000030")
    assert all(len(line) <= 80 for line in lines)


def harm(run: Path) -> None:
    path = run / "checkpoints" / "step-00000100" / "rank-00001.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)


def test_it_lists_what_a_run_has_saved(ratrain: Ratrain, run: Path) -> None:
    status, out, _ = ratrain(run)
    assert status == 0
    lines = out.splitlines()
    assert re.match(r"step-00000080  complete +[\d.]+ kB +2 ranks  just now", lines[0])
    assert lines[1].startswith("step-00000100  complete")
    assert lines[2].startswith("step-00000120.partial") and "unfinished" in lines[2]
    assert all(len(line) <= 80 for line in lines)
    assert ratrain(run / "checkpoints")[1] == out
    assert ratrain(run / "checkpoints" / "step-00000080")[1] == lines[0] + "\n"


def test_its_json_carries_what_the_manifest_says(ratrain: Ratrain, run: Path) -> None:
    status, out, _ = ratrain(run, "--json")
    assert status == 0
    body = json.loads(out)
    assert [checkpoint["step"] for checkpoint in body["checkpoints"]] == [80, 100]
    assert body["checkpoints"][1]["ranks"] == 2
    assert body["checkpoints"][1]["state"] == {"tokens": 800}
    assert len(body["unfinished"]) == 1


def test_verify_finds_the_altered_file_that_a_list_does_not_see(
    ratrain: Ratrain, run: Path
) -> None:
    assert ratrain(run, "--verify")[0] == 0
    harm(run)
    assert ratrain(run)[0] == 0
    status, out, _ = ratrain(run, "--verify")
    assert status == 7
    assert "step-00000080  verified" in out
    assert "step-00000100  DAMAGED\n  rank-00001.safetensors is altered" in out
    status, out, _ = ratrain(run, "--verify", "--json")
    assert status == 7
    assert [checkpoint["complete"] for checkpoint in json.loads(out)["checkpoints"]] == [
        True,
        False,
    ]


def test_compare_tells_equal_from_unequal_checkpoints(
    ratrain: Ratrain, run: Path, tmp_path: Path
) -> None:
    folder = run / "checkpoints"
    same = save(tmp_path / "again", 80)
    status, out, _ = ratrain(folder / "step-00000080", "--compare", same)
    assert (status, out) == (0, "12 of 12 buffers are identical bit by bit\n")
    status, out, _ = ratrain(folder / "step-00000080", "--compare", folder / "step-00000100")
    assert status == 1
    assert "0 of 12 buffers are identical" in out
    status, out, _ = ratrain(same, "--compare", folder / "step-00000100", "--json")
    assert status == 1
    assert len(json.loads(out)["differences"]) == 12


def test_compare_takes_the_latest_checkpoint_of_a_run(
    ratrain: Ratrain, run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    save(other, 100)
    save(other, 90)
    status, out, _ = ratrain(run, "--compare", other)
    latest = [folder / "checkpoints" / "step-00000100" for folder in (run, other)]
    assert status == 0
    first = f"comparing {latest[0]}\n     with {latest[1]}\n"
    assert out == first + "12 of 12 buffers are identical bit by bit\n"
    compared = json.loads(ratrain(run, "--compare", other, "--json")[1])["compared"]
    assert compared == [str(path) for path in latest]


def test_a_folder_of_runs_names_them(ratrain: Ratrain, tmp_path: Path) -> None:
    for name in ("b", "a"):
        save(tmp_path / name, 10)
    (tmp_path / "c").mkdir()
    status, out, _ = ratrain(tmp_path)
    assert (status, " ".join(out.split())) == (
        0,
        f"no checkpoints in {tmp_path}; it holds runs: a, b",
    )


def test_a_folder_without_checkpoints_or_no_folder_is_said(
    ratrain: Ratrain, tmp_path: Path
) -> None:
    status, out, _ = ratrain(tmp_path)
    assert (status, out.split()) == (0, ["no", "checkpoints", "in", str(tmp_path)])
    status, out, err = ratrain(tmp_path / "nothing")
    assert (status, out) == (7, "")
    assert err.startswith("error: ") and "no such folder" in err and "Traceback" not in err
    status, _, err = ratrain(tmp_path, "--compare", tmp_path)
    assert status == 7
    assert "holds no checkpoint" in err
