"""Plans whose stages list members: read strictly, written back, proved, priced by the links that a
micro-batch takes, and the same to the bit as a plain stage where there is one member."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from random_plans import split
from test_uneven_setup import TWO_KINDS, read, replica, stage

from ratrain.cli.main import ratrain
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.case.kinds import kind_parts
from ratrain.plan.file.form import file_of_plan, is_uneven, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.price.what_if import sending_faster
from ratrain.program.kind import Kind
from ratrain.program.replicas import Recovery
from ratrain.program.text.read import read_text
from ratrain.program.text.write import write_text
from ratrain.program.verify import Rule
from ratrain.simulate.costs import costs_of_ops
from ratrain.simulate.simulate import simulate

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "members.json")


def member(devices: str, serves: str, **more: Any) -> dict[str, Any]:
    return {"devices": devices, "tensor": 1, "serves": serves, **more}


def shared(layers: int, *members: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A stage of members."""
    return {"layers": layers, "micro_batch": 1, "sharding": 2, "members": list(members), **more}


FAST_AND_SLOW = (
    shared(4, member("0", "0-2, 4"), member("8", "3, 5", recovery="forward")),
    shared(4, member("1", "0, 2-5"), member("9", "1"), member("10", "none")),
)
"""Two stages of an A100 and of nodes of another kind; a node serves nothing."""


def test_members_have_their_own_kind_recovery_budget_and_micro_batches() -> None:
    made = read(replica(6, *FAST_AND_SLOW), sequences=6)
    first, second = made.setup.replicas[0].stages
    assert [m.rank for m in (*first.members, *second.members)] == [0, 1, 2, 3, 4]
    assert [m.serves for m in first.members] == [(0, 1, 2, 4), (3, 5)]
    assert [m.serves for m in second.members] == [(0, 2, 3, 4, 5), (1,), ()]
    (each,) = made.replicas
    assert each.kinds == ("a100-80g-sxm", "mt3000-cluster") * 2 + ("mt3000-cluster",)
    assert [made.setup.budget_of(rank) for rank in range(5)] == [
        80 * 10**9, 20 * 10**9, 80 * 10**9, 20 * 10**9, 20 * 10**9
    ]  # fmt: skip
    assert made.setup.holders == {"e": 2, "h": 3} | {str(n): 2 if n < 4 else 3 for n in range(8)}
    program = Case(made).program
    modes = [m.recovery for m in program.setup.members]
    assert modes == [Recovery.NONE, Recovery.FORWARD, *[Recovery.NONE] * 3]


def test_a_plan_of_members_is_written_as_it_is_read() -> None:
    table = {**TWO_KINDS, "sequences": 12, "replicas": [replica(6, *FAST_AND_SLOW)] * 2}
    table["replicas"][1] = replica(6, stage("2", 8))
    plan = parse_plan(json.dumps(table), "p.json")
    assert is_uneven(plan)
    assert parse_plan(write_plan(plan), "p.json") == plan
    made = plan_of_file(plan, "p.json")
    assert plan_of_file(file_of_plan(made), "p.json") == made


BOTH = member("0", "0-2"), member("1", "3-5")


