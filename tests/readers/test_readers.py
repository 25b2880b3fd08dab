"""Whatever is handed in is read, each value with its place, or is one error with place and fix."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.describe import units
from ratrain.errors import RatrainError, SpecError, tidy
from ratrain.program.pipelining.csv import read_csv
from ratrain.program.text import read_text as read_program
from ratrain.readers.csv import csv_table
from ratrain.readers.faults import Faults
from ratrain.readers.files import check_name, decoded, inside, read_bytes, read_text
from ratrain.readers.json import parse_json
from ratrain.readers.json_lines import read_json_lines
from ratrain.readers.limits import DEPTH, DIGITS
from ratrain.readers.place import Lines, Place
from ratrain.readers.tensors import tensor_header, tensor_index
from ratrain.readers.toml import parse_toml

TEXTS = st.one_of(
    st.text(max_size=200),
    st.text(alphabet="[]{}\",:=.#'\n \t019-eaTnN\\u", max_size=200),
    st.sampled_from(["[", "{", '"', "9", "a.", "'''", '"""', "x=", "\\", "1e"]).flatmap(
        lambda part: st.integers(1, 6000).map(lambda times: part * times)
    ),
)
PARSERS: dict[str, Callable[[str], object]] = {
    "toml": lambda text: parse_toml(text, "f"),
    "json": lambda text: parse_json(text, "f"),
    "csv": lambda text: list(csv_table(text, "f")),
    "program": lambda text: read_program(text, "f"),
    "schedule": lambda text: read_csv(text, "f"),
    "size": units.parse_bytes,
    "rate": units.parse_bytes_rate,
    "time": units.parse_time,
    "flops": units.parse_flops_rate,
    "bytes": lambda text: decoded(text.encode("utf-16", "surrogatepass"), "f"),
}


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60)
@given(text=TEXTS)
def test_any_text_is_read_or_refused_with_place_and_fix(name: str, text: str) -> None:
    try:
        PARSERS[name](text)
    except RatrainError as error:
        assert error.place and error.fix and error.what
        assert len(str(error)) < 3000


