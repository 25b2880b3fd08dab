"""Which hosts a run does without once it has lost some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratrain.describe.overrides import combined
from ratrain.plan import load_job
from ratrain.runtime.run.hosts import all_hosts_of, without
from ratrain.runtime.run.prepare import RunRequest, prepare_run

CLUSTER = """
name = "four"
[[device]]
name = "cpu"
launch = "5us"
memory_efficiency = 0.8
[[device.tiers]]
name = "RAM"
capacity = "2GB"
bandwidth = "10GB/s"
[[device.rates]]
dtype = "fp32"
peak = "50GFLOP/s"
gemm = "30GFLOP/s"
[links.world]
latency = "50us"
bandwidth = "1Gbit/s"
"""
HOST = '[[host]]\nname = "{name}"\ndevice = "cpu"\ndevices = 1\ncount = 1\n'
JOB = """
[model]
name = "tiny-llama"
sequence_length = 64
[cluster]
name = "four.toml"
devices = 4
{said}
[batch]
sequences = 12
[schedule]
dtype = "fp32"
[train]
steps = 2
[data]
files = ["text.jsonl"]
"""


@pytest.mark.parametrize("by_hand", [False, True], ids=["in the file", "by --set"])
@pytest.mark.parametrize("lost", [(), ("n4",)])
def test_hosts_that_a_person_leaves_out_stay_left_out_whatever_is_lost_or_returns(
    tmp_path: Path, lost: tuple[str, ...], by_hand: bool
) -> None:
    hosts = "".join(HOST.format(name=f"n{number}") for number in (1, 2, 3, 4))
    (tmp_path / "four.toml").write_text(CLUSTER.replace("[links", hosts + "[links"))
    job, said = tmp_path / "job.toml", 'without = ["n2"]'
    job.write_text(JOB.format(said="" if by_hand else said))
    (tmp_path / "text.jsonl").write_text('{"text": "a text that is long enough"}\n' * 400)
    request = RunRequest(job, threads=1, calibrate=False)
    if by_hand:
        request = replace(request, overrides=(f"cluster.{said}",))
    whole = prepare_run(request).spec
    left = prepare_run(replace(request, overrides=combined(whole.overrides, (without(lost),)))).spec
    there = load_job(job, left.overrides).cluster.spec.host_names()
    assert set(there) == {"n1", "n3", "n4"} - set(lost)
    assert set(all_hosts_of(left)) == {"n1", "n3", "n4"}
    assert combined(left.overrides, (without(lost),)) == left.overrides


def test_a_host_that_is_lost_may_be_left_out_for_good(tmp_path: Path) -> None:
    hosts = "".join(HOST.format(name=f"n{number}") for number in (1, 2, 3, 4))
    (tmp_path / "four.toml").write_text(CLUSTER.replace("[links", hosts + "[links"))
    (tmp_path / "job.toml").write_text(JOB.format(said='without = ["n2"]'))
    overrides = without(("n4",)), 'cluster.without=["n2", "n4"]'
    there = load_job(tmp_path / "job.toml", overrides).cluster.spec.host_names()
    assert there == ["n1", "n3"]
