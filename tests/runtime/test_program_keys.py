"""Each key that a program depends on is noticed by plan file, plan check, ranks and resume."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from runs_made import Setting, write_job, write_text
from test_agreement import together

from ratrain.corpus import prepare
from ratrain.describe.job import ScheduleSpec
from ratrain.describe.program_keys import PROGRAM_KEYS, SEARCHED, ProgramKey
from ratrain.errors import RunFailed, SpecError
from ratrain.plan import load_job
from ratrain.plan.file.checks import job_of_plan
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.search.misfit import planned
from ratrain.readers.place import Place
from ratrain.runtime.rank.joining.agreement import agree, read_run
from ratrain.runtime.rank.joining.rendezvous import Everybody
from ratrain.runtime.run.prepare import RunRequest, prepare_run, write_run
from ratrain.runtime.run.resume import resume_run
from ratrain.runtime.run_folder import RunFolder

OTHER = {
    "schedule.dtype": '"fp16"',
    "schedule.gradient_dtype": '"fp16"',
    "schedule.backend": '"described"',
    "schedule.name": '"gpipe"',
    "schedule.without": '["update-prefetch"]',
    "schedule.memory_budget": '"1GB"',
    "schedule.passes": "[]",
    "schedule.average_every": "2",
    "schedule.averages": '"early-start"',
    "schedule.average_turns": "{ e = 0, 0 = 0, 1 = 0, 2 = 1, 3 = 1, h = 1 }",
    "schedule.average_wire": '"bf16"',
    "schedule.average_between": '"sites"',
    "train.outer_learning_rate": "0.7",
    "train.clip_norm": "1.0",
    "train.overflow": '"unit"',
    "train.optimizer": '"lion"',
    "train.freeze": '["embed_tokens"]',
    "train.train_only": '["*norm"]',
    "train.lora": "{ rank = 4 }",
    "train.dropout": "0.1",
    "train.network": '"direct"',
    "schedule.recover_heads": "true",
    "schedule.collective": '"ring"',
    "schedule.attention": '"stored"',
    "schedule.dtypes": '{process = "bf16"}',
    "schedule.gradient_wire": '"bf16"',
    "schedule.boundary_wire": '"bf16"',
    "schedule.error_feedback": "true",
    "schedule.mirror": "true",
    "schedule.gradient_bucket": '"1MB"',
    "schedule.optimizer_tier": '"host"',
    "schedule.view_tier": '"host"',
    "schedule.gradient_tier": '"host"',
    "schedule.activation_tier": '"host"',
}
"""For each key a value that is not the one of `BEGUN`."""
NEEDS = {
    "schedule.gradient_dtype": ("schedule.dtype",),
    "schedule.dtypes": ("schedule.dtype",),
    "schedule.error_feedback": ("schedule.gradient_wire",),
    "train.overflow": ("schedule.dtype",),
    "schedule.view_tier": ("schedule.optimizer_tier",),
    "schedule.averages": ("schedule.average_every",),
    "schedule.average_turns": ("schedule.average_every", "schedule.averages"),
    "schedule.average_between": ("schedule.average_every", "schedule.averages"),
    "schedule.average_wire": (
        *("schedule.average_every", "schedule.averages", "train.outer_learning_rate"),
    ),
    "train.outer_learning_rate": ("schedule.average_every", "schedule.averages"),
}
"""What a value needs that others have, in both jobs."""
BEGUN = Setting(planned=True, data=2, files=("text.txt",))


def with_key(text: str, name: str) -> str:
    """A job file with another value for a key."""
    table, _, key = name.partition(".")
    head, _, rest = text.partition(f"[{table}]\n")
    own, end, tail = rest.partition("\n[")
    kept = [line for line in own.splitlines() if line.split(" ")[0] != key]
    own = "\n".join([f"{key} = {OTHER[name]}", *kept, ""])
    return f"{head}[{table}]\n{own}{end}{tail}"


def test_every_key_of_schedule_is_one_that_a_program_depends_on_or_binds_a_search() -> None:
    listed = [key.name for key in PROGRAM_KEYS if key.table == "schedule"] + sorted(SEARCHED)
    assert sorted(listed) == sorted(field.name for field in fields(ScheduleSpec))
    assert set(OTHER) == {f"{key.table}.{key.file_key}" for key in PROGRAM_KEYS}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """A folder with a job in which some keys have their other value, its run, and a plan for it."""

    @cache
    def made(keys: tuple[str, ...]) -> Path:
        job = write_job(tmp_path_factory.mktemp("begun"), BEGUN)
        write_text(job.parent / "text.txt")
        text = job.read_text()
        for name in keys:
            text = with_key(text, name)
        job.write_text(text)
        write_run(prepare_run(RunRequest(job, threads=1)), RunFolder(job.parent / "run"))
        best = planned(load_job(job)).best.plan
        (job.parent / "plan.json").write_text(write_plan(file_of_plan(best)))
        return job.parent

    return made


@pytest.fixture
def begun(templates: Callable[[tuple[str, ...]], Path], tmp_path: Path, key: ProgramKey) -> Path:
    """A folder with a job, its run, and a plan for it."""
    return shutil.copytree(templates(NEEDS.get(name_of(key), ())), tmp_path / "begun")


@pytest.fixture
def other(begun: Path, tmp_path: Path, key: ProgramKey) -> Path:
    """The job with another value for the key, in a copy of the folder."""
    shutil.copytree(begun, tmp_path / "other")
    job = tmp_path / "other" / "job.toml"
    job.write_text(with_key(job.read_text(), name_of(key)))
    return job


def name_of(key: ProgramKey) -> str:
    return f"{key.table}.{key.file_key}"


every_key = pytest.mark.parametrize("key", PROGRAM_KEYS, ids=name_of)


@every_key
def test_a_plan_file_carries_it(key: ProgramKey, begun: Path, other: Path) -> None:
    before, job = (load_job(path) for path in (begun / "job.toml", other))
    best = planned(before).best.plan
    plan = parse_plan(write_plan(file_of_plan(replace(best, job=job))), "plan.json")
    read = job_of_plan(plan, Place(str(other)))
    assert key.of(read) == key.of(job) != key.of(before)


@every_key
def test_a_plan_decides_it_or_is_held_against_the_job(
    key: ProgramKey, begun: Path, other: Path
) -> None:
    plan = begun / "plan.json"
    if key.decided:
        said = (f"{name_of(key)}={OTHER[name_of(key)]}",)
        with pytest.raises(SpecError, match="decides this already"):
            prepare_run(RunRequest(begun / "job.toml", plan_path=plan, overrides=said))
    else:
        with pytest.raises(SpecError, match="the plan has "):
            prepare_run(RunRequest(other, plan_path=plan))


@every_key
def test_ranks_agree_on_it(
    key: ProgramKey, begun: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "default_cache", lambda: tmp_path / "cache")
    spec = other.parent / "run" / "run.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "job_path": str(other)}))
    folders = [RunFolder(path / "run") for path in (begun, other.parent)]

    def work(rank: int, everybody: Everybody) -> object:
        return agree(folders[rank], read_run(folders[rank]).with_data(None), everybody)

    for end in together(2, work):
        assert isinstance(end, RunFailed) and re.search(f"the job's .*{key.name}", str(end))


@every_key
def test_a_resumed_run_refuses_it_or_says_that_it_keeps_its_own(
    key: ProgramKey, begun: Path, other: Path
) -> None:
    folder = RunFolder(begun / "run")
    if key.table == "train":
        with pytest.raises(SpecError, match=f"began with.* {key.file_key}.* cannot change"):
            resume_run(RunRequest(other), folder)
    else:
        changes = resume_run(RunRequest(other), folder).changes
        kept = [line for line in changes if "stays as it is" in line]
        assert any(f" {key.name} " in line for line in kept)
