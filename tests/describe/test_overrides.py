"""Values that the command line puts in place of a job file's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.describe.overrides import combined, with_overrides
from ratrain.errors import RatrainError, SpecError
from ratrain.plan.layout.jobs import load_job
from ratrain.readers.place import Place

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.toml"


def table_with(*overrides: str) -> dict[str, Any]:
    return with_overrides({"train": {"steps": 3}, "x": 1}, Place("job.toml"), overrides)[0]


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("train.steps=10", ("train", "steps"), 10),
        ("train.steps = 10", ("train", "steps"), 10),
        ("train.rate=1e-2", ("train", "rate"), 0.01),
        ("data.shuffle=false", ("data", "shuffle"), False),
        ('schedule.memory_budget="28MB"', ("schedule", "memory_budget"), "28MB"),
        ("schedule.memory_budget=28MB", ("schedule", "memory_budget"), "28MB"),
        ("model.name=../a model.json", ("model", "name"), "../a model.json"),
        ('data.files=["a.txt", "b"]', ("data", "files"), ["a.txt", "b"]),
        ("train.note=a=b", ("train", "note"), "a=b"),
    ],
)
def test_a_value_is_written_as_in_the_file(text: str, keys: tuple[str, str], value: object) -> None:
    assert table_with(text)[keys[0]][keys[1]] == value


def test_what_is_given_last_counts_and_the_file_s_own_table_is_left_alone() -> None:
    table: dict[str, Any] = {"train": {"steps": 3, "seed": 1}}
    changed, _ = with_overrides(table, Place(), ["train.steps=4", "train.steps=5"])
    assert changed == {"train": {"steps": 5, "seed": 1}}
    assert table == {"train": {"steps": 3, "seed": 1}}
    assert combined(["train.steps=4", "train.seed=2"], ["train.steps = 5"]) == (
        "train.steps = 5",
        "train.seed=2",
    )


@pytest.mark.parametrize(
    ("text", "said", "place"),
    [
        ("train.steps=ten", "'ten' is not a whole number", "--set train.steps"),
        ("train.steps=0", "0 is below", "--set train.steps"),
        ("train.stepz=10", "unknown key", "--set train.stepz"),
        ("trian.steps=10", "unknown key", "--set trian"),
        ("schedule.memory_budget=28", "28 is not a quantity", "--set schedule.memory_budget"),
        ("schedule.memory_budget=900GB", "the budget of", "--set schedule.memory_budget"),
        ("data.files=[1]", "1 is not a text", "--set data.files"),
        ("data.files=[", "'[' is not valid TOML", "--set data.files"),
        ("train.steps=", "there is no value", "--set train.steps"),
        ("train.steps", "does not name a value of a job", "--set"),
        ("steps=10", "does not name a value of a job", "--set"),
        ("=10", "does not name a value of a job", "--set"),
        ("model.name.x=1", "model.name is a value", "--set model.name.x"),
        ("train.steps.a.b=1", "train.steps is a value", "--set train.steps.a.b"),
        ("train.seed=" + "9" * 5000, "is not a whole number", "--set train.seed"),
        ("train.seed=" + "[" * 100, "nested", "--set train.seed"),
        ("train.seed=" + "1" * 70_000, "at most 65,536 are read", "--set"),
        ("a." * 100 + "b=1", "more than 64 parts", "--set"),
        ("model.name=a\tb", "cannot be printed", "--set model.name"),
        ('data.files=["\\u0000"]', "cannot be printed", "--set data.files"),
        ("train.learning_rate=inf", "is not a number", "--set train.learning_rate"),
    ],
)
def test_what_is_wrong_names_the_option_and_a_fix(text: str, said: str, place: str) -> None:
    with pytest.raises(SpecError) as error:
        load_job(EXAMPLE, [text])
    assert said in str(error.value) and error.value.fix
    assert str(error.value).startswith(place)


def test_a_job_is_loaded_with_its_overrides() -> None:
    job = load_job(EXAMPLE, ["train.steps=7", "schedule.name=gpipe", "layout.layers=[2, 2]"])
    assert (job.train.steps, job.schedule.name) == (7, "gpipe")
    assert job.layout is not None and job.layout.layers == (2, 2)


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_one_error(text: str) -> None:
    for override in (text, f"train.seed={text}", f"{text}=1"):
        try:
            load_job(EXAMPLE, [override])
        except RatrainError as error:
            assert "--set" in str(error)
