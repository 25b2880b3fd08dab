"""The orders of a plan file whose replicas differ: compared, searched for, and read from a file."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from registered import declared_inside
from test_left_out import cluster_file

from ratrain.cli.main import ratrain
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import load_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.plan import Plan
from ratrain.plan.orders.board import Board
from ratrain.plan.orders.schedules import LaidOut, compare
from ratrain.plan.orders.seeds import order_of, policies
from ratrain.program.kind import Lane
from ratrain.program.pipelining.fixed import fixed_order
from ratrain.program.skeletons import SKELETONS
from ratrain.program.text.order_csv import read_orders
from ratrain.simulate.long import simulate_proved


@pytest.fixture(autouse=True)
def forgotten() -> Generator[None]:
    """Orders that a test reads are unknown after it."""
    with declared_inside():
        yield


def stage(device: int, layers: int, **said: Any) -> dict[str, Any]:
    return {
        "devices": str(device), "tensor": 1, "layers": layers, "micro_batch": 1,
        "recovery": "none", "sharding": 1, **said,
    }  # fmt: skip


DEEP = {"count": 1, "micro_batches": 8, "stages": [stage(0, 1), stage(1, 1), stage(2, 2)]}
FLAT = {"count": 1, "micro_batches": 3, "stages": [stage(3, 4)]}


def plan_file(folder: Path, *replicas: dict[str, Any], **said: Any) -> Path:
    """A plan of tiny-llama on four devices of two kinds."""
    cluster_file(folder, slow=(20, 2), fast=(50, 2))
    cluster = folder / "cluster.toml"
    cluster.write_text(cluster.read_text().replace("1Gbit/s", "10Gbit/s"))
    body = {
        "format": "ratrain plan 1",
        "model": {"name": "tiny-llama", "sequence_length": 64},
        "cluster": {"name": "cluster.toml", "devices": 4},
        "sequences": sum(each["count"] * each["micro_batches"] for each in replicas),
        "dtype": "fp32", "schedule": "ratrain", "skeleton": "1f1b", "without": [],
        "accumulation": "local", "recovery_buffer": 2, "prefetch": True,
        "replicas": list(replicas), **said,
    }  # fmt: skip
    path = folder / "plan.json"
    path.write_text(json.dumps(body))
    return path


def read(path: Path) -> Plan:
    return plan_of_file(load_plan(path), str(path))


def verb(*words: str) -> dict[str, Any]:
    run = CliRunner().invoke(ratrain, [*words, "--json"])
    assert run.exit_code == 0, run.output
    return json.loads(run.output)


@pytest.mark.slow
def test_every_named_order_is_compared_on_the_plan_s_own_replicas(tmp_path: Path) -> None:
    path = plan_file(tmp_path, DEEP, FLAT)
    plan = read(path)
    orders = compare(LaidOut(plan.job, path, plan))
    named = {name for name, skeleton in SKELETONS.items() if skeleton.fixed is None}
    assert {row.order for row in orders.rows} == named
    steps = {row.order: row.predicted.step_s for row in orders.rows if row.predicted is not None}
    for order in ("1f1b", "zb-h1"):
        other = plan_file(tmp_path, DEEP, FLAT, skeleton=order)
        case = Case(read(other))
        assert simulate_proved(case.proved, case.costs).step_time_s == pytest.approx(steps[order])
    shown = CliRunner().invoke(ratrain, ["schedules", str(path)]).output
    assert "*1f1b" in shown or "*zb-h1" in shown
    assert "2 replicas of 2 shapes" in shown


@pytest.mark.slow
def test_an_order_of_each_replica_is_searched_for_and_the_plan_takes_its_file(
    tmp_path: Path,
) -> None:
    path, order = plan_file(tmp_path, DEEP, FLAT), tmp_path / "mine.csv"
    body = verb(
        "schedules", str(path), "--search", "--evaluations", "600", "--seconds", "600",
        "--save", str(order),
    )  # fmt: skip
    found = body["search"]["order"]
    named = [row["step_time_s"] for row in body["schedules"] if row["fits"]]
    assert found["step_time_s"] < min(named)
    assert order.read_text().splitlines().count("replica") == 2
    taken = plan_file(tmp_path, DEEP, FLAT, skeleton=found["skeleton"])
    assert verb("simulate", str(taken))["step_time_s"] == pytest.approx(found["step_time_s"])
    verb("verify", str(taken))


def test_the_clock_of_a_board_times_each_replica_s_order_as_its_program_takes(
    tmp_path: Path,
) -> None:
    board = Board(Case(read(plan_file(tmp_path, DEEP, FLAT))), split=True)
    deep, flat = board.pipelines
    assert (deep.places, flat.places) == (3, 1)
    for mine, other in zip(list(policies(deep))[::9], list(policies(flat))[::9], strict=False):
        orders = (*order_of(deep, mine), *order_of(flat, other))
        timed = board.clock.timed(orders)
        proved = board.proved(orders)
        assert proved is not None and timed is not None
        assert timed.step_s == pytest.approx(proved.step_s, rel=1e-9)


def test_replicas_of_one_depth_may_have_orders_of_their_own(tmp_path: Path) -> None:
    pairs = [
        {"count": 1, "micro_batches": 4, "stages": [stage(0, 1), stage(2, 3)]},
        {"count": 1, "micro_batches": 4, "stages": [stage(1, 2), stage(3, 2)]},
    ]
    rows = ["0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3", "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"]
    other = ["0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3", rows[1]]
    text = "\n".join(["replica", *rows, "replica", *other, ""])
    (tmp_path / "mine.csv").write_text(text)
    assert len(read_orders(text)) == 2
    case = Case(read(plan_file(tmp_path, *pairs, skeleton="mine.csv")))
    assert case.proved.verdict.sound
    turns = [
        tuple(dict.fromkeys((action.kind, action.micro_batch) for action in lane))
        for (_, name), lane in sorted(case.program.lanes.items())
        if name is Lane.COMPUTE
    ]
    assert turns[0] != turns[2], "of the first ranks each takes its replica's"
    assert turns[1] == turns[3]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0F0,0B0\nreplica\n0F0,0B0\n", "rows before the first row 'replica'"),
        ("replica\n0F0,0B0\nreplica\n0F0,0I0,0W0\n", "split in one replica and whole in another"),
        ("replica\n0.0F0,0.0B0\nreplica\n0F0,0B0\n", "no turns of units"),
        ("replica\n0F0,1F0,1B0,0B0\nreplica\n0F0,0B0\n", "each rank has one stage"),
    ],
)
def test_a_file_of_several_replicas_that_no_program_says_is_refused(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(SpecError, match=problem):
        fixed_order(path)


def test_an_order_of_other_replicas_is_refused_at_the_plan_s_replica(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("replica\n0F0,0B0\nreplica\n0F0,0B0\n")
    with pytest.raises(SpecError, match="is written for 2 replicas") as raised:
        read(plan_file(tmp_path, DEEP, FLAT, skeleton="mine.csv"))
    assert "replicas" in raised.value.place


@pytest.mark.parametrize(
    ("replica", "what"),
    [
        (
            {
                "count": 1,
                "micro_batches": 6,
                "stages": [stage(0, 2), stage(1, 2, micro_batch=2)],
            },
            "stages that differ in micro_batch",
        ),
        (
            {
                "count": 1,
                "micro_batches": 6,
                "stages": [
                    stage(0, 2),
                    {
                        "layers": 2,
                        "micro_batch": 1,
                        "sharding": 1,
                        "members": [
                            {"devices": "1", "tensor": 1, "serves": "0-2"},
                            {"devices": "2", "tensor": 1, "serves": "3-5"},
                        ],
                    },
                ],
            },
            "stages of several members",
        ),
    ],
    ids=["sizes", "members"],
)
def test_what_cannot_be_searched_yet_is_compared_and_says_so(
    replica: dict[str, Any], what: str, tmp_path: Path
) -> None:
    path = plan_file(tmp_path, replica)
    assert any(row["fits"] for row in verb("schedules", str(path))["schedules"])
    run = CliRunner().invoke(ratrain, ["schedules", str(path), "--search", "--seconds", "1"])
    assert isinstance(run.exception, SpecError)
    assert run.exception.what == f"an order cannot be searched for {what} yet"
