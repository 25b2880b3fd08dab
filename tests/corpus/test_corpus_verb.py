"""`ratrain data`, and the text to begin with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ratrain.cli.main import main
from ratrain.corpus import sample_text
from ratrain.corpus.documents import pieces_of
from ratrain.corpus.sample_text import LIMIT_BYTES, write_sample_text
from ratrain.corpus.sources import source_of
from ratrain.errors import SpecError

SMALL = Path(__file__).parents[2] / "examples" / "small.toml"
TEXT = "One line of text.\nAnd a second, über alles, 數.\n" * 200

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ratrain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The command line in this process: status, stdout, stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ratrain", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, shown.out, shown.err

    return call


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    path = tmp_path / "job.toml"
    path.write_text(SMALL.read_text() + '[train]\nsteps = 10\n[data]\nfiles = ["*.txt"]\n')
    return path


def test_the_figures_of_a_job_add_up(ratrain: Call, job: Path) -> None:
    status, out, err = ratrain("data", job, "--json")
    assert (status, err) == (0, "")
    body = json.loads(out)
    assert body["tokens"] == len(TEXT.encode()) + 1
    assert body["samples_per_epoch"] == (body["tokens"] - 1) // 512
    assert body["tokens_per_step"] == 8 * 512
    assert body["epochs"] == pytest.approx(10 * 8 / body["samples_per_epoch"])
    assert body["made_because"] == "new"
    assert json.loads(ratrain("data", job, "--json")[1])["made_because"] == ""


def test_people_read_the_same_in_eighty_columns(ratrain: Call, job: Path, tmp_path: Path) -> None:
    status, out, err = ratrain("data", job, "--verify")
    assert (status, err) == (0, "")
    assert f"{len(TEXT.encode()) + 1:,}, vocabulary 257" in out
    assert "tokenised now" in out
    lines = [line for line in out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    assert "from the cache" in ratrain("data", job)[1]


def test_samples_are_shown_as_text_that_cannot_move_a_terminal(
    ratrain: Call, job: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("a\x1b[2J\rb " * 600)
    (tmp_path / "title.txt").write_text("the second" * 300)
    job.write_text(job.read_text() + "shuffle = false\n")
    body = json.loads(ratrain("data", job, "--sample", "15", "--json")[1])
    texts = [sample["text"] for sample in body["samples"]]
    assert len(texts) == 15
    assert texts[0].startswith("a\\x1b[2J\\rb a")
    assert any("b <end of document>\nthe second" in text for text in texts)
    out = ratrain("data", job, "--sample", "2")[1]
    assert "--- position 1: sample 1" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[data]\nfiles = ["*.txt"]\n', "", "job.toml: the job has no data"),
        ("*.txt", "*.rst", "no file matches"),
        ("files = [", "tokenizer = 'no.json'\nfiles = [", "no.json: no such tokenizer"),
        ('["*.txt"]', "[]", "[data] files: names no file"),
        ("*.txt", "é" * 200, "[data] files: 'ééé"),
        ("files = [", 'validation = ["away.txt"]\nfiles = [', "[data] validation: no such file"),
        ("sequence_length = 512", "sequence_length = 20000", "use sequence_length <= "),
    ],
)
def test_what_is_wrong_with_a_jobs_data_is_one_message(
    ratrain: Call, job: Path, old: str, new: str, message: str
) -> None:
    assert old in job.read_text()
    job.write_text(job.read_text().replace(old, new))
    status, out, err = ratrain("data", job)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_tokenizer_with_more_ids_than_the_model_is_refused_before_any_work(
    ratrain: Call, job: Path, tokenizer_file: Path, tmp_path: Path
) -> None:
    table = json.loads(tokenizer_file.read_text())
    table["model"]["vocab"]["far"] = 10**6
    tokenizer_file.write_text(json.dumps(table))
    job.write_text(job.read_text() + f'tokenizer = "{tokenizer_file.name}"\n')
    status, _, err = ratrain("data", job)
    assert status == 2
    assert "job.toml [data]: the tokenizer has 1,000,001 ids, but the model only" in err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("arguments", [[], ["job.toml", "--sample-text", "a.jsonl"]])
def test_either_a_job_or_a_file_to_write_is_given(ratrain: Call, arguments: list[str]) -> None:
    status, _, err = ratrain("data", *arguments)
    assert status == 2
    assert "either JOB or --sample-text" in err


# ---- the text to begin with -------------------------------------------------------------


def test_the_text_to_begin_with_trains_a_job_as_it_is_written(
    ratrain: Call, job: Path, tmp_path: Path
) -> None:
    assert ratrain("data", "--sample-text", tmp_path / "text.jsonl")[0] == 0
    job.write_text(job.read_text().replace("*.txt", "text.jsonl"))
    body = json.loads(ratrain("data", job, "--json")[1])
    assert 2_000_000 < body["tokens"] < LIMIT_BYTES
    assert body["documents"] > 100


def test_the_text_to_begin_with_is_pythons_own_and_names_its_licence(tmp_path: Path) -> None:
    written = write_sample_text(tmp_path / "text.jsonl")
    lines = [json.loads(line) for line in written.file.read_text().splitlines()]
    sources = [line["source"] for line in lines]
    assert len(set(sources)) == len(sources) == written.documents
    assert "library/argparse.py" in sources
    texts = [piece.text for piece in pieces_of(source_of(written.file), "text")]
    assert texts == [line["text"] for line in lines]
    assert written.file.stat().st_size == written.size_bytes <= LIMIT_BYTES
    assert "PSF License" in written.note.read_text()


@pytest.mark.slow
def test_the_text_to_begin_with_is_the_same_each_time_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_sample_text(tmp_path / "text.jsonl").file.read_bytes()
    assert write_sample_text(tmp_path / "text.jsonl").file.read_bytes() == content
    monkeypatch.setattr(sample_text, "LIMIT_BYTES", 100_000)
    with pytest.raises(SpecError, match=r"text\.jsonl: the file exists"):
        write_sample_text(tmp_path / "text.jsonl")
    assert (tmp_path / "text.jsonl").read_bytes() == content
    with pytest.raises(SpecError, match=r"name it text\.jsonl"):
        write_sample_text(tmp_path / "text.txt")
    with pytest.raises(SpecError, match="cannot be written: No such file"):
        write_sample_text(tmp_path / "no" / "text.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.jsonl", "text.jsonl.LICENCE"]


def test_held_out_files_are_counted_beside_those_trained_on(
    ratrain: Call, job: Path, tmp_path: Path
) -> None:
    (tmp_path / "held-out.md").write_text("x" * 1025)
    job.write_text(job.read_text() + 'validation = ["*.md"]\n')
    assert "validation 1 file, 1,026 tokens, 2 samples" in ratrain("data", job)[1]
    body = json.loads(ratrain("data", job, "--json")[1])
    counts = {key: body[f"validation_{key}"] for key in ("files", "tokens", "samples")}
    assert counts == {"files": 1, "tokens": 1026, "samples": 2}
    assert body["tokens"] == len(TEXT.encode()) + 1


def test_the_text_of_the_examples_where_it_is_missing_is_written_by_the_command_in_the_fix(
    ratrain: Call, job: Path, tmp_path: Path
) -> None:
    job.write_text(job.read_text().replace("*.txt", "quickstart-text.jsonl"))
    missing = tmp_path / "quickstart-text.jsonl"
    assert f"fix: write it with `ratrain data --sample-text {missing}`" in ratrain("data", job)[2]
    job.write_text(job.read_text().replace("quickstart-text", "other"))
    assert "fix: create it, or correct the path (relative to the job" in ratrain("data", job)[2]
