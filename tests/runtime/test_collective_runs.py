"""Runs whose replicas reduce by a collective of several rounds, on real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from crew import Crew
from runs_made import Setting, Unlike, write_job, write_plan
from training import Result, train

from ratrain.cost.algorithms import ALGORITHMS
from ratrain.errors import SpecError
from ratrain.runtime.run.prepare import PreparedRun, RunRequest, prepare_run

PAIRS = Setting(data=4, devices_per_host=2)
"""Four replicas on two hosts."""
SCHEDULES = [
    Setting("1f1b"),
    Setting("zb-h1"),
    *(Setting(sharding=level) for level in range(4)),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def prepared(folder: Path, setting: Setting) -> PreparedRun:
    job = write_job(folder, replace(setting, files=("none.txt",)))
    return prepare_run(RunRequest(job, threads=1, calibrate=False))


@pytest.fixture(scope="module")
def direct(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train(crew, PAIRS, tmp_path_factory.mktemp("direct"))


@pytest.mark.matrix
@pytest.mark.parametrize("hosts", [2, 3], ids="{} a host".format)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_collective_trains_to_the_same_losses_within_its_bound(
    name: str, hosts: int, crew: Crew, tmp_path: Path, direct: Result
) -> None:
    setting = replace(PAIRS, collective=name, devices_per_host=hosts)
    result = train(crew, setting, tmp_path)
    assert result.loss_values == pytest.approx(direct.loss_values, rel=1e-5)
    peaks = zip(result.ledger_peaks, result.bounds, strict=True)
    assert all(0 < peak <= bound for peak, bound in peaks)
    same_order = not prepared(tmp_path / "again", setting).spec.sum_order
    assert same_order == (name == "direct" or (name, hosts) == ("hierarchical", 3))
    assert same_order == (not result.differences(direct))


@pytest.mark.parametrize("accumulation", ["local", "sharded"])
def test_all_schedules_of_a_hierarchy_give_the_same_bits(
    accumulation: str, crew: Crew, tmp_path: Path
) -> None:
    base = replace(PAIRS, collective="hierarchical", accumulation=accumulation)
    usual = train(crew, replace(base, sharding=2), tmp_path / "usual")
    for number, choice in enumerate(SCHEDULES):
        if accumulation == "sharded" and choice.sharding in (0, 1, None):
            continue  # they have no shards to add to
        setting = replace(base, name=choice.name, sharding=choice.sharding)
        result = train(crew, setting, tmp_path / str(number), delays=number)
        assert not result.differences(usual), str(setting)


def test_two_replicas_have_the_same_bits_by_every_collective(crew: Crew, tmp_path: Path) -> None:
    results = [
        train(crew, Setting(pipeline=2, data=2, collective=name), tmp_path / name)
        for name in ALGORITHMS
    ]
    assert not any(result.differences(results[0]) for result in results[1:])


@pytest.mark.matrix
@pytest.mark.parametrize(
    "changed",
    [
        Setting(dtype="bf16"),
        Setting(gradient_wire="bf16"),
        Setting(gradient_wire="bf16", error_feedback=True),
        Setting(average_every=1),
        Setting(overflow="unit", dtype="fp16", sharding=2),
        Setting(clip_norm=1.0, model=(("tie_word_embeddings", True),)),
    ],
    ids=str,
)
def test_a_hierarchy_trains_what_a_direct_exchange_trains(
    changed: Setting, crew: Crew, tmp_path: Path
) -> None:
    setting = replace(changed, data=4, devices_per_host=2)
    direct, hierarchical = (
        train(crew, replace(setting, collective=name), tmp_path / name)
        for name in ("direct", "hierarchical")
    )
    assert hierarchical.loss_values == pytest.approx(direct.loss_values, rel=2e-3)
    assert hierarchical.bounds == direct.bounds
    peaks = zip(hierarchical.ledger_peaks, hierarchical.bounds, strict=True)
    assert all(peak <= bound for peak, bound in peaks)


def test_what_auto_takes_for_each_unit_is_what_runs(crew: Crew, tmp_path: Path) -> None:
    setting = replace(PAIRS, collective="auto", link="1Mbit/s", latency="1us")
    spec = prepared(tmp_path / "prepared", setting).spec
    assert set(spec.gathers_by) == set(spec.reduces_by) != set()
    (name,) = {*spec.gathers_by.values(), *spec.reduces_by.values()}
    assert name != "direct", "the line between hosts is slow, and shared"
    named = replace(setting, collective=name)
    auto, by_name = (
        train(crew, each, tmp_path / str(each.collective)) for each in (setting, named)
    )
    assert not auto.differences(by_name)


def test_replicas_that_differ_reduce_in_a_hierarchy_too(crew: Crew, tmp_path: Path) -> None:
    unlike = (Unlike((2, 2), 4), Unlike((4,), 2, count=2))
    setting = Setting(unlike=unlike, devices_per_host=2)
    direct, hierarchical = (
        train(crew, replace(setting, collective=name), tmp_path / name)
        for name in ("direct", "hierarchical")
    )
    assert hierarchical.loss_values == pytest.approx(direct.loss_values, rel=1e-5)


def test_a_plan_of_another_collective_than_the_jobs_is_refused(tmp_path: Path) -> None:
    unlike = (Unlike((2, 2), 4), Unlike((4,), 2, count=2))
    setting = Setting(unlike=unlike, devices_per_host=2, files=("none.txt",))
    plan = write_plan(tmp_path, setting)
    job = write_job(tmp_path, replace(setting, collective="ring"))
    with pytest.raises(SpecError, match="the plan has collective = 'direct', the job has 'ring'"):
        prepare_run(RunRequest(job, threads=1, calibrate=False, plan_path=plan))


def test_a_host_that_is_alone_changes_no_bit(crew: Crew, tmp_path: Path, direct: Result) -> None:
    alone = replace(PAIRS, collective="hierarchical", devices_per_host=1)
    assert not train(crew, alone, tmp_path).differences(direct)
