"""A run looks at its machine first: are its devices here, is there memory for its ranks? And a rank
that the kernel kills for lack of memory is said to have ended so."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import (
    here,
    rank_processes,
    ratrain,
    ratrain_arguments,
    start,
    wait_until,
    write_job,
)

from ratrain.describe.presets import cluster_preset
from ratrain.lab import groups
from ratrain.runtime.devices_here import gpu_names, missing_here

CLUSTER = """
name = "shop"
source = "a test"

[[device]]
name = "t4"
launch = "10us"
memory_efficiency = 0.8

[[device.tiers]]
name = "memory"
capacity = "16GB"
bandwidth = "300GB/s"

[[device.rates]]
dtype = "fp32"
peak = "8TFLOP/s"
gemm = "6TFLOP/s"

[[host]]
name = "node"
device = "t4"
devices = 2
count = 1

[links.host]
latency = "10us"
bandwidth = "10GB/s"
"""


def needs_groups(test: Callable[..., None]) -> Callable[..., None]:
    marks = (
        pytest.mark.slow,
        pytest.mark.root,
        pytest.mark.skipif(os.geteuid() != 0, reason="needs root for control groups"),
    )
    for mark in marks:
        test = mark(test)
    return test


def write_t4_job(folder: Path) -> Path:
    job = write_job(folder)
    (folder / "shop.toml").write_text(CLUSTER)
    job.write_text(job.read_text().replace('"cpu-lab"', '"shop.toml"'))
    return job


def test_a_job_whose_devices_are_not_here_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_t4_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ratrain", "train", str(job)])
    refused = here(capsys)
    said = " ".join(refused.err.split())
    assert refused.status == 3
    assert "the job's devices are 2 x t4; this machine has no GPU" in said
    assert "--emulate" in said and "--prepare-only" in said
    assert not (tmp_path / "runs").exists()


def test_emulation_is_not_offered_where_its_ranks_would_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_t4_job(tmp_path)
    shop = tmp_path / "shop.toml"
    shop.write_text(shop.read_text().replace("16GB", "9TB"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["ratrain", "train", str(job), "--set", "model.name=gpt3-175b"]
    )
    refused = here(capsys)
    said = " ".join(refused.err.split())
    assert refused.status == 3
    assert "emulated here, 2 ranks on this machine would take" in said
    assert "--emulate" not in said


@pytest.mark.slow
def test_emulate_insists_and_the_run_remembers_it(tmp_path: Path) -> None:
    job = write_t4_job(tmp_path)
    options = ("--run", tmp_path / "run", "--no-calibrate", "--json")
    trained = ratrain(tmp_path, "train", job, "--emulate", "--steps", "2", *options)
    assert trained.status == 0, trained.err
    resumed = ratrain(tmp_path, "train", job, "--resume", "--steps", "4", *options)
    assert resumed.status == 0 and resumed.body["steps"]["done"] == 4, resumed.err


def test_a_gpu_serves_one_device_of_its_model(tmp_path: Path) -> None:
    for number, model in enumerate(("NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA L40S")):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 57\n")
    gpus = gpu_names(tmp_path)
    assert gpus == ["NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA L40S"]
    a100, h100, cpu = (
        replace(cluster_preset(name).device[0], runs_on=runs_on)
        for name, runs_on in (("a100-80g-dgx", "cuda"), ("h100-dgx", "cuda"), ("cpu-lab", "cpu"))
    )
    assert missing_here([a100, cpu, cpu], gpus) == []
    assert missing_here([a100, a100], gpus) == [a100]
    assert missing_here([a100, a100], gpus, shared=True) == []
    assert missing_here([replace(a100, runs_on="cpu")], gpus) != []
    assert missing_here([h100], gpus) == [h100]


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Generator[Path]:
    """A control group with little memory."""
    parent = next(p for p in groups.here() if "memory" in p.controllers)
    lab = f"ratrain-test-{os.getpid()}"
    yield groups.make(parent, lab, 0, 1.0, request.param)
    groups.remove(parent.path / lab)


@needs_groups
@pytest.mark.parametrize("group", [300_000_000], indirect=True)
def test_ranks_that_a_control_group_cannot_hold_are_refused(tmp_path: Path, group: Path) -> None:
    words = shlex.join(ratrain_arguments("train", write_job(tmp_path)))
    refused = subprocess.run(
        ["sh", "-c", f"echo $$ > {group / 'cgroup.procs'}; exec {words}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    said = " ".join(refused.stderr.split())
    assert refused.returncode == 3, said
    assert "2 ranks on this machine would take" in said, said
    assert f"is left (the limit of the control group {group})" in said


@needs_groups
@pytest.mark.parametrize("group", [100_000_000], indirect=True)
def test_a_rank_that_the_kernel_kills_is_said_to_have_run_out_of_memory(
    tmp_path: Path, group: Path
) -> None:
    run = tmp_path / "run"
    job = write_job(tmp_path, steps=100_000)
    process = start(tmp_path, "train", job, "--run", run, "--no-calibrate")
    wait_until(lambda: bool(rank_processes(run)), process)  # it has yet to load torch
    (group / "cgroup.procs").write_text(str(rank_processes(run)[0]))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 8
    assert "memory ran out (" in " ".join(err.split())