@pytest.mark.parametrize(
    ("changed", "says", "at"),
    [
        (shared(8, member("0", "0-3"), member("1", "3-5")),
         "micro-batch 3 is served by member 0 already", "members.1] serves"),
        (shared(8, member("0", "0-2, 2"), member("1", "3-5")),
         "micro-batch 2 is served by member 0 already", "members.0] serves"),
        (shared(8, member("0", "0"), member("1", "3-4")),
         "no member serves micro-batches 1-2, 5", "stages.0] members"),
        (shared(8, member("0", "0-6"), member("1", "none")),
         "'0-6' is not among micro-batches 0 to 5", "members.0] serves"),
        (shared(8, member("0", "some"), member("1", "3-5")), "'some' is not a micro-batch",
         "members.0] serves"),
        (shared(8, member("0", "0-2"), member("0", "3-5")),
         "device 0 is in stage 0 of entry 0 already", "members.1] devices"),
        (shared(8, member("0-1", "0-2"), member("2", "3-5")),
         "2 devices for 1 replica x tensor 1", "members.0] devices"),
        (shared(8, member("0-2", "0-2", tensor=3), member("3", "3-5")),
         "8 heads, which 3 ranks cannot", "members.0"),
        (shared(8, *BOTH, devices="2"), "has no devices of its own", "stages.0] devices"),
        (shared(8, *BOTH, recovery="none"), "has no recovery of its own", "stages.0] recovery"),
        (shared(8), "no members", "stages.0] members"),
        (shared(8, {"devices": "0", "tensor": 1}), 'the key "serves" is missing', "members] 0"),
        ({"layers": 8, "micro_batch": 1, "sharding": 2, "tensor": 1, "recovery": "none"},
         'the key "devices" is missing', "stages.0] devices"),
    ],
)  # fmt: skip
def test_members_that_contradict_themselves_are_refused_by_their_place(
    changed: dict[str, Any], says: str, at: str
) -> None:
    with pytest.raises(SpecError) as refused:
        read(replica(6, changed), sequences=6)
    assert says in refused.value.what
    assert at in refused.value.place and refused.value.place.startswith("p.json")
    assert refused.value.fix


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"accumulation": "sharded"}, "cannot reduce each of them"),
        ({"average_every": 2, "schedule": "1f1b", "prefetch": False, "sharding": 0},
         "must reduce their gradients in every step"),
        ({"schedule": "zero3-heavy", "sharding": 3}, "cannot gather them together"),
    ],
    ids=str,
)  # fmt: skip
def test_what_members_of_a_stage_cannot_do_together_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    sharding = changes.pop("sharding", 2)
    with pytest.raises(SpecError) as refused:
        read(replica(6, shared(8, *BOTH) | {"sharding": sharding}), sequences=6, **changes)
    assert says in refused.value.what and refused.value.fix


def test_one_member_a_stage_has_the_bits_of_the_plain_form() -> None:
    plain = (stage("0", 5, recovery="forward"), stage("8", 3))
    listed = (
        shared(5, member("0", "0-5", recovery="forward")),
        shared(3, member("8", "all")),
    )
    beside = replica(4, stage("1", 4), stage("9", 4))
    first, second = (
        Case(read(replica(6, *stages), beside, sequences=10)) for stages in (plain, listed)
    )
    assert first.plan == second.plan
    assert write_text(first.program) == write_text(second.program)
    assert first.headline() == second.headline()
    runs = [simulate(case.program, case.costs) for case in (first, second)]
    assert runs[0].step_time_s == runs[1].step_time_s
    assert runs[0].bound_bytes == runs[1].bound_bytes


def test_a_message_takes_the_link_to_the_member_that_serves_its_micro_batch() -> None:
    """Device 0's host has 1 too; 8 is on another site."""
    near_and_far = shared(4, member("1", "0, 2-5"), member("8", "1"))
    case = Case(read(replica(6, stage("0", 4), near_and_far), sequences=6))
    table = case.program.table
    costs = costs_of_ops(table, case.costs)
    rates = case.costs.link_rate_bytes_per_s

    def seconds(kind: Kind, micro_batch: int) -> float:
        (op,) = np.flatnonzero((table.kind == kind) & (table.micro_batch == micro_batch)).tolist()
        return float(costs.fixed_s[op] + costs.volume_bytes[op] / rates[costs.link[op]])

    cluster = case.job.cluster.spec
    zero, first, ninth = (case.job.cluster.members()[index] for index in (0, 1, 8))
    slower = (
        cluster.link(zero, first).bandwidth_bytes_per_s
        > cluster.link(zero, ninth).bandwidth_bytes_per_s
    )
    assert slower
    for kind in (Kind.SEND_F, Kind.SEND_B):
        times = [seconds(kind, micro_batch) for micro_batch in range(6)]
        assert len({times[0], *times[2:]}) == 1
        assert times[1] > 2 * times[0]


