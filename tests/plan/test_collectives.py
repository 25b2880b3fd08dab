"""What a job's collective changes: the time of reductions and gathers, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_jobs import job

from ratrain.cost.algorithms import ALGORITHMS, AUTO
from ratrain.describe.cluster import ClusterSpec, HostKind, Link
from ratrain.describe.device import Driving
from ratrain.describe.job import ClusterChoice, JobSpec, LayoutSpec
from ratrain.describe.presets import cluster_preset
from ratrain.describe.strict import FrozenMap
from ratrain.errors import SpecError
from ratrain.plan.case.case import case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.search.misfit import planned
from ratrain.program.kind import Cost
from ratrain.simulate.simulate import simulate

NAMES = (*ALGORITHMS, AUTO)


def two_hosts_of_four() -> ClusterSpec:
    base = cluster_preset("a100-80g-dgx")
    hosts = (HostKind("host", base.device[0].name, 4, 2),)
    links = FrozenMap(
        {
            "host": Link(5e-6, 100e9, "a test"),
            "room": Link(1e-4, 125e6, "a test", shared_by="host"),
        }
    )
    return ClusterSpec("two hosts", base.device, hosts, links)


def on_two_hosts(collective: str, layout: LayoutSpec | None = None) -> JobSpec:
    spec = job("small-llama", "a100-80g-dgx", 8, 32, backend="torch")
    cluster = replace(spec.cluster, spec=two_hosts_of_four())
    schedule = replace(spec.schedule, collective=collective)
    return replace(spec, cluster=cluster, schedule=schedule, layout=layout)


def step_s(spec: JobSpec) -> float:
    case = case_of(spec)
    return simulate(case.program, case.costs).step_time_s


@pytest.mark.parametrize(("layout", "shared"), [((1, 2, 4), False), ((2, 2, 2), True)])
def test_links_are_told_apart_by_where_they_are_not_by_their_sources(
    layout: tuple[int, int, int], shared: bool
) -> None:
    placement = case_of(on_two_hosts("ring", LayoutSpec(*layout))).plan.placement
    assert placement.links.tensor[0].source == placement.links.data[0].source == "a test"
    assert placement.sums_share_data_link(0) == shared


@pytest.mark.slow
def test_two_hosts_of_four_reduce_faster_in_a_hierarchy() -> None:
    times = {name: step_s(on_two_hosts(name, LayoutSpec(1, 8))) for name in NAMES}
    assert times["hierarchical"] < 0.75 * times["ring"] < times["direct"]
    assert times[AUTO] <= min(times.values()) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_only_reductions_and_gathers_take_another_time(name: str) -> None:
    layout = LayoutSpec(2, 2, 2)
    ring, other = (case_of(on_two_hosts(which, layout)) for which in ("ring", name))
    for kind, work in other.costs.work.items():
        before = ring.costs.work[kind]
        same = np.array_equal(work.fixed_s, before.fixed_s)
        same = same and np.array_equal(work.volume_bytes, before.volume_bytes)
        assert same or kind.cost in (Cost.REDUCE, Cost.GATHER, Cost.AVERAGE)


@st.composite
def busy_clusters(draw: st.DrawFn) -> tuple[ClusterSpec, int]:
    """Hosts whose devices may drive their own messages, on links of any sort; how many devices."""
    base = cluster_preset(draw(st.sampled_from(["mt3000", "a100-80g-dgx"])))
    per_host, hosts = draw(st.sampled_from([(1, 4), (2, 2), (2, 3), (4, 2), (4, 3), (4, 4)]))
    device = base.device[0]
    if draw(st.booleans()):
        per_message_s, per_byte_s = draw(st.floats(1e-6, 1e-4)), draw(st.floats(1e-11, 1e-9))
        driving = Driving(per_message_s, per_byte_s, draw(st.sampled_from([1.0, 4.0])))
        device = replace(device, driving=driving)
    sharing: list[list[Literal["device", "host"]]] = [["device"], ["device", "host"]]
    inside, across = (
        Link(
            draw(st.floats(1e-6, 3e-3)),
            draw(st.floats(1e8, 1e11)),
            shared_by=draw(st.sampled_from(shared)),
            overhead_s=draw(st.sampled_from([0.0, 1e-5])),
            collective_s=draw(st.sampled_from([0.0, 1e-4])),
        )
        for shared in sharing
    )
    host = (HostKind("host", device.name, per_host, hosts),)
    links = FrozenMap({"host": inside, "room": across})
    return ClusterSpec("busy", (device,), host, links), per_host * hosts


@pytest.mark.slow
@given(
    busy_clusters(),
    st.sampled_from(["1f1b", "gpipe", "ratrain", "zero3-heavy"]),
    st.sampled_from(["torch", "described"]),
    st.sampled_from([1, 2]),
)
@settings(max_examples=25, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
def test_auto_is_never_slower_than_what_it_can_choose_from(
    of_devices: tuple[ClusterSpec, int], schedule: str, backend: str, pipeline: int
) -> None:
    """Up to 63 % slower when it looked at transfers alone, one by one."""
    cluster, devices = of_devices
    spec = job("tiny-llama", "mt3000", devices, 48, schedule=schedule, backend=backend)
    spec = replace(
        spec,
        cluster=ClusterChoice(cluster, devices),
        layout=LayoutSpec(pipeline, devices // pipeline),
        schedule=replace(spec.schedule, dtype="fp16"),
    )
    times = {
        name: step_s(replace(spec, schedule=replace(spec.schedule, collective=name)))
        for name in NAMES
    }
    assert times[AUTO] <= min(times.values()) * (1 + 2e-6)


@pytest.mark.slow
def test_where_one_algorithm_is_the_fastest_for_all_units_auto_says_and_runs_it() -> None:
    """A device that pays for every message, and has few to send in a hierarchy."""
    spec = on_two_hosts(AUTO, LayoutSpec(1, 8))
    driven = replace(two_hosts_of_four().device[0], driving=Driving(1e-3, 0.0, 1.0))
    cluster = replace(spec.cluster.spec, device=(driven,))
    case = case_of(replace(spec, cluster=replace(spec.cluster, spec=cluster)))
    chosen = {
        unit.group.chosen(unit.reduced_bytes, 1.0) for unit in case.unit_places() if unit.group
    }
    assert len(chosen) == 1
    by_name = case_of(
        replace(case.job, schedule=replace(case.job.schedule, collective=chosen.pop()))
    )
    run = simulate(case.program, case.costs)
    assert run.step_time_s == simulate(by_name.program, by_name.costs).step_time_s


@pytest.mark.slow
def test_a_planned_job_is_never_slower_with_auto() -> None:
    ring, auto = (planned(on_two_hosts(name)).best for name in ("ring", AUTO))
    assert auto.step_s <= ring.step_s * (1 + 1e-9)


def test_an_unknown_collective_is_named_with_its_place() -> None:
    with pytest.raises(SpecError, match=r"\[schedule\] collective"):
        case_of(on_two_hosts("rings", LayoutSpec(1, 8)))


def test_a_job_that_names_none_has_its_backends() -> None:
    job = on_two_hosts("ring", LayoutSpec(1, 8))
    left_out = replace(job, schedule=replace(job.schedule, collective=None))
    described = replace(left_out, schedule=replace(left_out.schedule, backend="described"))
    assert (left_out.collective, described.collective) == ("direct", "ring")
    assert step_s(left_out) == step_s(on_two_hosts("direct", LayoutSpec(1, 8)))


def test_a_headline_names_a_collective_and_its_order() -> None:
    said = "\n".join(case_of(on_two_hosts("hierarchical", LayoutSpec(1, 8))).headline())
    assert "collective of replicas: hierarchical, added in the order (0+1+2+3)+(4+5+6+7)" in said
    assert "replicas" not in "\n".join(case_of(on_two_hosts("direct", LayoutSpec(1, 8))).headline())


@pytest.mark.slow
def test_a_plan_file_keeps_the_collective_that_a_job_names() -> None:
    for named in ("hierarchical", AUTO):
        candidate = planned(on_two_hosts(named)).best.plan
        assert parse_plan(write_plan(file_of_plan(candidate)), "plan.json").collective == named
