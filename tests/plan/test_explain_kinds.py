"""`explain` of plans whose devices, stages or replicas differ: what each kind is good for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain

EXAMPLE = Path(__file__).parents[2] / "examples" / "unequal-replicas.json"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(ratrain, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def as_json(plan: Path) -> dict[str, Any]:
    return json.loads(run("explain", plan, "--json")[1])


def stage(devices: str, layers: int, tensor: int = 1, recovery: str = "none") -> dict[str, Any]:
    return {
        "devices": devices,
        "tensor": tensor,
        "layers": layers,
        "micro_batch": 1,
        "recovery": recovery,
        "sharding": 1,
    }


def changed(folder: Path, **values: Any) -> Path:
    """The example's plan with some values of its own."""
    table = json.loads(EXAMPLE.read_text()) | values
    path = folder / "plan.json"
    path.write_text(json.dumps(table))
    return path


@pytest.fixture(scope="module")
def explained() -> dict[str, Any]:
    return as_json(EXAMPLE)


@pytest.mark.slow
def test_it_says_each_kinds_place_and_what_binds_it_on_80_columns() -> None:
    status, said = run("explain", EXAMPLE)
    assert status == 0
    for part in (
        "fast-rank: 2 devices (0-1)",
        "stage 0 of 3 (rank 1): embedding, 5 layers; 15 micro-batches of 1",
        "slow-rank: 2 devices (2-3)",
        "stages 1-2 of 3 (ranks 2-3): 3 layers (2, 1), head",
        "binds",
        "Heterogeneous speedup ratio 0.",
        "Above 1 the kinds do more together than each by itself.",
        "one more host of a kind",
    ):
        assert part in " ".join(said.split()).replace("- ", "-") or part in said, part
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.slow
def test_the_kinds_of_device_add_up(explained: dict[str, Any]) -> None:
    fast, slow = explained["kinds"]
    assert (fast["devices"], slow["devices"]) == ([0, 1], [2, 3])
    layers = [place["layers_per_stage"] for place in (*fast["places"], *slow["places"])]
    assert layers == [[8], [5], [2, 1]]
    assert fast["work_share"] == pytest.approx((9 * 8 + 15 * 5) / (24 * 8))
    assert slow["work_share"] == pytest.approx(15 * 3 / (24 * 8))
    for kind in (fast, slow):
        names = ("compute_share", "recovery_share", "links_share", "others_share")
        assert sum(kind[name] for name in names) == pytest.approx(1)
        best = min(kind["what_if"], key=lambda each: each["step_time_s"])
        assert kind["binds"] == best["resource"]
        assert all(each["step_time_s"] <= explained["step_time_s"] for each in kind["what_if"])


@pytest.mark.slow
def test_a_recovery_that_memory_does_not_ask_for_is_said(explained: dict[str, Any]) -> None:
    slow = explained["kinds"][1]
    kept = next(each for each in slow["what_if"] if each["resource"] == "recovery")
    assert kept["missing_bytes"] == 0
    assert kept["step_time_s"] < explained["step_time_s"]


@pytest.mark.slow
def test_the_speedup_ratio_is_of_the_throughputs_it_lists(explained: dict[str, Any]) -> None:
    speedup = explained["speedup"]
    alone = [kind["tokens_per_s"] for kind in speedup["alone"]]
    assert speedup["tokens_per_s"] == pytest.approx(24 * 512 / explained["step_time_s"])
    assert speedup["hsr"] == pytest.approx(speedup["tokens_per_s"] / sum(alone))
    assert speedup["over"] == ["fast-rank", "slow-rank"]
    assert "sum of what each kind" in speedup["definition"]


@pytest.mark.slow
def test_one_more_host_of_each_kind_is_planned(explained: dict[str, Any]) -> None:
    fast, slow = explained["added"]
    assert (fast["kind"], fast["devices"], slow["kind"]) == ("fast-rank", 1, "slow-rank")
    assert fast["step_time_s"] < slow["step_time_s"]
    assert fast["hosts"] == slow["hosts"] == 1
    # Replicas that differ are faster than any layout of five devices.
    replicas = fast["plan"]["replicas"]
    assert sum(each["count"] * sum(each["tensor"]) for each in replicas) == 5
    assert len({each["micro_batch"] * each["micro_batches"] for each in replicas}) == 2


@pytest.mark.slow
def test_devices_that_a_plan_leaves_idle_are_named(tmp_path: Path) -> None:
    stages = [stage("0", 5), stage("2", 3, recovery="forward")]
    replicas = [{"count": 1, "micro_batches": 24, "stages": stages}]
    said = as_json(changed(tmp_path, replicas=replicas))
    assert [kind["idle_devices"] for kind in said["kinds"]] == [[1], [3]]
    assert said["plan"]["idle_devices"] == [1, 3]
    status, text = run("explain", tmp_path / "plan.json")
    assert status == 0
    assert "  idle    1 device, 3" in text.splitlines()


@pytest.mark.slow
def test_a_kind_that_is_idle_altogether_is_named(tmp_path: Path) -> None:
    replicas = [{"count": 2, "micro_batches": 12, "stages": [stage("0-1", 8)]}]
    status, text = run("explain", changed(tmp_path, replicas=replicas))
    assert status == 0
    assert "slow-rank: idle" in text.splitlines()


@pytest.mark.slow
def test_unequal_tensor_degrees_are_explained(tmp_path: Path) -> None:
    replicas = [
        {"count": 1, "micro_batches": 4, "stages": [stage("0-3", 5, 4), stage("4-5", 3, 2)]},
        {"count": 2, "micro_batches": 2, "stages": [stage("8-9", 8)]},
    ]
    cluster = {"name": "mixed-sites", "devices": 12}
    plan = changed(tmp_path, replicas=replicas, cluster=cluster, dtype="fp16", sequences=8)
    said = as_json(plan)
    dgx, nodes = said["kinds"]
    assert dgx["places"][0]["tensor"] == [4, 2]
    assert dgx["idle_devices"] == [6, 7] and nodes["idle_devices"] == [10, 11]
    assert nodes["places"][0]["replicas"] == 2


@pytest.mark.slow
def test_a_plan_that_no_layout_can_say_is_set_beside_plans_that_leave_devices_idle(
    tmp_path: Path,
) -> None:
    replicas = [
        {"count": 1, "micro_batches": 4, "stages": [stage("0-1", 4, 2)]},
        {"count": 2, "micro_batches": 2, "stages": [stage("8-9", 3), stage("10-11", 1)]},
    ]
    plan = changed(
        tmp_path,
        replicas=replicas,
        cluster={"name": "mixed-sites", "devices": 13},
        model={"name": "tiny-llama", "sequence_length": 64},
        dtype="fp16",
        sequences=8,
    )
    said = as_json(plan)
    assert said["search"]["plans"][0]["plan"]["idle_devices"]
    nodes = said["speedup"]["alone"][1]
    assert (nodes["devices"], nodes["used_devices"]) == (5, 4)
    assert not said["added"][0]["problem"] and said["added"][0]["step_time_s"] > 0
    status, text = run("explain", plan)
    assert status == 0
    assert "times as fast as this plan: leave the others idle." in text


@pytest.mark.slow
def test_a_plan_over_a_budget_says_which_kind_lacks_how_much(tmp_path: Path) -> None:
    status, said = run("explain", changed(tmp_path, memory_budget="300MB"))
    assert status == 3
    assert "binds   memory: its fullest rank is 254 MB over budget" in said
    assert "What binds: memory: rank 0 is 254 MB over its budget." in said
