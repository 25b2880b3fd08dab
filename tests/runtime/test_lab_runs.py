"""A run on slow links and small shares of processors: slower, and not a bit otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launched import assert_same_end, loss_bits, made, ranks_of, start
from runs_made import Setting

from ratrain.lab.cluster import Lab
from ratrain.lab.needs import missing
from ratrain.plan.layout.jobs import load_job
from ratrain.runtime.ownership import claim_run
from ratrain.runtime.run.launch import launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a lab"),
    pytest.mark.skipif(bool(missing()), reason="this machine cannot run a lab"),
]


@pytest.mark.parametrize("latency", ["100us", "5ms"])
def test_a_slow_lab_changes_no_bit(tmp_path: Path, latency: str) -> None:
    setting = Setting(pipeline=2, data=2, steps=5, link="20Mbit/s", latency=latency)
    free, slowed = made(tmp_path / "free", setting), made(tmp_path / "slowed", setting)
    start(free)
    spec = slowed.read_spec()
    cluster = load_job(spec.job_path).cluster.spec
    with claim_run(slowed.path, "a test") as claim, Lab(cluster, 4) as lab:
        launch(slowed, spec, claim=claim, lab=lab, restarts=0, tick=lambda: None)
    assert loss_bits(slowed) == loss_bits(free)
    assert_same_end(slowed, free)
    assert not ranks_of(slowed)
