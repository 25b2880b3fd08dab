"""Tokens are made once, completely or not at all, whatever happens meanwhile."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from corpus_made import save_to_disk, write_lines

from ratrain.corpus.prepare import default_cache, prepare
from ratrain.corpus.store import INDEX, TOKENS, TokenStore, open_store
from ratrain.describe.train import DataSpec
from ratrain.errors import SpecError

TEXTS = ["one", "zwei über", "三\n", "four"]
END = 256
STREAM = [byte for text in TEXTS for byte in (*text.encode(), END)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ratrain" / "corpus"


@pytest.fixture
def data(tmp_path: Path) -> DataSpec:
    write_lines(tmp_path / "a.jsonl", TEXTS)
    return DataSpec(("a.jsonl",))


def left_in(cache: Path) -> list[str]:
    """What a cache holds besides its locks."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def tokens_of(store: TokenStore) -> list[int]:
    return store.read(0, len(store)).tolist()


# ---- what is made -----------------------------------------------------------------------


def test_every_format_gives_the_same_tokens(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", TEXTS)
    parquet.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    save_to_disk(tmp_path / "saved", [TEXTS[:3], TEXTS[3:]])
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    for files in ("a.jsonl", "a.parquet", "saved", "?.txt"):
        store = prepare(DataSpec((files,)), tmp_path).store
        assert tokens_of(store) == STREAM
        assert (store.index.documents, store.index.dtype) == (4, "uint16")


def test_a_hugging_face_tokenizer_gives_its_ids_and_its_end(
    tmp_path: Path, data: DataSpec, tokenizer_file: Path
) -> None:
    made = prepare(DataSpec(data.files, tokenizer_file.name), tmp_path)
    expected = [i for text in TEXTS for i in (*made.tokenizer.encode(text), made.tokenizer.end_id)]
    assert tokens_of(made.store) == expected


def test_progress_goes_up_to_the_bytes_of_all_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["x" * 1000] * 5000)
    parquet.write_table(pa.table({"text": ["y" * 1000] * 5000}), tmp_path / "b.parquet")
    seen: list[tuple[int, int]] = []
    prepare(DataSpec(("a.jsonl", "b.parquet")), tmp_path, progress=lambda *at: seen.append(at))
    total_bytes = sum((tmp_path / name).stat().st_size for name in ("a.jsonl", "b.parquet"))
    assert seen == sorted(seen)
    assert seen[-1] == (total_bytes, total_bytes)
    assert len(seen) > 5


def test_files_without_text_are_refused(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(SpecError, match="no text in any"):
        prepare(DataSpec(("a.txt",)), tmp_path)
    assert left_in(own_cache) == []


def test_a_bad_line_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["x" * 1000] * 5000)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("{")
    with pytest.raises(SpecError, match=r"a\.jsonl:5001: not valid JSON"):
        prepare(DataSpec(("a.jsonl",)), tmp_path)
    assert left_in(own_cache) == []