@pytest.mark.parametrize("name", ["toml", "json", "csv", "program", "schedule"])
@pytest.mark.parametrize(
    "part", ["[", "{", '"', "a.", "'''", '"""', "9", " ", "a", ",", "\n", "a="]
)
def test_a_megabyte_of_anything_is_answered_in_two_seconds(name: str, part: str) -> None:
    began_s = time.process_time()
    try:
        PARSERS[name](part * (200_000 // len(part)))
    except RatrainError as error:
        assert error.place and error.fix
    assert time.process_time() - began_s < 1


@pytest.mark.parametrize(
    ("name", "text", "place", "problem", "fix"),
    [
        ("toml", "a = 1\nb = foo", "f:2", "invalid value", "quotes"),
        ("toml", "[a]\nx = 1\n[b]\n[a]\ny = 1", "f:4 a", "twice, in lines 1 and 4", "leave one"),
        ("toml", "a.b = 1\n[a]\nb = 2", "f:3 [a] b", "twice, in lines 1 and 3", "leave one"),
        ("toml", "a = 1\nx = " + "[" * 3000, "f:2", f"more than {DEPTH} deep", "nest it less"),
        ("toml", "a = 1\nx = " + "9" * 5000, "f:2", "5,000 digits", "smaller"),
        ("toml", "x = 0x" + "F" * 5000, "f:1 x", f"more than {DIGITS} digits", "smaller"),
        ("toml", "a." * 20_000 + "a = 1", "f:1", f"more than {DEPTH} parts", "fewer"),
        ("toml", "[a]\nx = nan", "f:2 [a] x", "not finite", "finite"),
        ("json", '{"a": 1,\n "b": {"c": 1,\n "c": 2}}', "f:3 [b] c", "lines 2 and 3", "leave one"),
        ("json", '{"a": {"b": 1,\n"b": 2}}}]}', "f:2 [a] b", "lines 1 and 2", "leave one"),
        ("json", '{"a": [1,\n1e999]}', "f:2 [a] 1", "not finite", "finite"),
        ("json", '{"a": "NaN",\n "b": NaN}', "f:2", "NaN is not finite", "null"),
        ("json", "\n" + "[" * 3000, "f:2", f"more than {DEPTH} deep", "nest it less"),
        ("json", "[" * 100 + "]" * 100, "f:1", f"more than {DEPTH} deep", "nest it less"),
        ("json", '{"a":\n' + "9" * 5000 + "}", "f:2", "5,000 digits", "smaller"),
        ("json", '["\\ud800"]', "f:1 0", "half of a surrogate pair", "remove"),
        ("json", '{"a": 1,}', "f:1", "property name", "comma"),
        ("json", "", "f", "is empty", "key"),
        ("csv", "a,b\n1,2,3\n", "f:2", "3 cells, the header has 2", "one cell"),
        ("csv", "a,a\n1,2\n", "f:1", "'a' appears twice: cells 1 and 2", "leave one"),
        ("csv", 'a,b\n1,"2\n', "f:2", "not valid CSV", "close quotes"),
        ("csv", f"a,b\n1,{'x' * 200_000}\n", "f:2", "field larger", "quotes"),
        ("program", "ratrain program 1\nreplica 0 micro_batches 1 count 1", "f", "no stage", "add"),
        ("program", "ratrain program 1\nunit a " + "9" * 5000, "f, line 2", "values", "kind"),
        ("schedule", "0F0\n0F" + "9" * 5000, "f:2, cell 1", "5,002 characters", "commas"),
        ("size", "1" * 5000 + "GB", "size", "is not a size", "20GB"),
        ("size", "２０GB", "size", "is not a size", "20GB"),
        ("bytes", "a", "f", "UTF-16", "UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line_key_and_fix(
    name: str, text: str, place: str, problem: str, fix: str
) -> None:
    with pytest.raises(RatrainError) as caught:
        PARSERS[name](text)
    assert caught.value.place.startswith(place), caught.value.place
    assert any(word in caught.value.what for word in problem.split("|")), caught.value.what
    assert fix in caught.value.fix, caught.value.fix


TREES = st.recursive(
    st.one_of(st.integers(-9, 9), st.text(max_size=4), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=50)
@given(tree=TREES, seed=st.integers(0, 1000))
def test_the_line_of_a_value_in_json_is_where_it_stands(tree: Any, seed: int) -> None:
    rng = random.Random(seed)
    tree = {"first": 1, "inner": [tree, {"last": tree}]}
    text = json.dumps(tree, indent=1)
    keys: tuple[str | int, ...] = ()
    value: Any = tree
    while isinstance(value, (dict, list)) and value:
        key = rng.choice(list(value) if isinstance(value, dict) else list(range(len(value))))
        keys, value = (*keys, key), value[key]
    marked: Any = json.loads(text)
    spot, last = marked, keys[-1:]
    for key in keys[:-1]:
        spot = spot[key]
    for key in last:
        spot[key] = "here"
    if isinstance(value, (dict, list)) or "here" in text:
        return
    lines = json.dumps(marked, indent=1).split("\n")
    wanted = next(n for n, line in enumerate(lines, 1) if '"here"' in line)
    _, place = parse_json(text, "f")
    assert str(place.at(*keys)).split(" ")[0] == f"f:{wanted}"


# ---- files ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/full", "/dev/null", "/dev", "pipe", "socket"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mknod(tmp_path / "socket", 0o140644)
    path = Path(name) if name.startswith("/") else tmp_path / name
    began_s = time.monotonic()
    with pytest.raises(SpecError, match="cannot be read") as caught:
        read_bytes(path)
    assert caught.value.fix and time.monotonic() - began_s < 1


def test_no_more_of_a_file_is_read_than_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(SpecError, match="at most 1,000 are read"):
        read_bytes(path, 1000)
    path.write_bytes(b"x" * 1000)
    assert len(read_bytes(path, 1000)) == 1000


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "small.toml").touch()
    with pytest.raises(SpecError) as caught:
        read_text(tmp_path / "smal.toml")
    assert "small.toml" in caught.value.fix


@pytest.mark.parametrize("name", ["", " ", "a\0b", "n" * 256, "a/" + "é" * 128, "\udcff"])
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_name(name, "--run")
    assert caught.value.place == "--run" and caught.value.fix
    str(caught.value).encode("utf-8")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", ".", 3, None, "a\0"])
def test_a_file_of_a_folder_stays_in_it(tmp_path: Path, name: object) -> None:
    with pytest.raises(SpecError):
        inside(tmp_path, name, "index")
    assert inside(tmp_path, "a/b.safetensors", "index") == tmp_path / "a" / "b.safetensors"


def test_half_a_line_is_passed_over_wherever_a_killed_process_left_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = '{"step": 1, "loss": [0.5, NaN], "ok": true}'
    for cut in range(1, len(whole)):
        path.write_text(f"{whole}\n{whole[:cut]}\n{whole}\n{whole[:cut]}")
        rows = [row for row, _ in read_json_lines(path, half=True, finite=False)]
        assert [row["step"] for row in rows] == [1, 1], whole[:cut]
    path.write_text(whole + '\n{"step": 2, "loss" 3}\n')
    with pytest.raises(SpecError, match=r"metrics\.jsonl:2"):
        list(read_json_lines(path, half=True, finite=False))


HEADER = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"dtype": "F33"}, "type"),
        ({"shape": [2, -3]}, "shape"),
        ({"shape": [2**61, 2**61]}, "bytes"),
        ({"data_offsets": [0, 23]}, "bytes"),
        ({"data_offsets": [24, 48]}, "begins at"),
        ({"data_offsets": [0, "24"]}, "offsets"),
    ],
)
def test_the_header_of_a_safetensors_file_agrees_with_its_bytes(
    tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    header = json.dumps({"a": {**HEADER["a"], **change}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    if not problem:
        assert tensor_header(path)["a"].shape == (2, 3)
        return
    with pytest.raises(SpecError, match=problem) as caught:
        tensor_header(path)
    assert "m.safetensors" in caught.value.place


def test_a_safetensors_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    header = json.dumps(HEADER).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(24)
    path = tmp_path / "m.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SpecError):
            tensor_header(path)


def test_an_index_names_files_of_its_folder_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    for file in ("../x/model.safetensors", "/x.safetensors", "", 1, None):
        path.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": file}}))
        with pytest.raises(SpecError) as caught:
            tensor_index(path)
        assert caught.value.place.endswith("[weight_map] b")


# ---- errors -----------------------------------------------------------------------------


@given(st.text())
def test_a_message_is_printable_and_short_whatever_it_quotes(text: str) -> None:
    message = str(SpecError(text * 50, place=text * 50, fix=text))
    message.encode("utf-8")
    assert all(char.isprintable() or char == "\n" for char in message)
    assert len(message) < 3 * 12 * 2200  # escapes are up to twelve characters
    assert tidy("plain") == "plain"


def test_all_errors_are_gathered_once_each_and_the_first_carries_the_others() -> None:
    faults = Faults()
    for place in ("a", "b", "a"):
        with faults:
            raise SpecError("wrong", place=place, fix="mend it")
    with pytest.raises(SpecError) as caught:
        faults.raise_all()
    assert [error.place for error in (caught.value, *caught.value.more)] == ["a", "b"]
    with pytest.raises(ZeroDivisionError), Faults():
        _ = 1 / 0


def test_a_place_without_lines_shows_its_keys() -> None:
    assert str(Place("f").at("a", 0, "b c")) == "f [a.0] 'b c'"
    assert str(Place("f", Lines(lambda: {("a",): 3})).at("a", 0)) == "f:3 [a] 0"
