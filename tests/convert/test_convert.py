"""Files of other planners: converted, priced, and refused with their place."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Ran, here
from fuzz_targets import bytewise, json_text
from hypothesis import given
from hypothesis import strategies as st
from planner_files import COMMANDS, EXAMPLES, edit

from ratrain.convert.cluster_text import cluster_text
from ratrain.convert.member_stages import dealt
from ratrain.describe.device import BY_OTHERS, DeviceKind, Driving
from ratrain.describe.job import (
    Batch,
    ClusterChoice,
    JobSpec,
    LayoutSpec,
    ModelChoice,
    ScheduleSpec,
)
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.presets import (
    cluster_names,
    cluster_preset,
    load_cluster,
    model_preset,
)
from ratrain.describe.profiles import profile_names
from ratrain.describe.ranges import read_ranges
from ratrain.plan.case.case import case_of
from ratrain.plan.file.form import load_plan
from ratrain.simulate.long import simulate_proved

Say = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def say(
    folder: Path,  # noqa: ARG001  (it is where the verb runs)
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Say:
    """Runs a verb in the folder, in this process."""

    def run(*words: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["ratrain", *words])
        return here(capsys)

    return run


def converted(say: Say, planner: str, *more: str) -> dict[str, Any]:
    ran = say("convert", *COMMANDS[planner], "-o", "out", "--json", *more)
    assert ran.status == 0, ran.err
    return ran.body


def refused(say: Say, planner: str, *more: str) -> str:
    ran = say("convert", *COMMANDS[planner], "-o", "out", *more)
    assert ran.status == 2, ran.out
    return ran.err


@pytest.mark.parametrize("planner", COMMANDS)
def test_a_converted_plan_costs_what_simulate_says_of_its_file(planner: str, say: Say) -> None:
    body = converted(say, planner)
    again = say("simulate", "out/plan.json", "--json").body
    assert again["step_time_s"] == body["ours"]["step_time_s"]
    assert body["ours"]["ratio"] == again["step_time_s"] / body["theirs"]["step_time_s"]
    assert say("verify", "out/plan.json").status == 0


def entries(kind: DeviceKind, block: str = "layer") -> list[LayerProfile]:
    return [entry for entry in kind.layer_profile if entry.block == block]


def grolar_formula_s(layers: int, kinds: list[tuple[DeviceKind, int]]) -> float:
    """Their step of one group: a start, all micro-batches but the first forward, an end; forward
    runs again in backward, and start and end go at the pace of the slowest GPU."""
    times = [(entries(kind)[0].times[1], count) for kind, count in kinds]
    start = max(time.forward_s for time, _ in times)
    forward = max(time.forward_s * (count - 1) for time, count in times)
    backward = max((time.forward_s + (time.backward_s or 0)) * count for time, count in times)
    end = max(time.forward_s + (time.backward_s or 0) for time, _ in times)
    return layers * (start + forward + backward + end)


def test_grolars_formula_over_the_times_that_were_read_gives_its_own_prediction(say: Say) -> None:
    body = converted(say, "grolar")
    cluster = load_cluster(Path("out/cluster.toml"))
    shares = [(cluster.kind("l4"), 18), (cluster.kind("l4"), 17), (cluster.kind("a6000"), 28)]
    predicted_s = grolar_formula_s(22, [*shares, (cluster.kind("p40"), 1)])
    assert predicted_s == pytest.approx(body["theirs"]["step_time_s"], rel=1e-4)
    assert cluster.size == 4 and [d.kind.name for d in cluster.devices(4)] == [
        *("l4", "l4", "a6000", "p40")
    ]


def test_grolars_shares_become_replicas_of_unequal_micro_batches(say: Say) -> None:
    body = converted(say, "grolar")
    plan = load_plan("out/plan.json")
    shares = {r.micro_batches: r.stages[0].devices for r in plan.replicas}
    assert shares == {18: "0", 17: "1", 28: "2", 1: "3"}
    # What the A6000 computes alone: 22 layers of 28 micro-batches, forward twice.
    busiest_s = 22 * 28 * (2 * 1.7748e-3 + 4.7903e-3)
    assert busiest_s < body["ours"]["step_time_s"] < body["theirs"]["step_time_s"]


def two_groups(table: dict[str, Any]) -> None:
    """Two groups of two ranks, two ministages each."""
    cuts = [(0, 6), (6, 11), (11, 17), (17, 22)]
    table["pipeline_config"] = [
        {
            "gpu_ranks": [[0, 1], [2, 3]][number % 2],
            "num_microbatches_per_rank": [32, 32],
            "layer_partition": list(cut),
            "zero_config": [[[0, 1], [2, 3]][number % 2]],
        }
        for number, cut in enumerate(cuts)
    ]


def test_grolars_equal_groups_gather_sharded_weights_once_a_pass(folder: Path, say: Say) -> None:
    edit(folder / "grolar/training_config.json", two_groups)
    body = converted(say, "grolar")
    plan = load_plan("out/plan.json")
    assert plan.schedule == "pe-zero"
    (replicas,) = plan.replicas
    assert replicas.count == 2 and replicas.micro_batches == 32
    assert [stage.devices for stage in replicas.stages] == ["0-1", "2-3", "0-1", "2-3"]
    assert [(stage.layers, stage.sharding) for stage in replicas.stages] == [
        (6, 3), (5, 3), (6, 3), (5, 3)
    ]  # fmt: skip
    assert body["ours"]["feasible"]


def shares_of_second_group(shares: list[int]) -> Callable[[dict[str, Any]], None]:
    """Two groups, of which the second divides the micro-batches like this."""

    def change(table: dict[str, Any]) -> None:
        two_groups(table)
        for stage in table["pipeline_config"][1::2]:
            stage["num_microbatches_per_rank"] = shares

    return change


def test_grolars_groups_that_divide_micro_batches_otherwise_become_stages_of_members(
    folder: Path, say: Say
) -> None:
    edit(folder / "grolar/training_config.json", shares_of_second_group([48, 16]))
    body = converted(say, "grolar")
    (replica,) = load_plan("out/plan.json").replicas
    assert replica.micro_batches == 64
    served = [
        [len(read_ranges(member.serves, "", 64)) for member in stage.members or ()]
        for stage in replica.stages
    ]
    assert served == [[32, 32], [48, 16], [32, 32], [48, 16]]
    assert any("take turns in proportion" in said for said in body["differs"])
    assert body["ours"]["step_time_s"] > 0


def test_grolars_groups_of_unlike_numbers_of_micro_batches_are_refused(
    folder: Path, say: Say
) -> None:
    edit(folder / "grolar/training_config.json", shares_of_second_group([60, 5]))
    message = refused(say, "grolar")
    assert "training_config.json:1 [pipeline_config.1] num_microbatches_per_rank" in message
    assert "65 micro-batches, the first has 64" in message


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum))
def test_micro_batches_are_dealt_evenly_in_time_and_each_once(shares: list[int]) -> None:
    served = dealt(shares)
    assert [len(theirs) for theirs in served] == shares
    assert sorted(number for theirs in served for number in theirs) == list(range(sum(shares)))
    for theirs, share in zip(served, shares, strict=True):
        for before, number in enumerate(theirs):
            assert abs(before - number * share / sum(shares)) <= len(shares)


def test_mixed_machines_keep_the_links_inside_and_between_them(folder: Path, say: Say) -> None:
    def two_machines(table: dict[str, Any]) -> None:
        gpus = table["machines"][0]["gpus"]
        table["machines"] = [
            {"machine": "a", "machine_index": 0, "gpus": gpus[:1] + gpus[1:2]},
            {"machine": "b", "machine_index": 1, "gpus": gpus[2:]},
        ]
        table["bandwidth"]["intranode_bandwidth"] = {"0": 20.0, "1": 12.0}
        table["bandwidth"]["internode_bandwidth"] = {"0": {"1": 1.25}}

    edit(folder / "grolar/cluster_info.json", two_machines)
    converted(say, "grolar")
    cluster = load_cluster(Path("out/cluster.toml"))
    devices = cluster.devices(4)
    rates = {
        (i, j): cluster.link(devices[i], devices[j]).bandwidth_bytes_per_s
        for i in range(4)
        for j in range(i)
    }
    assert rates == {(1, 0): 20e9, (3, 2): 12e9} | {(i, j): 1.25e9 for i in (2, 3) for j in (0, 1)}


def test_sailors_layer_times_become_the_entries_that_ratrain_ships(say: Say) -> None:
    converted(say, "sailor")
    (kind,) = load_cluster(Path("out/cluster.toml")).device
    shipped = {
        (entry.block, entry.tensor): entry
        for entry in cluster_preset("sailor-gh200").device[0].layer_profile
        if entry.shape.hidden == 1024
    }
    assert len(kind.layer_profile) == len(shipped) == 9
    for entry in kind.layer_profile:
        same = shipped[entry.block, entry.tensor]
        assert [(t.micro_batch, t.forward_s, t.backward_s) for t in entry.times] == [
            (t.micro_batch, pytest.approx(t.forward_s), pytest.approx(t.backward_s))
            for t in same.times
        ]
        assert (entry.sums, entry.update_s) == (same.sums, pytest.approx(same.update_s))


def test_sailors_plan_costs_what_the_same_job_costs_here(say: Say) -> None:
    body = converted(say, "sailor")
    job = JobSpec(
        ModelChoice(model_preset("opt-350m"), 2048),
        ClusterChoice(cluster_preset("gh200-deepspeed"), 8),
        Batch(32, 8),
        LayoutSpec(2, 1, 4, layers=(11, 13)),
        ScheduleSpec(
            "1f1b", sharding=0, gradient_accumulation="local", dtype="fp32", backend="described"
        ),
    )
    case = case_of(job)
    step_s = simulate_proved(case.proved, case.costs).step_time_s
    assert body["ours"]["step_time_s"] == pytest.approx(step_s, rel=1e-9)


def test_sailors_replicas_may_stand_on_unequal_gpus_and_degrees(folder: Path, say: Say) -> None:
    def mixed(table: dict[str, Any]) -> None:
        gh, a100 = [[["GH-96", 4, "z"]], 4], [[["A100-40", 2, "z"]], 2]
        table["pipeline_list"][0]["tmp_per_stage"] = [[gh, a100], [gh, a100]]
        table["gbs"] = 40
        table["mbs"] = 8

    edit(folder / "sailor/plan.json", mixed)
    message = refused(say, "sailor")  # the A100's profile lacks tensor 2 of this model
    assert "layer profile does not cover" in message or "links of A100-40" in message
    shutil.copyfile(folder / "sailor/profile.json", folder / "a100.json")
    words = ("--profile", "A100-40=a100.json", "--like", "A100-40=a100-deepspeed")
    body = converted(say, "sailor", *words)
    assert body["kinds"] == ["GH-96", "A100-40"] and body["devices"] == 12
    plan = load_plan("out/plan.json")
    assert [(r.micro_batches, [s.tensor for s in r.stages]) for r in plan.replicas] == [
        (3, [4, 4]),
        (2, [2, 2]),
    ]
    assert [s.devices for s in plan.replicas[1].stages] == ["8-9", "10-11"]
    assert any("5 micro-batches, 2 replicas" in sentence for sentence in body["differs"])


def test_sailors_network_fits_become_links_between_zones(folder: Path, say: Say) -> None:
    def zones(table: dict[str, Any]) -> None:
        table["pipeline_list"][0]["tmp_per_stage"] = [
            [[[["GH-96", 4, "west"]], 4]],
            [[[["GH-96", 4, "east"]], 4]],
        ]

    edit(folder / "sailor/plan.json", zones)
    assert "no link between them is known" in refused(say, "sailor")
    near, far = [[-0.7, 26.0, 82.0], 2.5e11], [[-0.0024, 0.14, 1.1], 2.4e9]
    other = {"west": "east", "east": "west"}
    between = {
        zone: {
            "GH-96": {
                "4": {z: {"GH-96": {"4": fit}} for z, fit in ((zone, near), (other[zone], far))}
            }
        }
        for zone in other
    }
    (folder / "between.json").write_text(json.dumps(between))
    (folder / "inside.json").write_text(json.dumps({"GH-96": {"4": near}}))
    converted(say, "sailor", "--between", "between.json", "--inside", "inside.json")
    cluster = load_cluster(Path("out/cluster.toml"))
    devices = cluster.devices(8)
    assert cluster.link(devices[0], devices[4]).bandwidth_bytes_per_s == 2.4e9
    assert cluster.link(devices[0], devices[1]).log_quadratic == (-0.7, 26.0, 82.0)


@pytest.mark.parametrize("is_known", [True, False])
def test_sailors_links_between_nodes_of_two_kinds_are_read_or_said_to_be_missing(
    folder: Path, say: Say, is_known: bool
) -> None:
    def mixed(table: dict[str, Any]) -> None:
        gh, a100 = [[["GH-96", 4, "z"]], 4], [[["A100-40", 4, "z"]], 4]
        table["pipeline_list"][0]["tmp_per_stage"] = [[gh], [a100]]

    edit(folder / "sailor/plan.json", mixed)
    shutil.copyfile(folder / "sailor/profile.json", folder / "a100.json")
    types = json.loads((folder / "sailor/basic_cluster_config.json").read_text())
    counts = {gpu: str(types[gpu]["gpus_per_node"]) for gpu in ("GH-96", "A100-40")}
    rates = {("GH-96", "GH-96"): 9e9, ("A100-40", "A100-40"): 8e9}
    if is_known:
        rates |= {("GH-96", "A100-40"): 2e9, ("A100-40", "GH-96"): 1e9}
    table: dict[str, Any] = {"z": {}}
    for (source, target), rate in rates.items():
        fit = [[0.0, 0.0, rate / 1e9], rate]
        of_source = table["z"].setdefault(source, {}).setdefault(counts[source], {"z": {}})
        of_source["z"][target] = {counts[target]: fit}
    (folder / "between.json").write_text(json.dumps(table))
    words = ("--profile", "A100-40=a100.json", "--like", "A100-40=a100-deepspeed")
    body = converted(say, "sailor", *words, "--between", "between.json")
    cluster = load_cluster(Path("out/cluster.toml"))
    devices = cluster.devices(body["devices"])
    gh = next(device for device in devices if device.kind.name == "GH-96")
    a100 = next(device for device in devices if device.kind.name == "A100-40")
    ways = cluster.link(gh, a100), cluster.link(a100, gh)
    rates_read = [link.bandwidth_bytes_per_s for link in ways]
    assert rates_read == ([2e9, 1e9] if is_known else [8e9, 8e9])
    said = [sentence for sentence in body["differs"] if "no bandwidth from" in sentence]
    assert len(said) == (0 if is_known else 2)


def test_metis_numbers_gpus_by_the_plans_sequence_of_kinds(say: Say) -> None:
    converted(say, "metis")
    cluster = load_cluster(Path("out/cluster.toml"))
    assert [d.kind.name for d in cluster.devices(16)] == ["T4"] * 4 + ["A100"] * 12
    (replica,) = load_plan("out/plan.json").replicas
    assert (replica.count, replica.micro_batches) == (4, 8)
    assert [(s.layers, s.tensor, s.micro_batch) for s in replica.stages] == [(3, 2, 4), (5, 2, 4)]
    ran = say("convert", *COMMANDS["metis"], "-o", "out", "--rank", "2")
    assert "tensor group" not in ran.err
    cluster = load_cluster(Path("out/cluster.toml"))
    assert [d.kind.name for d in cluster.devices(16)] == ["A100"] * 12 + ["T4"] * 4


def test_metis_times_are_joined_by_batch_and_their_updates_divided_by_parameters(say: Say) -> None:
    converted(say, "metis")
    kind = load_cluster(Path("out/cluster.toml")).kind("A100")
    first, two = sorted(entries(kind), key=lambda entry: entry.tensor)
    assert [time.micro_batch for time in first.times] == [1, 4]
    assert [time.micro_batch for time in two.times] == [2, 4]
    assert first.times[0].forward_s + (first.times[0].backward_s or 0) == pytest.approx(29.508e-3)
    assert (first.sums, two.sums) == ("apart", "included")
    updates = [e.update_s or 0 for b in ("layer", "embedding", "head") for e in entries(kind, b)]
    assert 8 * updates[0] + updates[2] + updates[4] == pytest.approx(39.39e-3, rel=1e-2)


def test_metis_plans_of_unequal_data_degrees_become_stages_of_members(say: Say) -> None:
    """Degrees 4 and 1: what a stage of one member computes at once are four pieces here."""
    body = converted(say, "metis", "--rank", "15")
    (replica,) = load_plan("out/plan.json").replicas
    members = [len(stage.held_by) for stage in replica.stages]
    assert members[0] == 4 and members[3] == 1
    for stage in replica.stages:
        shares = [read_ranges(m.serves, "", replica.micro_batches) for m in stage.members or ()]
        assert not shares or sorted(chain(*shares)) == list(range(replica.micro_batches))
    assert replica.micro_batches * replica.micro_batch == 128
    assert any("every micro-batch goes through all stages as 4 of" in d for d in body["differs"])
    assert "it has no plan of rank 3; it has 3" in refused(say, "metis", "--rank", "3")


@pytest.mark.slow
def test_without_a_plan_the_cluster_alone_is_written_and_a_job_can_search_on_it(
    folder: Path, say: Say
) -> None:
    words = list(COMMANDS["grolar"])
    cut = words.index("--plan")
    words[cut : cut + 2] = []
    ran = say("convert", *words, "-o", "out")
    assert ran.status == 2 and "give --profiled" in ran.err
    ran = say("convert", *words, "--profiled", "deepspeedllama_tiny", "-o", "out", "--json")
    assert ran.body["written"] == ["out/cluster.toml"] and "ours" not in ran.body
    (folder / "job.toml").write_text(
        '[model]\nname = "grolar/llama-1b.json"\nsequence_length = 512\n'
        '[cluster]\nname = "out/cluster.toml"\ndevices = 4\n'
        '[batch]\nsequences = 128\n[schedule]\ndtype = "fp16"\nbackend = "described"\n'
        'skeleton = "1f1b"\n'  # whose best micro-batch is among those that were measured
    )
    planned = say("plan", "job.toml", "--json")
    assert planned.status == 0, planned.err
    told = planned.body["plans"][0]["plan"]["measured_times"]
    l4 = "times on l4: layers measured; embedding, head from its rates, not measured"
    assert l4 in told, told


@pytest.mark.parametrize("driving", [BY_OTHERS, Driving(2e-4, 1.5e-10, 1.9, "a test")])
@pytest.mark.parametrize("name", [*cluster_names(), *profile_names()])
def test_a_cluster_written_as_text_is_read_as_the_same_cluster(
    name: str, driving: Driving, tmp_path: Path
) -> None:
    cluster = cluster_preset(name)
    kinds = tuple(replace(kind, driving=driving) for kind in cluster.device)
    cluster = replace(cluster, device=kinds)
    path = tmp_path / "cluster.toml"
    path.write_text(cluster_text(cluster), encoding="utf-8")
    assert load_cluster(path) == cluster


WRONG: list[tuple[str, str, Callable[[Any], None], str]] = [
    (
        "grolar",
        "grolar/training_config.json",
        lambda t: t["pipeline_config"][0].update(layer_partition=[0, 21]),
        "its stages have 21 layers, llama-1b has 22",
    ),
    (
        "grolar",
        "grolar/training_config.json",
        lambda t: t.update(global_batch_size=100),
        "the ranks' micro-batches hold 128 sequences",
    ),
    (
        "grolar",
        "grolar/cluster_info.json",
        lambda t: t["machines"][0]["gpus"][2].update(name="b300"),
        "add --like b300=NAME",
    ),
    (
        "grolar",
        "grolar/model_latencies.json",
        lambda t: t["deepspeedllama_tiny"]["l4"]["512"]["float16"][3].pop(),
        "4 forward times and 3 backward times",
    ),
    (
        "sailor",
        "sailor/plan.json",
        lambda t: t["pipeline_list"][0]["layers_per_stage"][0].pop(3),
        "are not consecutive",
    ),
    (
        "sailor",
        "sailor/profile.json",
        lambda t: t["1"]["1"].pop("7"),
        "25 slots, but opt-350m has 26",
    ),
    (
        "sailor",
        "sailor/training_config.json",
        lambda t: t.update(hidden_size=512),
        "512 here, 1024 in opt-350m",
    ),
    (
        "metis",
        "metis/clusterfile.json",
        lambda t: t.pop("0.0.0.4"),
        "the host '0.0.0.4' is not in",
    ),
    (
        "metis",
        "metis/DeviceType.A100_tp1_bs1.json",
        lambda t: t["execution_time"]["layer_compute_total_ms"].pop(),
        "9 layer times and 10 parameter counts",
    ),
]


@pytest.mark.parametrize(("planner", "file", "change", "said"), WRONG)
def test_what_is_wrong_in_their_files_is_named_with_its_file_and_a_fix(
    planner: str, file: str, change: Callable[[Any], None], said: str, folder: Path, say: Say
) -> None:
    edit(folder / file, change)
    message = refused(say, planner)
    assert said in message and "\n  fix: " in message
    assert file in message or "hostfile" in message


FILES = {
    "grolar": ("cluster_info.json", "training_config.json", "model_latencies.json"),
    "metis": ("hostfile", "clusterfile.json", "results", "DeviceType.A100_tp2_bs4.json"),
    "sailor": ("training_config.json", "basic_cluster_config.json", "plan.json", "profile.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("planner", FILES)
def test_files_changed_at_random_convert_or_are_refused_with_a_place_and_a_fix(
    planner: str, folder: Path, say: Say
) -> None:
    rng = random.Random(planner)
    for turn in range(60):
        name = FILES[planner][turn % len(FILES[planner])]
        path = folder / planner / name
        original = path.read_bytes()
        made = json_text if name.endswith(".json") else bytewise
        path.write_bytes(made(original, rng).content)
        ran = say("convert", *COMMANDS[planner], "-o", "out")
        path.write_bytes(original)
        assert ran.status in (0, 2), (turn, name, ran.err)  # 0 too where a plan does not fit
        if ran.status:
            assert ran.err.startswith("error: ") and "\n  fix: " in ran.err, (turn, name, ran.err)
            assert any(word in ran.err for word in (*FILES[planner], "plan.json", "--")), ran.err