def test_members_beside_each_other_and_across_a_site_reduce_over_the_slowest_link() -> None:
    near = Case(read(replica(6, shared(8, member("0", "0-2"), member("1", "3-5"))),
                           sequences=6))  # fmt: skip
    far = Case(read(replica(6, shared(8, member("0", "0-2"), member("8", "3-5"))),
                          sequences=6))  # fmt: skip

    def seconds(case: Case) -> float:
        work = case.costs.work[Kind.GradSync]
        return float(
            (work.fixed_s + work.volume_bytes / case.costs.link_rate_bytes_per_s[work.link]).max()
        )

    assert 0 < seconds(near) < seconds(far)


def random_members(rng: Random) -> dict[str, Any]:
    """A plan of one to four stages of one to four members each, on two kinds of device."""
    free = {"dgx": list(range(8)), "nodes": list(range(8, 24))}
    micro_batches, depth = rng.randint(1, 8), rng.randint(1, 4)
    sharding = rng.choice([0, 1, 2])
    cuts = sorted(rng.sample(range(1, 8), depth - 1))
    stages: list[dict[str, Any]] = []
    for begin, end in zip([0, *cuts], [*cuts, 8], strict=True):
        count = rng.randint(1, 4)
        taken = [rng.randrange(count) for _ in range(micro_batches)]
        members: list[dict[str, Any]] = []
        for number in range(count):
            kind = rng.choice([kind for kind in free if len(free[kind]) >= 2])
            tensor = rng.choice([1, 1, 1, 2])
            devices, free[kind] = free[kind][:tensor], free[kind][tensor:]
            share = [str(m) for m, who in enumerate(taken) if who == number]
            members.append({
                "devices": ", ".join(map(str, devices)), "tensor": tensor,
                "serves": ", ".join(share) or "none",
                "recovery": rng.choice(["none", "backward", "forward"]),
            })  # fmt: skip
        stages.append(shared(end - begin, *members, sharding=sharding))
    schedule, skeleton, prefetch = rng.choice([
        ("ratrain", "1f1b", True), ("1f1b", "1f1b", False), ("zb-h1", "zb-h1", False),
        ("gpipe", "gpipe", False), ("breadth-first", "breadth-first", True),
    ])  # fmt: skip
    members = [each for of_stage in stages for each in of_stage["members"]]
    if rng.random() < 0.3 and all(each["serves"] != "none" for each in members):
        schedule, skeleton, prefetch = "pe-zero", "breadth-first", True
        for of_stage in stages:
            of_stage["sharding"] = 3
        for each in members:
            each["recovery"] = rng.choice(["none", "backward"])
    return split({
        **TWO_KINDS, "cluster": {"name": "mixed-sites", "devices": 24}, "schedule": schedule,
        "skeleton": skeleton, "prefetch": prefetch, "sequences": micro_batches,
        "collective": rng.choice(["ring", "auto", "hierarchical"]),
        "replicas": [replica(micro_batches, *stages)],
    })  # fmt: skip


def check(seed: int) -> None:
    """Proves, simulates, takes apart and reads back one random plan."""
    plan = parse_plan(json.dumps(random_members(Random(seed))), "p.json")
    assert parse_plan(write_plan(plan), "p.json") == plan, seed
    case = Case(plan_of_file(plan, "p.json"))
    findings = case.proved.verdict.findings
    assert all(finding.rule is Rule.OVER_BUDGET for finding in findings), (seed, findings[:3])
    assert read_text(write_text(case.program)) == case.program, seed
    simulation = simulate(case.program, case.costs, steps=2, verdict=case.proved.verdict)
    assert 0 < simulation.step_time_s < 1e6, seed
    bounds = {bound.rank: bound.total_bytes for bound in case.proved.verdict.bounds}
    assert all(times.peak_bytes <= bounds[times.rank] for times in simulation.ranks), seed
    json.dumps(case.facts())
    assert max(map(len, case.headline())) <= 80, seed
    for idle in (rank for rank, m in enumerate(case.setup.members) if m.serves == ()):
        assert simulation.ranks[idle].compute_s == 0, seed


def test_random_plans_of_members_are_sound_and_take_a_finite_time() -> None:
    for seed in range(6):
        check(seed)


@pytest.mark.slow
def test_five_hundred_more_are_too() -> None:
    for seed in range(1000, 1500):
        check(seed)


