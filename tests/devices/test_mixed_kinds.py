"""Ranks that compute on different kinds of device train in one pipeline and one data group."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_runs import JOB, ratrain, write_job

from ratrain.describe.runs_on import RUNS_ON
from ratrain.runtime.run_folder import RunFolder

COARSE = Path(__file__).parents[2] / "examples" / "extending" / "coarse.py"
KINDS = ("cpu", "deferred", "mt3000", "coarse")
DEVICE = """
[[device]]
name = "on-{kind}"
launch = "10us"
memory_efficiency = 0.8
runs_on = "{kind}"
tiers = [{{ name = "RAM", capacity = "2GB", bandwidth = "10GB/s" }}]
rates = [
  {{ dtype = "fp32", peak = "100GFLOP/s", gemm = "50GFLOP/s" }},
  {{ dtype = "fp16", peak = "100GFLOP/s", gemm = "50GFLOP/s" }},
  {{ dtype = "bf16", peak = "100GFLOP/s", gemm = "50GFLOP/s" }},
]

[[host]]
name = "host-{kind}"
device = "on-{kind}"
devices = 1
count = 1
"""
DTYPES = (
    *("--set", 'schedule.dtype="bf16"'),
    *("--set", 'schedule.dtypes={"on-cpu"="fp32", "on-coarse"="fp32", "on-mt3000"="fp16"}'),
)
LINK = """
[links.room]
latency = "200us"
bandwidth = "200Mbit/s"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_job(tmp_path)
    job = JOB.format(steps=4, pipeline=2, data=2)
    text = job.replace('"cpu-lab"\ndevices = 2', '"kinds.toml"\ndevices = 4')
    (tmp_path / "mixed.toml").write_text(text)
    head = 'name = "kinds"\nsource = "a test"\n'
    (tmp_path / "kinds.toml").write_text(
        head + "".join(DEVICE.format(kind=kind) for kind in KINDS) + LINK
    )
    shutil.copy(COARSE, tmp_path)
    return tmp_path


def trained(folder: Path, run: str, *words: str) -> dict[str, Any]:
    """The report of a run of the mixed job."""
    variables = {"PYTHONPATH": str(folder), "RATRAIN_EXTENSIONS": "coarse"}
    ran = ratrain(folder, "train", "mixed.toml", "--run", run, *words, "--json", **variables)
    assert ran.status == 0, ran.err
    return ran.body


def losses(folder: Path, run: str) -> list[float]:
    lines = (folder / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("dtypes", [(), DTYPES], ids=["fp32", "fp32, bf16 and fp16"])
def test_four_kinds_in_one_job_lose_as_four_cpus_do(folder: Path, dtypes: tuple[str, ...]) -> None:
    of_kinds = trained(folder, "mixed", *dtypes)
    on = {row["rank"]: row["computes_on"] for row in of_kinds["memory"]}
    assert len(set(on.values())) == len(KINDS)
    assert "bf16" in on[KINDS.index("coarse")] and "MT-3000" in on[KINDS.index("mt3000")]
    of_cpus = trained(folder, "alone", *dtypes, "--device", "cpu")
    assert {row["computes_on"] for row in of_cpus["memory"]} == {"CPU"}
    pairs = zip(losses(folder, "mixed"), losses(folder, "alone"), strict=True)
    assert all(mixed == pytest.approx(alone, rel=2e-2) for mixed, alone in pairs)
    assert losses(folder, "mixed") != losses(folder, "alone"), "one rounds its factors"


@pytest.mark.slow
def test_a_kind_that_only_finds_missing_order_changes_no_bit_beside_cpus(folder: Path) -> None:
    cluster = (folder / "kinds.toml").read_text()
    for kind in ("mt3000", "coarse"):
        cluster = cluster.replace(f'runs_on = "{kind}"', 'runs_on = "cpu"')
    (folder / "kinds.toml").write_text(cluster)
    trained(folder, "mixed")
    trained(folder, "alone", "--device", "cpu")
    assert losses(folder, "mixed") == losses(folder, "alone")


def test_every_declared_kind_says_how_it_is_made_and_a_name_that_is_none_is_refused(
    folder: Path,
) -> None:
    assert all(":" in kind.made_by and kind.doc for kind in RUNS_ON.values())
    (folder / "kinds.toml").write_text(
        (folder / "kinds.toml").read_text().replace('runs_on = "deferred"', 'runs_on = "npu"')
    )
    ran = ratrain(folder, "plan", "mixed.toml", RATRAIN_EXTENSIONS="coarse", PYTHONPATH=str(folder))
    assert ran.status == 2
    assert "ranks cannot compute on 'npu'" in ran.err and "mt3000" in ran.err
    assert not RunFolder(folder / "mixed").holds_run
