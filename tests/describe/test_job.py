"""A job file is loaded strictly: one clear error, its place, the nearest valid choice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.describe.job import layers_per_stage
from ratrain.errors import RatrainError, SpecError
from ratrain.plan.layout.jobs import load_job, load_job_to_plan

JOB = """\
[model]
name = "qwen2.5-32b"
sequence_length = 2048
[cluster]
name = "mt3000"
devices = 256
[batch]
sequences = 4096
[layout]
pipeline = 16
data = 16
layers = "equal"
[schedule]
memory_budget = "20GB"
"""


def load(tmp_path: Path, text: str):
    path = tmp_path / "job.toml"
    path.write_text(text)
    return load_job(path)


def test_a_job_resolves_presets_units_and_defaults(tmp_path: Path) -> None:
    job = load(tmp_path, JOB)
    assert job.layout is not None
    assert layers_per_stage(job.layout, job.model.spec) == (4,) * 16
    assert (job.budgets, job.micro_batches) == ((20_000_000_000,), 256)
    assert (job.schedule.name, job.schedule.recovery_buffer) == ("ratrain", 2)
    assert len(job.cluster.members()) == 256


def test_an_absent_layout_is_none(tmp_path: Path) -> None:
    head, _, tail = JOB.partition("[layout]")
    assert load(tmp_path, head + tail[tail.index("[schedule]") :]).layout is None


def test_a_layout_that_is_left_aside_need_not_suit_the_job_but_must_be_one(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    assert load_job_to_plan(path, ("cluster.devices=128", "batch.micro_batch=5")).layout is None
    path.write_text(JOB.replace("pipeline = 16", "pipelines = 16"))
    with pytest.raises(SpecError, match="pipelines"):
        load_job_to_plan(path)


def test_equal_layers_give_one_more_to_the_first_stages(tmp_path: Path) -> None:
    job = load(tmp_path, JOB.replace("= 16", "= 5", 1).replace("= 16", "= 4").replace("256", "20"))
    assert job.layout is not None
    assert layers_per_stage(job.layout, job.model.spec) == (13, 13, 13, 13, 12)


@pytest.mark.parametrize(
    ("old", "new", "place", "what", "fix"),
    [
        ("devices", "devcies", ":6 [cluster] devcies", "unknown key", "devices"),
        ('"mt3000"', '"mt300"', ":5 [cluster] name", "no cluster", "mt3000"),
        ('"qwen2.5-32b"', '"qwen-32b"', ":2 [model] name", "no model", "qwen2.5-32b"),
        ("sequence_length = 2048\n", "", ":1 model", '"sequence_length" is', "_length = 2048"),
        ("sequences = 4096", "", ":7 batch", '"sequences" is missing', "sequences = 64"),
        ('"20GB"', '"20GBs"', ":14 [schedule] memory_budget", "GBs", '"GB"'),
        ('"20GB"', '"-20GB"', ":14 [schedule] memory_budget", "below", 'at least "1B"'),
        ('"20GB"', "20", ":14 [schedule] memory_budget", "20 is not a quantity", "20GB"),
        ("= 2048", "= 2048.5", ":3 [model] sequence_length", "not a whole number", "= 2048"),
        ("= 2048", "= true", ":3 [model] sequence_length", "not a whole number", "whole"),
        ('"equal"', '"equl"', ":12 [layout] layers", "not an allowed value", "equal"),
        ('"equal"', "[1, 2]", ":12 [layout] layers", "2 numbers for 16 stages", "16"),
        ('"equal"', f"{[4] * 15 + [3]}", ":12 [layout] layers", "add up to 63", "use [4, 4"),
        ('"equal"', f"{[4, 0, 8] + [4] * 13}", ":12 [layout] layers", "stage 1 holds", "a layer"),
        ("data = 16", "data = 8", ":9 layout", "= 128 devices", "data = 16"),
        ("= 4096", "= 4095", ":8 [batch] sequences", "do not divide", "= 4096"),
        ("data = 16", "data = 1\ntensor = 16", "[layout] tensor", "40 heads", "tensor"),
        ("[schedule]", "[schedule]\nsharding = 4", ":14 [schedule] sharding", "above", "most 3"),
        ("[schedule]", '[schedule]\ndtype = "fp8"', "[schedule] dtype", "torch has no fp8", "fp16"),
        ("[batch]", "[batch", "job.toml:7", "not valid TOML", "[table]"),
    ],
)
def test_a_wrong_job_names_place_and_fix(
    tmp_path: Path, old: str, new: str, place: str, what: str, fix: str
) -> None:
    assert old in JOB
    with pytest.raises(RatrainError) as caught:
        load(tmp_path, JOB.replace(old, new, 1))
    error = caught.value
    assert "job.toml" in error.place and error.place.endswith(place), error.place
    assert what in error.what
    assert fix in error.fix


def test_more_devices_than_exist_names_how_many_there_are(tmp_path: Path) -> None:
    with pytest.raises(RatrainError, match="256 devices requested, but the cluster has 8"):
        load(tmp_path, JOB.replace("mt3000", "h200"))


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("runs", "it is a folder, not a job file", "ratrain train --resume --run"),
        ("plan.json", "it is JSON, as a plan is", "ratrain explain"),
    ],
)
def test_a_folder_or_a_plan_in_a_jobs_place_is_named_with_the_verb_that_takes_it(
    tmp_path: Path, name: str, what: str, fix: str
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "plan.json").write_text('{"format": "ratrain plan 1"}')
    with pytest.raises(SpecError) as caught:
        load_job(tmp_path / name)
    assert what in caught.value.what
    assert fix in caught.value.fix and str(tmp_path / name) in caught.value.fix


def test_an_unknown_table_like_no_known_one_gets_no_suggestion(tmp_path: Path) -> None:
    with pytest.raises(RatrainError) as caught:
        load(tmp_path, f"{JOB}\n[extra]\na = 1\n")
    assert "unknown key" in caught.value.what
    assert caught.value.fix.startswith("valid: model, cluster")


MISTAKES = {
    'name = "qwen2.5-32b"': ('name = "qwen"', ":2 [model] name"),
    "devices = 256": ("devices = 2560000", ":6 [cluster] devices"),
    "sequences = 4096": ("sequences = 4095", ":8 [batch] sequences"),
    "pipeline = 16": ("pipeline = 16\ndepth = 16", ":11 [layout] depth"),
    "[schedule]": ('[schedule]\nname = "ratrian"', "[schedule] name"),
    'memory_budget = "20GB"': ('memory_budget = "20GB"\nwithout = ["x"]', "[schedule] without"),
    "20GB": ('20GB"\nboundary_wire = "fp32', "[schedule] boundary_wire"),
}
"""What is written in place of what, and the place that the error names."""


@given(st.sets(st.sampled_from(sorted(MISTAKES)), min_size=1))
def test_mistakes_in_some_tables_hide_none_in_the_others(
    tmp_path_factory: pytest.TempPathFactory, chosen: set[str]
) -> None:
    text, places = JOB, set[str]()
    for old in chosen:
        new, place = MISTAKES[old]
        text = text.replace(old, new, 1)
        places.add(place)
    with pytest.raises(RatrainError) as caught:
        load(tmp_path_factory.mktemp("job"), text)
    named = [error.place for error in (caught.value, *caught.value.more)]
    assert len(named) == len(places), named
    assert all(any(at.endswith(place) for at in named) for place in places), named
    lines = [int(at.split(":")[-1].split()[0]) for at in named]
    assert lines == sorted(lines)


def test_a_table_that_is_missing_is_named_with_what_it_must_hold(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[train]\nsteps = 1\n")
    with pytest.raises(SpecError) as refused:
        load_job(tmp_path / "job.toml")
    fixes = [each.fix for each in (refused.value, *refused.value.more)]
    assert "add the table [model] with name, sequence_length" in fixes
    assert "add the table [batch] with sequences" in fixes
