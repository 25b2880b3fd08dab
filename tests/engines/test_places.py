"""A process's place, from what its engine has set, as it was seen there."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from documented import documented
from engine_jobs import ratrain
from hypothesis import given
from hypothesis import strategies as st

from ratrain.engines.host_lists import counts, hosts
from ratrain.engines.places import ENGINES, Engine, Place, kinds_of, place_of
from ratrain.errors import SpecError

SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2),2",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_ID": "3",
    "SLURM_STEP_ID": "0",
}
"""A task of a het job whose first group is on n3: SLURM_NODEID of n1 is 1 there."""
SEEN = {
    "Ray": {
        "RATRAIN_RAY": "01000000",
        "RATRAIN_RAY_ATTEMPT": "1",
        "RATRAIN_RAY_NODE": "a1b2",
        "RATRAIN_RAY_FIRST": "10.0.0.1",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    },
    "torchrun": {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_RESTART_COUNT": "2",
    },
    "Slurm": {**SLURM, "SLURM_JOB_NODELIST_HET_GROUP_0": "n3", "SLURM_RESTART_COUNT": "2"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "7",
    },
    "MPI": {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"},
    "SkyPilot": {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_TASK_ID": "sky-2026",
    },
    "dstack": {
        "DSTACK_NODE_RANK": "1",
        "DSTACK_NODES_NUM": "2",
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
        "DSTACK_RUN_NAME": "wet-mangust-7",
    },
    "Kubernetes": {
        "JOB_COMPLETION_INDEX": "1",
        "RATRAIN_WORLD_SIZE": "4",
        "RATRAIN_FIRST_RANK": "2",
        "MASTER_ADDR": "run-0.run",
        "MASTER_PORT": "29500",
    },
}


def shown(place: Place) -> tuple[object, ...]:
    return (place.engine, place.rank, place.world_size, place.ranks_here, place.local_rank)


def test_each_engine_is_recognised_and_says_where_a_process_is() -> None:
    assert set(SEEN) == set(ENGINES)
    places = {name: place_of(environ) for name, environ in SEEN.items()}
    assert [shown(place) for place in places.values()] == [
        ("Ray", 3, 4, 2, 1),
        ("torchrun", 3, 4, 2, 1),
        ("Slurm", 2, 4, 1, 0),
        ("Open MPI", 3, 4, 2, 1),
        ("MPI", 3, 4, 2, 1),
        ("SkyPilot", 1, 2, None, None),
        ("dstack", 1, 2, None, None),
        ("Kubernetes", 3, 4, 1, 0),
    ]
    likely = {name: place.likely_address for name, place in places.items() if place.likely_address}
    first = "10.0.0.1"
    assert likely == {"Ray": first, "Slurm": "n3", "SkyPilot": first, "dstack": first}
    assert places["Slurm"].mark == "Slurm-3.0-2" and places["Slurm"].peer == "n2"


def test_tasks_of_a_het_job_are_counted_by_the_names_of_hosts() -> None:
    last = {**SLURM, "SLURMD_NODENAME": "n3", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
    assert place_of(last).ranks_here == 2


def test_who_starts_ranks_inside_a_job_is_found_before_the_job() -> None:
    assert place_of({**SEEN["Slurm"], **SEEN["torchrun"]}).engine == "torchrun"
    assert place_of({**SEEN["MPI"], **SEEN["Slurm"]}).engine == "Slurm"


def test_without_an_engine_the_known_ones_are_named() -> None:
    with pytest.raises(SpecError, match=r"(?s)no engine.*srun ratrain rank RUN.*Kubernetes"):
        place_of({"SLURM_JOB_ID": "3"})


@pytest.mark.parametrize("engine", SEEN)
@pytest.mark.parametrize("value", ["x", "-1", "9" * 5000, "99", "²"])
def test_a_rank_that_is_none_is_refused_by_the_name_of_its_variable_or_engine(
    engine: str, value: str
) -> None:
    rank = ENGINES[engine].rank
    name = rank if isinstance(rank, str) else "JOB_COMPLETION_INDEX"
    with pytest.raises(SpecError, match=f"{name}|{engine}"):
        place_of({**SEEN[engine], name: value})


def test_a_plugin_adds_an_engine_with_one_row() -> None:
    row = Engine(("NEW_RANK",), rank="NEW_RANK", world_size=lambda e: len(e["NEW_ALL"].split()))
    ENGINES.declare("new", row)
    try:
        assert shown(place_of({"NEW_RANK": "1", "NEW_ALL": "a b c"})) == ("new", 1, 3, None, None)
    finally:
        del ENGINES["new"]


def test_a_host_s_kind_is_what_the_user_says() -> None:
    assert kinds_of("Slurm", {"RATRAIN_KIND": "old, ib"}) == ("old", "ib")
    assert kinds_of("torchrun", {}) == ()


def test_lists_of_hosts_are_read_as_slurm_writes_them() -> None:
    assert hosts("n[1-3,07],m1") == ["n1", "n2", "n3", "n07", "m1"]
    assert hosts("r[1-2]n[08-10]") == ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]
    assert hosts("oak") == ["oak"]
    assert counts("2,1(x2)") == [2, 1, 1]


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20, unique=True), st.integers(1, 4))
def test_a_list_of_numbered_hosts_has_each_of_them(numbers: list[int], digits: int) -> None:
    names = [f"{number:0{digits}d}" for number in numbers]
    assert hosts(f"n[{','.join(names)}]-ib") == [f"n{name}-ib" for name in names]


def test_a_process_s_place_is_printed_with_json() -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RATRAIN")}
    command = ratrain("rank", "run", "--json")
    ended = subprocess.run(
        command, env={**environ, **SEEN["Slurm"]}, capture_output=True, check=True
    )
    body = json.loads(ended.stdout)
    keys = {key.path for key in documented()["rank"]}
    assert set(body) - {"schema"} == keys and body["mark"] == "Slurm-3.0-2"