def test_where_a_short_and_a_long_step_alternate_the_long_one_is_what_is_said() -> None:
    plan = plan_of_file(parse_plan(json.dumps(random_members(Random(385))), "p.json"), "p.json")
    case = Case(plan)
    simulations = [
        simulate(case.program, case.costs, steps=steps, verdict=case.proved.verdict)
        for steps in (3, 4, 5, 6)
    ]
    short, *others = (simulation.step_time_s for simulation in simulations)
    assert others == pytest.approx([others[0]] * 3)
    assert short < 0.98 * others[0]
    for simulation in simulations[1:]:
        assert not simulation.window.steady
        assert [
            times.compute_s + times.recovery_s + times.driving_s + sum(times.waiting_s.values())
            for times in simulation.ranks
        ] == pytest.approx([simulation.step_time_s] * len(simulation.ranks))


def test_work_is_counted_by_what_each_member_serves() -> None:
    plan = read(replica(6, *FAST_AND_SLOW), sequences=6)
    case = Case(plan)
    parts = {p.kind.name: p for p in kind_parts(case, simulate(case.program, case.costs))}
    assert parts["mt3000-cluster"].work_share == pytest.approx((4 * 2 + 4 * 1) / (8 * 6))
    assert [place.served for place in parts["mt3000-cluster"].places] == [(2, 1, 0)]


@pytest.mark.parametrize("verb", ["simulate", "verify", "program"])
def test_verbs_take_the_example(verb: str) -> None:
    run = CliRunner().invoke(ratrain, [verb, EXAMPLE])
    assert run.exit_code == 0, run.output
    if verb == "simulate":
        assert "rank 1\n    serves 2, 5, 8, 11, 14, 17, 20, 23" in run.output


def test_a_replica_of_members_that_occurs_twice_is_folded_into_one() -> None:
    twice = replica(6, shared(8, member("0-1", "0-3"), member("8-9", "4-5")), count=2)
    made = read(twice, sequences=12)
    assert [(r.ranks, len(r.groups)) for r in made.replicas] == [(2, 2)]
    assert made.setup.holders == dict.fromkeys(["e", *map(str, range(8)), "h"], 4)
    assert Case(made).proved.verdict.sound
    kinds = [[[d.index for d in g] for g in groups] for groups in made.replicas[0].groups]
    assert kinds == [[[0], [8]], [[1], [9]]]


def test_a_later_round_of_stages_has_the_same_members() -> None:
    first, second = (member("0", "0-3"), member("8", "4-5")), (member("1", "all"),)
    looped = (*(shared(2, *first), shared(2, *second)),) * 2
    made = read(
        replica(6, *looped), sequences=6, schedule="breadth-first", skeleton="breadth-first"
    )
    assert Case(made).proved.verdict.sound
    other = (member("0", "0-2"), member("8", "3-5"))
    stages = (*looped[:2], shared(2, *other), looped[3])
    with pytest.raises(SpecError, match="members serve other micro-batches than on stage 0"):
        read(replica(6, *stages), sequences=6, schedule="breadth-first", skeleton="breadth-first")


def test_shares_in_proportion_to_speed_are_faster_than_equal_ones() -> None:
    def step_s(fast: int) -> float:
        count = 400
        whole = shared(8, member("0", f"0-{fast - 1}"), member("8", f"{fast}-{count - 1}"))
        case = Case(
            read(
                replica(count, whole), sequences=count,
                model={"name": "small-llama", "sequence_length": 2048},
            )
        )  # fmt: skip
        return simulate(case.program, case.costs, steps=3).step_time_s

    assert step_s(380) < step_s(200)


def test_faster_links_of_one_member_make_its_messages_alone_faster() -> None:
    near_and_far = shared(4, member("1", "0, 2-5"), member("8", "1"))
    case = Case(read(replica(6, stage("0", 4), near_and_far), sequences=6))
    faster = sending_faster(case.costs, case.program.setup, [2], 2.0)
    work, other = case.costs.work[Kind.SEND_F], faster.work[Kind.SEND_F]
    assert work.routes is not None
    changed = work.volume_bytes != other.volume_bytes
    assert changed.any() and set(work.routes.receiver[changed].tolist()) == {2}
