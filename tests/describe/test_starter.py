"""Files to begin with: they load as they are, and hold every value that there is."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from ratrain.describe.job import Batch, LayoutSpec, ScheduleSpec
from ratrain.describe.presets import load_cluster
from ratrain.describe.starter import Starter, job_text
from ratrain.describe.train import CheckpointSpec, DataSpec, TrainSpec
from ratrain.plan.layout.jobs import load_job
from ratrain.profile.doubt import Doubt
from ratrain.profile.starter import Machine, cluster_text

CPU = Machine("birch", "x86_64-2-cores", 1, False, 20 * 10**9, 8e9, {"fp32": 5e10}, (), 1e-6)
RATES = {"fp32": 6e13, "bf16": 7e14, "fp16": 7e14}
GPUS = replace(CPU, device="nvidia-h100", devices=8, is_gpu=True, flops=RATES, assumed=("fp16",))
STARTER = Starter("tiny-llama", 512, "this-machine.toml", 1, "fp32", ("text.jsonl",))
TABLES = {
    "batch": Batch,
    "layout": LayoutSpec,
    "schedule": ScheduleSpec,
    "train": TrainSpec,
    "data": DataSpec,
    "checkpoint": CheckpointSpec,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "this-machine.toml").write_text(cluster_text(CPU))
    return tmp_path


def test_figures_that_something_disturbed_are_marked_in_the_cluster_to_begin_with(
    tmp_path: Path,
) -> None:
    doubt = Doubt("large copy", "other processes took 60 % of the processors")
    path = tmp_path / "this-machine.toml"
    path.write_text(cluster_text(replace(CPU, doubts=(doubt,))))
    assert "# DOUBTFUL: something disturbed 1 measurement (large copy: other" in path.read_text()
    assert load_cluster(path) and "DOUBTFUL" not in cluster_text(CPU)


def keys_of(text: str) -> dict[str, set[str]]:
    """Keys by table, those in comments too."""
    keys: dict[str, set[str]] = {}
    table = ""
    for line in text.splitlines():
        if heading := re.match(r"(?:# )?\[(\w+)\]$", line):
            table = heading[1]
        elif heading := re.match(r"(?:# )?(\w+) = ", line):
            keys.setdefault(table, set()).add(heading[1])
    return keys


def test_a_job_to_begin_with_loads_and_names_every_value(folder: Path) -> None:
    text = job_text(STARTER)
    job = folder / "job.toml"
    job.write_text(text)
    loaded = load_job(job)
    assert loaded.layout is None and loaded.data is not None and loaded.data.tokenizer == "bytes"
    keys = keys_of(text)
    for table, kind in TABLES.items():
        units = ("_bytes", "_s")
        names = {field.name for field in fields(kind) if field.name != "keys"}
        if kind is TrainSpec:
            names |= {field.name for field in fields(TrainSpec().keys)}
        plain = {
            re.sub(f"({'|'.join(units)})$", "", n) if n not in keys[table] else n for n in names
        }
        assert keys[table] == plain, table
    assert all(len(line) <= 100 for line in text.splitlines())


def test_its_comments_are_values_that_load_too(folder: Path) -> None:
    text = re.sub(r"^# (\[\w+\]$|\w+ = )", r"\1", job_text(STARTER), flags=re.MULTILINE)
    job = folder / "job.toml"
    job.write_text(text)
    loaded = load_job(job)
    assert loaded.layout is not None and loaded.data is not None
    assert loaded.data.validation == ("held-out.jsonl",)
    usual = replace(loaded.train, weights=None, clip_norm=None, warmup_steps=0, lora=None)
    usual = replace(usual, outer_learning_rate=None, balance_loss=None, prompts_file=None)
    assert usual == TrainSpec(), "a comment shows a default"


@pytest.mark.parametrize("machine", [CPU, GPUS], ids=["cpu", "gpus"])
def test_a_cluster_to_begin_with_loads_and_has_a_link_for_every_pair(
    machine: Machine, tmp_path: Path
) -> None:
    path = tmp_path / "here.toml"
    text = cluster_text(machine).replace("count = 1\n", "count = 2\n")
    path.write_text(text)
    cluster = load_cluster(path)
    devices = cluster.devices(2 * machine.devices)
    for device in devices:
        for other in devices:
            if device is not other:
                assert cluster.link(device, other).bandwidth_bytes_per_s > 0
    assert {rate.dtype for rate in devices[0].kind.rates} == set(machine.flops)
    assert devices[0].kind.memory.capacity_bytes == machine.capacity_bytes


def test_a_model_with_weights_begins_from_them_with_its_tokenizer(folder: Path) -> None:
    starter = replace(
        STARTER, weights="/models/one", tokenizer="/models/one", validation=("held.txt",)
    )
    job = folder / "job.toml"
    job.write_text(job_text(starter))
    loaded = load_job(job)
    assert loaded.train.weights == "/models/one" and loaded.train.learning_rate == 2e-5
    assert loaded.data is not None and loaded.data.validation == ("held.txt",)
