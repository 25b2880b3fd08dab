"""Plans of sites that differ: each divided as suits it, with its part of a step's sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible
from ratrain.plan import load_job, load_plan, plan_of_file
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import write_plan
from ratrain.plan.price.places import PlanCosts
from ratrain.plan.price.trial import tried_out
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.search.of_sites import best_of_sites, tried_of
from ratrain.plan.words import every_text
from ratrain.program.kind import Kind
from ratrain.program.units import unit_columns

CLUSTER = """
name = "unlike-sites"
source = "a test"

[[device]]
name = "core"
launch = "10us"
launch_source = "a test"
memory_efficiency = 0.8
memory_efficiency_source = "a test"

[[device.tiers]]
name = "RAM"
capacity = "2GB"
bandwidth = "10GB/s"
source = "a test"

[[device.rates]]
dtype = "fp32"
peak = "100GFLOP/s"
gemm = "50GFLOP/s"
source = "a test"

[[host]]
name = "here"
device = "core"
devices = 1
count = {here}
site = "here"

[[host]]
name = "there"
device = "core"
devices = {per_host}
count = {there}
site = "there"

[links.host]
latency = "2us"
bandwidth = "20GB/s"
shared_by = "device"
source = "a test"

[links.room]
latency = "100us"
bandwidth = "1Gbit/s"
shared_by = "host"
source = "a test"

[links.world]
latency = "1ms"
bandwidth = "2Gbit/s"
shared_by = "host"
source = "a test"
"""
JOB = """
[model]
name = "tiny-llama"
sequence_length = 64
[cluster]
name = "cluster.toml"
devices = {devices}
[batch]
sequences = 12
[schedule]
dtype = "fp32"
average_every = 4
averages = "early-start"
average_between = "sites"
"""


def job_at(folder: Path, here: int, there: int, *asked: str, per_host: int = 1) -> JobSpec:
    cluster = CLUSTER.format(here=here, there=there // per_host, per_host=per_host)
    (folder / "cluster.toml").write_text(cluster)
    (folder / "job.toml").write_text(JOB.format(devices=here + there))
    return load_job(folder / "job.toml", asked)


@pytest.mark.slow
@pytest.mark.parametrize("sites", [(1, 2), (2, 1), (1, 3)])
def test_unlike_sites_get_plans_of_their_own_and_the_work_that_they_are_worth(
    sites: tuple[int, int], tmp_path: Path
) -> None:
    job = job_at(tmp_path, *sites)
    found = every_plan(job)
    chosen = found.chosen
    assert found.alike is None and not chosen.plan.is_layout and not chosen.refusals
    taken = [0, 0]
    for replica in chosen.plan.replicas:
        (site,) = {device.site for device in replica.seats.devices}
        taken[job.sites.index(site)] += replica.sequences * len(replica.members)
    assert sum(taken) == 12
    assert all(abs(n - 12 * c / sum(sites)) <= 1 for n, c in zip(taken, sites, strict=True)), taken
    assert Case(chosen.subject()).proved.verdict.sound
    path = tmp_path / "plan.json"
    path.write_text(write_plan(chosen.file()))
    _, ran = tried_out(plan_of_file(load_plan(path), str(path)))
    assert ran is not None and ran.step_time_s == pytest.approx(chosen.step_s, rel=1e-9)
    alone = every_plan(job_at(tmp_path, 1, 1)).chosen
    assert chosen.step_s < alone.step_s * 0.9, "more devices of a site make it faster"
    assert all(len(line) <= 80 for line in every_text(found, 3))


@pytest.mark.slow
def test_sites_of_unlike_numbers_have_no_identical_replicas(tmp_path: Path) -> None:
    job = job_at(tmp_path, 1, 2, "schedule.replicas=identical")
    with pytest.raises(Infeasible, match="here, there have other numbers of devices"):
        every_plan(job)


@pytest.mark.slow
def test_a_site_has_a_tensor_degree_of_its_own_where_that_is_faster(tmp_path: Path) -> None:
    """Three of four sequences on two devices that have a fast line between them: no two replicas
    share them evenly, and a pipeline of two waits for its ends."""
    job = job_at(tmp_path, 1, 2, "batch.sequences=4", per_host=2)
    chosen = every_plan(job).chosen
    assert [max(replica.tensor) for replica in chosen.plan.replicas] == [1, 2]
    assert not chosen.refusals and Case(chosen.subject()).proved.verdict.sound
    path = tmp_path / "plan.json"
    path.write_text(write_plan(chosen.file()))
    _, ran = tried_out(plan_of_file(load_plan(path), str(path)))
    assert ran is not None and ran.step_time_s == pytest.approx(chosen.step_s, rel=1e-9)


@pytest.mark.slow
def test_what_averages_expose_changes_which_plan_of_sites_is_first(tmp_path: Path) -> None:
    """Behind backward a pipeline's last stage hides less of its averages than a replica that goes
    through all layers last: by its step alone the pipeline is faster."""
    asked = ("schedule.averages=dreamddp", "schedule.average_every=1")
    job = job_at(tmp_path, 1, 2, *asked)
    ranked, count = best_of_sites(job)
    assert len(ranked) == count and ranked == sorted(ranked, key=lambda each: each.estimate_s)
    by_step = min(ranked, key=lambda each: each.alone_s)
    assert ranked[0].alone_s > by_step.alone_s
    first, other = (tried_of(job, each) for each in (ranked[0], by_step))
    assert first is not None and other is not None and first.step_s < other.step_s
    hidden, _ = best_of_sites(job_at(tmp_path, 1, 2, "schedule.average_every=64"))
    assert all(each.estimate_s == each.alone_s for each in hidden)


@pytest.mark.slow
def test_each_site_sends_its_averages_through_its_own_port(tmp_path: Path) -> None:
    """Three devices of one host share its port; one device that has a port has all of it."""
    job = job_at(tmp_path, 1, 3, "batch.sequences=8", per_host=3)
    ranked, _ = best_of_sites(job)
    plans = [tried.plan for entry in ranked if (tried := tried_of(job, entry)) is not None]
    plan = next(p for p in plans if len(p.replicas[1].seats.devices) == 3)
    costs, units = PlanCosts(plan).of(plan.setup), unit_columns(plan.setup)
    link = costs.work[Kind.AverageCopy].link
    rate = costs.link_rate_bytes_per_s[link]
    assert rate[units.replica == 0].tolist() == pytest.approx(
        [2e9 / 8] * len(rate[units.replica == 0])
    )
    assert set(rate[units.replica == 1].round()) == {round(2e9 / 8 / 3)}
