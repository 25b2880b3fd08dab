"""Plans whose stages and replicas differ: what header they become, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from random_jobs import candidates

from ratrain.errors import SpecError
from ratrain.plan.case.case import case_of_plan
from ratrain.plan.file.form import file_of_plan, is_uneven, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.plan import Plan
from ratrain.program.replicas import Recovery
from ratrain.runtime.run.prepare import RunRequest, prepare_run

TWO_KINDS: dict[str, Any] = {
    "format": "ratrain plan 1",
    "model": {"name": "small-llama", "sequence_length": 512},
    "cluster": {"name": "mixed-sites", "devices": 12},
    "sequences": 24,
    "dtype": "fp16",
    "backend": "described",
    "schedule": "ratrain",
    "skeleton": "1f1b",
    "without": [],
    "accumulation": "local",
    "recovery_buffer": 2,
    "prefetch": True,
}


def stage(devices: str, layers: int, tensor: int = 1, **more: Any) -> dict[str, Any]:
    fields = {"micro_batch": 1, "recovery": "none", "sharding": 2, **more}
    return {"devices": devices, "tensor": tensor, "layers": layers, **fields}


def replica(micro_batches: int, *stages: dict[str, Any], count: int = 1) -> dict[str, Any]:
    return {"count": count, "micro_batches": micro_batches, "stages": list(stages)}


def read(*replicas: dict[str, Any], **head: Any) -> Plan:
    table = {**TWO_KINDS, **head, "replicas": list(replicas)}
    return plan_of_file(parse_plan(json.dumps(table), "p.json"), "p.json")


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(candidates(("ratrain", "megatron", "interleaved", "zb-h1")))
def test_replicas_that_are_alike_have_the_header_and_the_strategy_of_the_regular_way(row) -> None:
    candidate = row[1]
    plan = file_of_plan(candidate)
    assert not is_uneven(plan)
    made = plan_of_file(parse_plan(write_plan(plan), "p.json"), "p.json")
    assert made.setup == candidate.setup
    assert made.strategy == candidate.strategy
    assert made.choices.modes_of(made.setup) == candidate.choices.modes_of(candidate.setup)


def hexiscale() -> tuple[dict[str, Any], dict[str, Any]]:
    """Two stages of tensor 4 and 2 on the DGX; three of tensor 1, 2 and 1 on one node."""
    fast = replica(9, stage("0-3", 5, 4), stage("4-5", 3, 2), count=1)
    slow = replica(
        3, stage("8", 2, recovery="forward", micro_batch=2), stage("9-10", 4, 2, micro_batch=2),
        stage("11", 2, recovery="backward", micro_batch=2),
    )  # fmt: skip
    return fast, slow


def test_replicas_keep_their_own_depth_degrees_recovery_and_micro_batches() -> None:
    made = read(*hexiscale(), sequences=15)
    fast, slow = made.setup.replicas
    assert [[member.tensor for member in s.members] for s in fast.stages] == [[4], [2]]
    assert [[member.tensor for member in s.members] for s in slow.stages] == [[1], [2], [1]]
    assert (fast.micro_batches, slow.micro_batches) == (9, 3)
    assert made.setup.holders == dict.fromkeys(["e", *map(str, range(8)), "h"], 2)
    assert made.choices.recovery_of_replicas == (
        (Recovery.NONE, Recovery.NONE),
        (Recovery.FORWARD, Recovery.NONE, Recovery.BACKWARD),
    )
    assert [[[d.index for d in g] for g in replica.groups[0]] for replica in made.replicas] == [
        [[0, 1, 2, 3], [4, 5]],
        [[8], [9, 10], [11]],
    ]


def test_a_rank_holds_its_own_part_and_passes_on_tensors_of_its_own_micro_batch() -> None:
    fast, slow = read(*hexiscale(), sequences=15).setup.replicas
    layer_of = {s.only.tensor: s.only.units[-1] for s in fast.stages[:1] + slow.stages[1:2]}
    assert layer_of[2].view_bytes == 2 * layer_of[4].view_bytes
    assert slow.stages[0].only.output_bytes == 2 * fast.stages[0].only.output_bytes
    assert slow.stages[1].only.units[0].input_bytes == slow.stages[0].only.output_bytes


def test_devices_that_no_stage_of_alike_replicas_names_are_idle() -> None:
    plan = read(replica(6, stage("0, 8", 8), count=2), sequences=12)
    assert [replica.kinds for replica in plan.replicas] == [("a100-80g-sxm",), ("mt3000-cluster",)]
    assert [device.index for device in plan.devices] == [0, 8]
    table = {**TWO_KINDS, "sequences": 12, "replicas": [replica(6, stage("0, 8", 8), count=2)]}
    alike = parse_plan(json.dumps(table), "p.json")
    assert not is_uneven(alike)
    layout = case_of_plan(alike, "p.json")
    assert layout.setup == plan.setup
    assert layout.facts()["idle_devices"] == [*range(1, 8), 9, 10, 11]


def test_each_rank_s_budget_is_its_own_device_s() -> None:
    setup = read(*hexiscale(), sequences=15).setup
    assert [setup.budget_of(rank) for rank in range(setup.ranks)] == [80 * 10**9] * 2 + [
        20 * 10**9
    ] * 3


def test_copies_of_an_entry_on_other_kinds_of_device_are_replicas_of_their_own() -> None:
    (pair,) = (replica(6, stage("0-1, 8-9", 4), stage("2-3, 10-11", 4), count=4),)
    made = read(pair)
    assert [copy.kinds for copy in made.replicas] == [
        ("a100-80g-sxm",) * 2,
        ("mt3000-cluster",) * 2,
    ]
    assert [r.count for r in made.setup.replicas] == [2, 2]
    assert [len(copy.groups) for copy in made.replicas] == [2, 2]


PAIR = (replica(6, stage("0", 8)), replica(6, stage("1", 4), stage("2", 4)))


@pytest.mark.parametrize(
    ("change", "says", "at"),
    [
        ({"sequences": 13}, "1 x 6 x 1 + 1 x 6 x 1 = 12 sequences, not 13", "sequences"),
        ({"devices": "0"}, "device 0 is in stage 0 of entry 0 already", "replicas.1.stages.1"),
        ({"devices": "2-3"}, "2 devices for 1 replica x tensor 1", "replicas.1.stages.1"),
        ({"devices": "2-4", "tensor": 3}, "8 heads, which 3 ranks cannot", "replicas.1.stages.1"),
        ({"layers": 5}, "add up to 9 layers", "replicas.1"),
        ({"micro_batch": 4}, "6 x 1 sequences are no multiple of it", "replicas.1.stages.1"),
        ({"micro_batch": 2, "schedule": "interleaved", "skeleton": "interleaved",
          "prefetch": False}, "no place for stages whose micro_batch differs", "replicas.1"),
        ({"sharding": 1}, "one for the whole plan", "replicas.1.stages.1"),
        ({"offload": "host"}, "cannot run yet", "replicas.1.stages.1"),
        ({"accumulation": "sharded", "second": 5}, "cannot reduce once per", "replicas"),
        ({"sharding_of_all": 3}, "cannot gather views for every use", "replicas"),
        ({"schedule": "interleaved", "skeleton": "interleaved", "prefetch": False, "second": 5},
         "multiples of 2", "replicas.1"),
        ({"without": ["update-prefetch"]}, "has prefetch False", "prefetch"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_named_with_its_place_and_a_fix(
    change: dict[str, Any], says: str, at: str
) -> None:
    first, second = json.loads(json.dumps(PAIR))
    head: dict[str, Any] = {"sequences": 12}
    for key, value in change.items():
        if key in ("sequences", "accumulation", "schedule", "skeleton", "prefetch", "without"):
            head[key] = value
        elif key == "second":
            second["micro_batches"], head["sequences"] = value, 6 + value
        elif key == "sharding_of_all":
            for stage in (*first["stages"], *second["stages"]):
                stage["sharding"] = value
        else:
            second["stages"][1][key] = value
    with pytest.raises(SpecError) as error:
        read(first, second, **head)
    assert says in error.value.what
    assert error.value.place.startswith("p.json")
    assert at in error.value.place
    assert error.value.fix


def test_a_stage_may_compute_several_of_its_replicas_micro_batches_at_once() -> None:
    made = read(
        replica(12, stage("0", 5, micro_batch=8), stage("8", 3, micro_batch=2)), sequences=24
    )
    (each,) = made.setup.replicas
    first, second = (stage.only for stage in each.stages)
    assert (each.micro_batches, first.joined, second.joined) == (12, 4, 1)
    layer, other = first.units[1], second.units[0]
    assert (layer.input_bytes, layer.saved_bytes) == (4 * other.input_bytes, 4 * other.saved_bytes)
    assert layer.view_bytes == other.view_bytes
    assert first.output_bytes == 4 * other.input_bytes


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ((stage("0", 4, micro_batch=4), stage("1", 4, micro_batch=6)), "must be a whole multiple"),
        (
            (stage("0", 2), stage("1", 2, micro_batch=2), stage("0", 2), stage("1", 2)),
            "has devices of other stages",
        ),
    ],
)
def test_sizes_that_cannot_meet_are_refused_with_a_place_and_a_fix(
    stages: tuple[dict[str, Any], ...], says: str
) -> None:
    with pytest.raises(SpecError, match=says) as error:
        read(replica(6, *stages), sequences=24, schedule="breadth-first", skeleton="breadth-first")
    assert "replicas.0" in error.value.place
    assert error.value.fix


def test_replicas_that_would_meet_in_different_orders_are_refused() -> None:
    def one(devices: str, recovery: str) -> dict[str, Any]:
        return replica(6, stage(devices, 8, sharding=3, recovery=recovery))

    with pytest.raises(SpecError, match="must recover the same layers ahead"):
        read(one("0", "forward"), one("1", "none"), sequences=12, schedule="zero3-heavy")
    looped = replica(6, *(stage(devices, 2) for devices in ("0", "1", "0", "1")))
    straight = replica(6, stage("2", 4), stage("3", 4))
    order = {"schedule": "breadth-first", "skeleton": "breadth-first"}
    with pytest.raises(SpecError, match="cannot reduce them once per micro-batch"):
        read(looped, straight, sequences=12, accumulation="sharded", **order)
    assert len(read(looped, straight, sequences=12, **order).setup.replicas) == 2


def test_no_replica_and_a_replica_without_stages_are_refused() -> None:
    for replicas in ((), (replica(4),), (PAIR[0], replica(4))):
        with pytest.raises(SpecError, match="no stages"):
            read(*replicas)


def test_devices_of_one_tensor_group_compute_in_one_dtype() -> None:
    mixed = replica(6, stage("7-8", 4, 2), stage("1", 4))
    with pytest.raises(SpecError, match=r"of two kinds, .* in different dtypes"):
        read(mixed, PAIR[0], sequences=12, dtypes={"a100-80g-sxm": "bf16"})
    assert read(mixed, PAIR[0], sequences=12).replicas[0].tensor == (2, 1)


def test_a_run_has_a_process_for_each_rank_of_unequal_tensor_groups(tmp_path: Path) -> None:
    plan, job = tmp_path / "plan.json", tmp_path / "job.toml"
    fast, _ = hexiscale()
    head = {**TWO_KINDS, "sequences": 9, "backend": "torch"}
    plan.write_text(json.dumps({**head, "replicas": [fast]}))
    (tmp_path / "text.txt").write_text("to be read\n" * 1000)
    job.write_text(
        '[model]\nname = "small-llama"\nsequence_length = 512\n'
        '[cluster]\nname = "mixed-sites"\ndevices = 12\n'
        '[batch]\nsequences = 9\n[schedule]\ndtype = "fp16"\n[data]\nfiles = ["text.txt"]\n'
    )
    prepared = prepare_run(RunRequest(job, plan_path=plan))
    assert prepared.world_size == 6
    seats = prepared.spec.seats.all()
    assert [seat.pipeline for seat in seats] == [0, 0, 0, 0, 1, 1]
    assert [(seat.division.rank, seat.division.degree) for seat in seats] == [
        *((rank, 4) for rank in range(4)),
        *((rank, 2) for rank in range(2)),
    ]
