"""`ratrain train JOB` without a layout, on devices whose plan has unequal replicas."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from cli_runs import CONFIG, Ran, ratrain, start, steps_done, wait_until

from ratrain.plan.file.form import is_uneven, load_plan
from ratrain.program.text import write_text
from ratrain.runtime.run_folder import RunFolder

pytestmark = pytest.mark.slow
DEVICE = """
[[device]]
name = "{name}"
launch = "10us"
launch_source = "test"
memory_efficiency = 0.8
memory_efficiency_source = "test"
[[device.tiers]]
name = "RAM"
capacity = "1GB"
bandwidth = "{rate}GB/s"
source = "test"
[[device.rates]]
dtype = "fp32"
peak = "{rate}GFLOP/s"
gemm = "{rate}GFLOP/s"
source = "test"
[[host]]
name = "{name}"
device = "{name}"
devices = 1
count = {count}
"""
CLUSTER = f"""
name = "one-fast"
source = "test"
{DEVICE.format(name="new", rate=9, count=1)}
{DEVICE.format(name="old", rate=3, count=2)}
[links.room]
latency = "50us"
bandwidth = "10Gbit/s"
shared_by = "host"
source = "test"
"""
JOB = """
[model]
name = "config.json"
sequence_length = 32
[cluster]
name = "cluster.toml"
devices = 3
[batch]
sequences = 10
[schedule]
dtype = "fp32"
[train]
steps = 8
learning_rate = 1e-2
[data]
files = ["text.txt"]
[checkpoint]
every = 4
"""


def write_files(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "cluster.toml").write_text(CLUSTER)
    lines = (f"line {n}: {n} times {n} is {n * n}.\n" for n in range(2000))
    (folder / "text.txt").write_text("".join(lines))
    (folder / "job.toml").write_text(JOB)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("unequal")
    write_files(made)
    assert ratrain(made, "plan", "job.toml", "-o", "plan.json").status == 0
    assert is_uneven(load_plan(made / "plan.json"))
    return made


@pytest.fixture(scope="module")
def finished(folder: Path) -> Ran:
    """The job's run, in runs/job-ratrain."""
    ran = ratrain(folder, "train", "job.toml", "--no-calibrate", "--json")
    assert ran.status == 0, ran.err
    return ran


def losses(run: Path) -> list[str]:
    return [json.loads(line)["loss_bits"] for line in (run / "metrics.jsonl").open()]


def test_the_ranks_run_the_plan_that_plan_writes(folder: Path, finished: Ran) -> None:
    given = ratrain(
        folder, "train", "job.toml", "--plan", "plan.json", "--run", "given", "--no-calibrate"
    )
    assert given.status == 0, given.err
    runs = [RunFolder(folder / name) for name in ("runs/job-ratrain", "given")]
    of_job, of_plan = ((run.read_spec(), write_text(run.kept_program())) for run in runs)
    assert of_job == of_plan
    assert losses(runs[0].path) == losses(runs[1].path)
    assert finished.body["steps"]["done"] == 8


def test_it_says_what_runs_and_what_identical_replicas_would_take(finished: Ran) -> None:
    words = " ".join(finished.err.split())
    assert "replicas of 2 shapes" in words
    assert "the fastest plan with identical replicas takes" in words


@pytest.mark.usefixtures("finished")
def test_a_run_that_is_interrupted_resumes_with_its_own_plan_and_the_same_losses(
    folder: Path,
) -> None:
    process = start(folder, "train", "job.toml", "--run", "stopped", "--no-calibrate")
    stopped = folder / "stopped"
    wait_until(lambda: steps_done(stopped) >= 2, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    program = write_text(RunFolder(stopped).kept_program())
    resumed = ratrain(folder, "train", "job.toml", "--run", "stopped", "--resume", "--no-calibrate")
    assert resumed.status == 0, resumed.err
    assert write_text(RunFolder(stopped).kept_program()) == program
    assert losses(stopped) == losses(folder / "runs/job-ratrain")


def test_a_resumed_run_says_that_a_changed_cluster_and_layout_do_not_change_its_plan(
    tmp_path: Path,
) -> None:
    write_files(tmp_path)
    first = ("train", "job.toml", "--run", "run", "--no-calibrate")
    assert ratrain(tmp_path, *first, "--steps", "2").status == 0
    changed = JOB.replace("devices = 3", "devices = 2") + "[layout]\npipeline = 2\n"
    (tmp_path / "job.toml").write_text(changed)
    resumed = ratrain(tmp_path, *first, "--resume", "--steps", "4")
    assert resumed.status == 0, resumed.err
    words = " ".join(resumed.err.split())
    assert "[cluster] devices is 2, was 3; the program stays as it is without --replan" in words
    assert "[layout] was added; the program stays as it is without --replan" in words
    assert len(losses(tmp_path / "run")) == 4


def test_the_page_of_the_run_is_written(folder: Path, finished: Ran) -> None:
    page = Path(finished.body["page"])
    assert (folder / page).stat().st_size > 10_000
    said = ratrain(folder, "report", "runs/job-ratrain", "--json")
    assert said.status == 0 and said.body["verdict"]["tone"] == "good"


def test_a_run_of_identical_replicas_is_asked_for_in_the_schedule(folder: Path) -> None:
    ran = ratrain(
        folder, "train", "job.toml", "--run", "identical", "--no-calibrate", "--steps", "1",
        "--set", "schedule.replicas=identical",
    )  # fmt: skip
    assert ran.status == 0, ran.err
    assert "pipeline" in ran.err.splitlines()[0] and "shapes" not in ran.err