def test_the_cache_is_where_the_user_says(
    tmp_path: Path, data: DataSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepare(data, tmp_path, cache=tmp_path / "c").store.folder.parent == tmp_path / "c"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/of")
    assert default_cache() == Path("/home/of/.cache/ratrain/corpus")


# ---- used again -------------------------------------------------------------------------


def test_tokens_are_made_once(tmp_path: Path, data: DataSpec) -> None:
    first, second = prepare(data, tmp_path), prepare(data, tmp_path)
    assert (first.made_because, second.made_because) == ("new", "")
    assert first.store.index == second.store.index


def test_changed_files_are_tokenised_anew_and_an_open_store_keeps_what_it_had(
    tmp_path: Path, data: DataSpec, own_cache: Path
) -> None:
    before = prepare(data, tmp_path)
    write_lines(tmp_path / "a.jsonl", ["other"])
    after = prepare(data, tmp_path)
    assert after.made_because == "its files changed"
    assert tokens_of(after.store) == [*b"other", END]
    assert tokens_of(before.store) == STREAM
    assert left_in(own_cache) == [after.store.folder.name]


def test_a_file_touched_in_place_is_tokenised_anew(tmp_path: Path, data: DataSpec) -> None:
    prepare(data, tmp_path)
    os.utime(tmp_path / "a.jsonl", ns=(1, 1))
    assert prepare(data, tmp_path).made_because == "its files changed"


def test_another_tokenizer_or_key_has_a_store_of_its_own(
    tmp_path: Path, data: DataSpec, tokenizer_file: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "body": "y"}')
    by_bytes = prepare(data, tmp_path).store
    by_file = prepare(DataSpec(data.files, tokenizer_file.name), tmp_path).store
    by_key = prepare(DataSpec(data.files, text_key="body"), tmp_path).store
    assert len({by_bytes.folder, by_file.folder, by_key.folder}) == 3
    assert prepare(data, tmp_path).made_because == ""


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, own_cache: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["x" * 1000] * 3000)

    def touch(_done: int, _total: int) -> None:
        os.utime(tmp_path / "a.jsonl", ns=(1, 1))

    with pytest.raises(SpecError, match=r"a\.jsonl: changed while it was read"):
        prepare(DataSpec(("a.jsonl",)), tmp_path, progress=touch)
    assert left_in(own_cache) == []


# ---- damaged ----------------------------------------------------------------------------


def cut_tokens(folder: Path) -> None:
    os.truncate(folder / TOKENS, (folder / TOKENS).stat().st_size - 1)


def empty_tokens(folder: Path) -> None:
    os.truncate(folder / TOKENS, 0)


def no_tokens(folder: Path) -> None:
    (folder / TOKENS).unlink()


def cut_index(folder: Path) -> None:
    os.truncate(folder / INDEX, 100)


def no_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def altered_index(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace('"vocab_size": 257', '"vocab_size": 999'))


def older_index(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace("ratrain-corpus-1", "ratrain-corpus-0"))


def deep_index(folder: Path) -> None:
    (folder / INDEX).write_text("[" * 100_000)


