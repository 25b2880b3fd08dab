"""Mistakes of a first hour, and the fix that each message offers: one that works."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import run

import pytest
from cli_runs import ratrain_arguments

from ratrain.describe.presets import load_cluster
from ratrain.describe.units import format_long_time
from ratrain.errors import SpecError

FOUR_MACHINES = Path(__file__).parents[1] / "examples" / "clusters" / "four-machines.toml"
SMALL = Path(__file__).parents[1] / "examples" / "small.toml"


def failed(*words: str) -> str:
    ran = run(ratrain_arguments(*words), capture_output=True, text=True)
    assert ran.returncode == 2, ran.stdout
    return ran.stderr


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ('schedule.name="zero3"', "fix: write sharding = 3 (the stage of ZeRO)"),
        ('schedule.name="fsdp"', "fix: write sharding = 3 (the stage of ZeRO)"),
        ('schedule.name="zero-1"', "fix: write sharding = 1 (the stage of ZeRO)"),
        ("train.lr=0.1", 'fix: did you mean "learning_rate"?'),
        ("layout.layers=[3,3,3,3]", "fix: use [2, 2, 2, 2]"),
    ],
)
def test_a_name_of_another_trainer_leads_to_ours(value: str, fix: str) -> None:
    assert fix in failed("simulate", str(SMALL), "--set", value)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("", 'add count = 1 or count = "any"'),
        ('count = "4"', "write count = 4"),
        ("count = 4.0", "write count = 4"),
        ("count = true", "write a whole number, as in count = 1"),
        ('count = "Any"', 'did you mean "any"?'),
    ],
)
def test_the_count_of_hosts_is_a_number_or_any(tmp_path: Path, line: str, fix: str) -> None:
    text = FOUR_MACHINES.read_text()
    (tmp_path / "lab.toml").write_text(text.replace("count = 2", line))
    with pytest.raises(SpecError) as wrong:
        load_cluster(tmp_path / "lab.toml")
    assert fix in str(wrong.value)


def test_an_option_that_is_like_no_other_is_not_taken_for_one() -> None:
    message = failed("data", str(SMALL), "--count")
    assert "did you mean" not in message and "data --help`" in message
    assert "did you mean --verify?" in failed("data", str(SMALL), "--verfy")


def test_long_times_are_said_in_minutes_and_hours_too() -> None:
    assert format_long_time(119) == "119 s"
    assert format_long_time(1704) == "1704 s (28 min 24 s)"
    assert format_long_time(7325) == "7325 s (2 h 2 min)"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("gpt2", "gpt2-345m"), ("llama3", "llama-3.1-8b"), ("llma-2-7b", "llama-2-7b")],
)
def test_a_model_is_found_by_the_beginning_of_its_name_or_in_spite_of_a_slip(
    typed: str, meant: str
) -> None:
    assert f'did you mean "{meant}"?' in failed("models", typed)


@pytest.mark.slow
def test_an_example_is_written_without_its_suffix_and_where_the_manual_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = failed("simulate", "examples/small.toml")
    words = re.findall(r"`ratrain (.+)` writes it", message)[0].split()
    assert run(ratrain_arguments(*words), check=False).returncode == 0
    assert (tmp_path / "examples" / "small.toml").exists()
    assert run(ratrain_arguments("init", "example", "picture"), check=False).returncode == 0
    assert (tmp_path / "picture.toml").exists()
    assert "create the folder nowhere" in failed("simulate", "nowhere/small.toml")
