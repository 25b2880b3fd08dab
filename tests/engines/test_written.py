"""What is written for engines: batch scripts, manifests, cluster files."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import ratrain, write_job
from hypothesis import given
from hypothesis import strategies as st

from ratrain.describe.presets import load_cluster
from ratrain.engines.clusters import (
    Node,
    cluster_text,
    kubernetes_nodes,
    ray_nodes,
    slurm_nodes,
)
from ratrain.engines.groups import HostGroup, Launchable, groups_of
from ratrain.engines.kubernetes import Pods, manifest
from ratrain.engines.ray import RayNode, hosts_without_room
from ratrain.engines.slurm import Batch, script
from ratrain.engines.slurm_steps import allocation_of, node_of_hosts
from ratrain.errors import SpecError

PODS = Pods("registry.example/ratrain:1", "runs", "/runs", "2Gi", 3)
NAMES = st.text("abcX ._'\"$-", min_size=1, max_size=12)
GROUPS = st.lists(
    st.builds(
        HostGroup, st.sampled_from(("old", "new", "a100-80g")), st.integers(1, 9), st.integers(1, 8)
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda group: (group.kind, group.ranks_each),
)


def run_of(groups: list[HostGroup], name: str = "first", *, gpus: bool = False) -> Launchable:
    kinds = len({group.kind for group in groups})
    return Launchable(name, f"/runs/{name}", tuple(groups), "python3", 2, gpus, kinds)


def read_yaml(text: str) -> dict[str, Any]:
    yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load(text)


@pytest.mark.slow
@given(GROUPS, NAMES, st.booleans(), st.booleans())
def test_a_batch_script_asks_for_all_ranks_and_is_shell(
    groups: list[HostGroup], name: str, gpus: bool, replans: bool
) -> None:
    """Where the run can be planned for fewer nodes, a launcher starts a step for each."""
    run = replace(run_of(groups, name, gpus=gpus), replans=replans)
    text = script(run, Batch(3, 120, ["--partition=low"]))
    checked = subprocess.run(
        ["bash", "-n"], input=text, text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    lines = text.splitlines()
    asked = [dict(w.split("=") for w in line.split()[1:]) for line in lines if "--ntasks=" in line]
    assert [int(each["--nodes"]) for each in asked] == [group.hosts for group in groups]
    assert sum(int(each["--ntasks"]) for each in asked) == run.ranks
    assert lines.count("#SBATCH hetjob") == len(groups) - 1
    assert ("--het-group" in text) == (len(groups) > 1 and not replans)
    assert ("#SBATCH --no-kill" in lines) == replans
    assert lines.count("#SBATCH --partition=low") == len(groups)
    assert ("--constraint" in text) == (run.kinds > 1) and ("--gres" in text) == gpus
    hosts = ("ratrain", "launch", "hosts", run.run, "--slurm")
    assert shlex.join(hosts if replans else run.command) in text


HET = {
    **{"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n3", "SLURM_HET_SIZE": "2"},
    **{"SLURM_JOB_NODELIST_HET_GROUP_0": "n3", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]"},
}


def test_a_host_has_a_node_of_the_allocation_while_there_are_some() -> None:
    nodes = allocation_of(HET).nodes
    hosts = [("a-1", "a"), ("a-2", "a"), ("a-3", "a"), ("a-4", "a")]
    assert node_of_hosts(hosts, nodes, {"a"}) == dict(
        zip(("a-1", "a-2", "a-3"), nodes, strict=True)
    )
    words = nodes[1].reached(4)
    assert {"--het-group=1", "--nodelist=n1", "--cpus-per-task=4"} <= {*words}
    assert allocation_of(HET).port != allocation_of({**HET, "SLURM_JOB_ID": "8"}).port
    with pytest.raises(SpecError, match="no Slurm allocation"):
        allocation_of({"SLURM_JOB_ID": "7"})


def test_hosts_without_room_on_ray_s_nodes_are_named_by_number() -> None:
    nodes = [RayNode({"CPU": 2}, {"kind": "new"}), RayNode({"CPU": 1}, {"kind": "old"})]
    bundles = [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 2.0}]
    assert hosts_without_room(bundles, None, nodes) == [3]
    kinds = [{"kind": kind} for kind in ("old", "old", "new", "new")]
    assert hosts_without_room(bundles, kinds, nodes) == [1, 3]


def test_hosts_that_are_alike_are_one_group_and_idle_ones_none() -> None:
    hosts = [("old", 1), ("new", 2), ("old", 1), ("new", 1), ("old", 0)]
    assert groups_of(hosts) == (
        HostGroup("old", 2, 1),
        HostGroup("new", 1, 2),
        HostGroup("new", 1, 1),
    )


@given(GROUPS, NAMES)
@pytest.mark.slow
def test_a_manifest_numbers_each_rank_once_and_reads_back(
    groups: list[HostGroup], name: str
) -> None:
    run = run_of(groups, name)
    body = read_yaml(manifest(run, PODS))
    specs = (
        [body["spec"]]
        if body["kind"] == "Job"
        else [job["template"]["spec"] for job in body["spec"]["replicatedJobs"]]
    )
    ranks: list[int] = []
    for spec in specs:
        pod = spec["template"]["spec"]
        env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        ranks += range(
            int(env["RATRAIN_FIRST_RANK"]), int(env["RATRAIN_FIRST_RANK"]) + spec["completions"]
        )
        assert env["RATRAIN_WORLD_SIZE"] == str(run.ranks)
        assert pod.get("nodeSelector", {}).get("kind") == env.get("RATRAIN_KIND")
        assert pod["containers"][0]["command"] == run.command
    assert ranks == list(range(run.ranks))


def test_a_job_is_what_kubernetes_own_schemas_take() -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate: not in the lock"
    )
    body = read_yaml(manifest(run_of([HostGroup("old", 4, 1)], gpus=True), PODS))
    validate.validate(body, "1.34", strict=True)
    body["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(Exception, match="volumeMount"):
        validate.validate(body, "1.34", strict=True)


def test_a_run_outside_the_pods_volume_is_refused() -> None:
    run = Launchable("first", "/home/ada/first", (HostGroup("old", 1, 1),), "python3", 1, False, 1)
    with pytest.raises(SpecError, match=r"not below /runs"):
        manifest(run, PODS)


SINFO = """n1|64|ib,new|gpu:a100:8(S:0-1)
n1|64|ib,new|gpu:a100:8(S:0-1)
n2|64|ib,new|gpu:a100:8(S:0-1)
n3|32|ib,old|(null)
n4|32|ib,old|(null)
"""
KUBECTL = {
    "items": [
        {
            "metadata": {"name": name, "labels": {"kind": kind}},
            "spec": {"unschedulable": True} if name == "n3" else {},
            "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": gpus}},
        }
        for name, kind, gpus in (("n1", "new", "4"), ("n2", "old", "0"), ("n3", "old", "0"))
    ]
}
RAY = [
    {"Alive": alive, "Resources": {"CPU": 8.0}, "Labels": {"kind": kind}}
    for alive, kind in ((True, "new"), (True, "old"), (False, "old"))
]


@pytest.mark.parametrize(
    ("engine", "nodes", "hosts"),
    [
        ("slurm", slurm_nodes(SINFO), [("new", 8, 2), ("old", 1, 2)]),
        ("kubernetes", kubernetes_nodes(json.dumps(KUBECTL)), [("new", 4, 1), ("old", 1, 1)]),
        ("ray", ray_nodes(RAY), [("new", 1, 1), ("old", 1, 1)]),
        ("slurm", slurm_nodes("n1|2|(null)|(null)\n"), [("cpu-2", 1, 1)]),
        ("slurm", [Node(("ib",), "8"), Node(("ib",), "8")], [("ib", 1, 2)]),
    ],
)
def test_a_cluster_file_has_an_engine_s_nodes_by_kind(
    engine: str, nodes: list[Node], hosts: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.toml"
    text = cluster_text(engine, nodes, "srun -C KIND")
    for kind, _, _ in hosts:  # measured there; here a profile that comes with RATrain
        assert f"srun -C {kind} ratrain profile -o {kind}.toml" in text
        text = text.replace(f'profile = "{kind}.toml"', 'profile = "sailor-gh200"')
    file.write_text(text)
    read = load_cluster(file)
    assert [(host.device, host.devices, host.count) for host in read.host] == hosts


@pytest.mark.slow
def test_a_job_is_prepared_and_its_script_written_in_one_command(tmp_path: Path) -> None:
    job, run = write_job(tmp_path, steps=3), tmp_path / "run"
    command = ratrain("launch", "slurm", job, "--run", run, "--", "--time=1:00:00")
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    text = (run / "slurm.sbatch").read_text()
    assert text.count("#SBATCH --time=1:00:00") == 2 and "2 on new, 2 on old" in text
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "already holds a run" in again.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_its_launcher_says_what_to_install(tmp_path: Path) -> None:
    command = ratrain("launch", "ray", write_job(tmp_path, steps=3))
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert ended.returncode == 2 and "ratrain[ray]" in ended.stderr