DAMAGES = [
    (cut_tokens, "bytes instead of"),
    (empty_tokens, "0 bytes instead of"),
    (no_tokens, "no prepared tokens"),
    (cut_index, "not a complete index"),
    (no_index, "no prepared tokens"),
    (altered_index, "the index was altered"),
    (older_index, "the format is not"),
    (deep_index, "not a complete index"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=lambda v: getattr(v, "__name__", None))
def test_a_damaged_store_is_named_and_made_anew(
    tmp_path: Path, data: DataSpec, damage: object, message: str
) -> None:
    folder = prepare(data, tmp_path).store.folder
    assert callable(damage)
    damage(folder)
    with pytest.raises(SpecError, match=message):
        open_store(folder)
    made = prepare(data, tmp_path)
    assert message in made.made_because
    assert tokens_of(made.store) == STREAM


def test_tokens_that_are_cut_while_they_are_read_are_named_and_made_anew(
    tmp_path: Path, data: DataSpec
) -> None:
    store = prepare(data, tmp_path).store
    path = store.folder / TOKENS
    os.truncate(path, 10)
    assert store.read(0, 5).tolist() == STREAM[:5]
    with pytest.raises(SpecError, match=f"ends after 10 of {2 * len(STREAM)} bytes") as error:
        store.read(3, 9)
    assert error.value.place == str(path)
    assert tokens_of(prepare(data, tmp_path).store) == STREAM


def test_an_altered_token_is_found_by_reading_them_all(tmp_path: Path, data: DataSpec) -> None:
    folder = prepare(data, tmp_path).store.folder
    tokens = np.fromfile(folder / TOKENS, np.uint16)
    tokens[3] ^= 1
    tokens.tofile(folder / TOKENS)
    with pytest.raises(SpecError, match="differ from those written"):
        open_store(folder).verify()
    made = prepare(data, tmp_path, verify=True)
    assert "differ from those written" in made.made_because
    made.store.verify()


# ---- other processes --------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from ratrain.corpus.prepare import prepare
from ratrain.describe.train import DataSpec
from ratrain.errors import RatrainError

def report(done, total):
    if sys.argv[2] == "stop":
        print("half", flush=True)
        sys.stdin.readline()

try:
    made = prepare(DataSpec(("a.jsonl",)), Path(sys.argv[1]), progress=report)
    print(made.made_because or "there", made.store.index.sha256)
except RatrainError as error:
    print("refused:", error)
"""


def start(folder: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def long_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [f"{n} " + "x" * 1000 for n in range(3000)])


@pytest.mark.usefixtures("long_file")
def test_of_many_processes_one_makes_the_tokens_and_all_get_them(
    tmp_path: Path, own_cache: Path
) -> None:
    processes = [start(tmp_path, "run") for _ in range(4)]
    lines = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(how for how, _ in lines) == ["new", "there", "there", "there"]
    assert len({sha256 for _, sha256 in lines}) == 1
    made = prepare(DataSpec(("a.jsonl",)), tmp_path, verify=True)
    assert made.made_because == ""
    assert left_in(own_cache) == [made.store.folder.name]


@pytest.mark.usefixtures("long_file")
def test_a_maker_that_is_killed_leaves_nothing_that_looks_complete(
    tmp_path: Path, own_cache: Path
) -> None:
    maker = start(tmp_path, "stop")
    assert line_of(maker) == "half"
    waiting = start(tmp_path, "run")
    assert all(name.endswith(".part") for name in left_in(own_cache))
    maker.kill()
    maker.communicate()
    assert waiting.communicate(timeout=60)[0].startswith("new ")
    made = prepare(DataSpec(("a.jsonl",)), tmp_path, verify=True)
    assert made.made_because == ""
    assert left_in(own_cache) == [made.store.folder.name]
    assert made.store.index.documents == 3000


@pytest.mark.usefixtures("long_file")
def test_an_interrupt_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(DataSpec(("a.jsonl",)), tmp_path, progress=interrupt)
    assert left_in(own_cache) == []


# ---- the disk ---------------------------------------------------------------------------


@pytest.mark.usefixtures("long_file")
def test_a_file_that_may_not_grow_is_one_message(tmp_path: Path, own_cache: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), "run"],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("refused:")
    assert "File too large; no partial file is left" in done.stdout
    assert left_in(own_cache) == []


def test_a_cache_that_is_no_folder_is_one_message(tmp_path: Path, data: DataSpec) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match="cannot be written: "):
        prepare(data, tmp_path, cache=tmp_path / "file" / "cache")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.root
@pytest.mark.usefixtures("long_file")
def test_a_full_disk_is_one_message_and_leaves_it_empty(tmp_path: Path, small_disk: Path) -> None:
    with pytest.raises(SpecError, match="the disk is full; no partial file is left"):
        prepare(DataSpec(("a.jsonl",)), tmp_path, cache=small_disk)
    assert left_in(small_disk) == []


@pytest.mark.root
def test_tokens_on_a_read_only_disk_are_used(
    tmp_path: Path, data: DataSpec, small_disk: Path
) -> None:
    prepare(data, tmp_path, cache=small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert prepare(data, tmp_path, cache=small_disk).made_because == ""
    write_lines(tmp_path / "a.jsonl", ["changed"])
    with pytest.raises(SpecError, match="Read-only file system"):
        prepare(data, tmp_path, cache=small_disk)


@pytest.mark.slow
def test_a_long_file_is_tokenised_in_little_memory(tmp_path: Path) -> None:
    """400 MB of one text document; the limit is on what the process may hold at all."""
    with (tmp_path / "a.txt").open("w") as file:
        for _ in range(400):
            file.write("a line of forty characters, more or less\n" * 25_000)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ratrain.corpus.prepare import prepare\n"
        "from ratrain.describe.train import DataSpec\n"
        "made = prepare(DataSpec(('a.txt',)), Path(sys.argv[1]))\n"
        # not getrusage: its peak counts what the parent held when this process was forked
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(len(made.store), status['VmHWM'].split()[0])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=110)
    tokens, peak_kib = map(int, done.stdout.split())
    assert tokens == (tmp_path / "a.txt").stat().st_size + 1
    assert peak_kib < 250_000
