"""What is wrong with a run's surroundings: one message that names the place, and no hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launched import made, ranks_of, start
from runs_made import CONFIG, Setting, write_job

from ratrain.errors import RatrainError, RunFailed, SpecError
from ratrain.plan.file.form import file_of_plan, write_plan
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.layouts import search_layouts
from ratrain.runtime.run.prepare import RunRequest, prepare_run

slow = [pytest.mark.slow, pytest.mark.timeout(600)]


def failure_of(folder_at: Path, setting: Setting, config: str = "") -> str:
    """The message of a run of one rank that cannot go."""
    folder = made(folder_at, setting)
    if config:
        (folder_at / "config.json").write_text(config)
    with pytest.raises(RunFailed) as error:
        start(folder)
    assert not ranks_of(folder)
    assert not (folder.checkpoints / "step-00000003").exists()
    return str(error.value)


def run_alone(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    keep = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        arguments,
        env={**keep, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_data_type_that_no_device_has_is_named(tmp_path: Path) -> None:
    job = write_job(tmp_path, Setting(dtype="fp8"))
    with pytest.raises(SpecError, match=r"job.toml.*dtype.*fp8"):
        prepare_run(RunRequest(job))


@pytest.mark.parametrize("by_plan", [True, False])
def test_a_backend_that_is_only_described_is_refused_by_name(by_plan: bool, tmp_path: Path) -> None:
    wide = (("num_key_value_heads", 4),)
    setting = Setting(tensor=4, model=wide, files=("none.txt",))
    job, plan = write_job(tmp_path, setting), tmp_path / "plan.json"
    if by_plan:
        read = load_job(job)
        schedule = replace(read.schedule, backend="described", collective="direct")
        chosen = search_layouts(replace(read, layout=None, data=None, schedule=schedule)).best.plan
        plan.write_text(write_plan(file_of_plan(chosen)))
    else:
        job.write_text(job.read_text().replace("[schedule]", '[schedule]\nbackend = "described"'))
    with pytest.raises(SpecError, match="backend described cannot train") as error:
        prepare_run(RunRequest(job, plan_path=plan if by_plan else None))
    assert "backend" in error.value.place
    assert error.value.fix


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RatrainError, match=r"file/run: cannot be created: Not a directory"):
        made(tmp_path, Setting(), run="file/run")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a folder read-only")
def test_a_run_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    try:
        (place / "run" / "ranks").mkdir(parents=True)
        (place / "run" / "logs").mkdir()
        (place / "run" / "checkpoints").mkdir()
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        with pytest.raises(RatrainError, match=r"disk/run.*[Rr]ead-only"):
            made(tmp_path, Setting(), run="disk/run")
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    ended = run_alone([sys.executable, "-m", "ratrain.runtime.rank", str(tmp_path)], **alone)
    assert ended.returncode == 1 and "is not a run's folder" in ended.stderr
    assert str(tmp_path) in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("run", [".", "..", "/"])
def test_a_folder_that_the_job_lies_in_is_no_runs(run: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a run needs a folder of its own"):
        made(tmp_path / "jobs", Setting(), run=run)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]


@pytest.mark.parametrize("name", ["job.toml", "checkpoints/kept", "thesis.tex"])
def test_a_folder_with_other_files_is_no_run_s_and_keeps_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(SpecError, match=rf"files that are not a run's \({name.split('/')[0]}\)"):
        made(tmp_path, Setting())
    assert [file for file in (tmp_path / "run").rglob("*") if file.is_file()] == [path]
    assert path.read_text() == "mine"


def test_a_folder_in_which_a_launch_died_early_takes_a_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    for name in ("secret", "program.txt", "run.json.partial", ".gitignore"):
        (tmp_path / "run" / name).touch()
    assert made(tmp_path, Setting()).holds_run


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path: Path) -> None:
    folder = made(tmp_path, Setting())
    folder.metrics.write_text("{}\n")
    before = folder.program.read_bytes()
    with pytest.raises(SpecError, match=r"already holds a run"):
        made(tmp_path, Setting("gpipe"))
    assert folder.program.read_bytes() == before


def test_a_program_that_exceeds_the_budget_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RatrainError, match=r"more than the budget"):
        made(tmp_path, Setting(budget_bytes=400_000))
    assert not (tmp_path / "run").exists()


def test_a_rank_without_a_launcher_says_so(tmp_path: Path) -> None:
    ended = run_alone([sys.executable, "-m", "ratrain.runtime.rank", str(tmp_path)])
    assert ended.returncode == 2
    assert "no engine has started this process" in ended.stderr and "torchrun" in ended.stderr
    assert "Traceback" not in ended.stderr


class TestLaunched:
    pytestmark = slow

    def test_a_missing_text_is_named(self, tmp_path: Path) -> None:
        message = failure_of(tmp_path, Setting(files=("nowhere.txt",)))
        assert "nowhere.txt" in message and "Traceback" not in message, message

    def test_a_vocabulary_that_is_too_small_is_named(self, tmp_path: Path) -> None:
        small = json.dumps({**CONFIG, "vocab_size": 100})
        message = failure_of(tmp_path, Setting(), small)
        assert "vocab" in message and "100" in message, message

    def test_a_text_too_short_for_one_sequence_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "short.txt").write_text("no")
        message = failure_of(tmp_path, Setting(files=("short.txt",)))
        assert "short" in message and "token" in message, message

    def test_a_damaged_run_folder_is_named(self, tmp_path: Path) -> None:
        folder = made(tmp_path, Setting())
        folder.program.write_text(folder.program.read_text()[:300])
        with pytest.raises(RunFailed, match=r"program\.txt"):
            start(folder)

    @pytest.mark.root
    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace")
    def test_a_machine_without_a_network_ends_with_one_message(self, tmp_path: Path) -> None:
        folder = made(tmp_path, Setting(pipeline=2))
        program = (
            "import sys; from pathlib import Path; from launched import RunFolder, start\n"
            "from ratrain.errors import RatrainError\n"
            "try: start(RunFolder(Path(sys.argv[1])))\n"
            "except RatrainError as error: print(error); sys.exit(error.exit_code)"
        )
        ended = run_alone(
            ["unshare", "-n", sys.executable, "-c", program, str(folder.path)],
        )
        assert ended.returncode == 8, ended.stderr
        assert "127.0.0.1" in ended.stdout and "ip link set lo up" in ended.stdout, ended.stdout
        assert not ranks_of(folder)
