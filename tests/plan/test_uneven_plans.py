"""Random plans whose stages and replicas differ: each is proved, or refused by name; and what is
broken in their programs is found."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random

import pytest
import verifier_soak
from click.testing import CliRunner
from planted import FAULTS, opposite_order, ops_of, without
from random_plans import random_plan

from ratrain.cli.main import ratrain
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.case.kinds import kind_parts
from ratrain.plan.file.form import is_uneven, parse_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.words.explain_kinds import kinds_text
from ratrain.program.kind import Kind
from ratrain.program.program import Program
from ratrain.program.verify import Rule, verify
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import simulate


def case_of(seed: int) -> Case | SpecError:
    """A random plan made ready, or why it is refused."""
    text = json.dumps(random_plan(Random(seed)))
    try:
        return Case(plan_of_file(parse_plan(text, "p.json"), "p.json"))
    except SpecError as error:
        return error


def check(seed: int) -> str:
    """Proves and simulates one random plan; says what became of it."""
    case = case_of(seed)
    if isinstance(case, SpecError):
        assert case.place.startswith("p.json"), seed
        assert case.fix, seed
        return "refused"
    findings = case.proved.verdict.findings
    assert all(finding.rule is Rule.OVER_BUDGET for finding in findings), (seed, findings[:3])
    simulation = simulate(case.program, case.costs, steps=2, verdict=case.proved.verdict)
    assert 0 < simulation.step_time_s < 1e6, seed
    bounds = {bound.rank: bound.total_bytes for bound in case.proved.verdict.bounds}
    assert all(times.peak_bytes <= bounds[times.rank] for times in simulation.ranks), seed
    json.dumps(case.facts())
    assert max(map(len, case.headline())) <= 80, seed
    return "uneven" if is_uneven(parse_plan(json.dumps(random_plan(Random(seed))), "")) else "even"


@pytest.mark.slow
def test_random_plans_are_sound_or_refused_with_a_place_and_a_fix() -> None:
    seen = Counter(check(seed) for seed in range(200))
    assert seen["uneven"] > 80
    assert seen["refused"] > 10


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("thousand", range(1, 11))
def test_ten_thousand_more_are_too(thousand: int) -> None:
    seen = Counter(check(seed) for seed in range(1000 * thousand, 1000 * (thousand + 1)))
    assert seen["uneven"] > 400


# ---- what is broken is found -------------------------------------------------------------


@cache
def programs() -> tuple[Program, ...]:
    """Programs of random plans of several sorts of replicas."""
    cases = (case_of(seed) for seed in range(50))
    return tuple(
        case.program for case in cases if isinstance(case, Case) and len(case.setup.replicas) > 1
    )[:15]


def found(program: Program) -> set[Rule]:
    return {finding.rule for finding in verify(program).findings}


@pytest.mark.parametrize(
    ("kinds", "rule"),
    [
        ((Kind.SEND_F, Kind.SEND_B), Rule.MISSING_SEND),
        ((Kind.RECV_F, Kind.RECV_B), Rule.MISSING_RECEIVE),
        ((Kind.GradSync,), Rule.MISSING_PARTNER),
        ((Kind.PrefetchW,), Rule.MISSING_PARTNER),
        ((Kind.ClipNorm,), Rule.MISSING_PARTNER),
    ],
)
def test_a_message_or_a_member_of_a_collective_that_is_missing_is_found(
    kinds: tuple[Kind, ...], rule: Rule
) -> None:
    broken = 0
    for number, program in enumerate(programs()):
        places = ops_of(program, *kinds)
        if places:
            broken += 1
            assert rule in found(without(program, *Random(number).choice(places))), number
    assert broken > 3


def test_two_peers_that_reduce_in_opposite_order_are_a_deadlock() -> None:
    broken = 0
    for number, program in enumerate(programs()):
        fault = opposite_order(program, Random(number))
        if fault is not None:
            broken += 1
            assert found(fault.program) & fault.rules, number
    assert broken > 3


def test_faults_planted_in_random_plans_and_plans_of_members_are_discovered() -> None:
    seen = sum((verifier_soak.check(seed) for seed in range(24)), Counter[str]())
    assert set(seen) == {"proved", "refused", verifier_soak.SHARE, *FAULTS}


# ---- through the command line ------------------------------------------------------------

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "unequal-replicas.json")


def test_the_example_is_simulated_verified_and_printed(tmp_path: Path) -> None:
    simulated = CliRunner().invoke(ratrain, ["simulate", EXAMPLE])
    assert simulated.exit_code == 0
    assert "2 replicas of 2 shapes" in simulated.output
    assert "of its 2 GB: fits" in simulated.output
    verified = CliRunner().invoke(ratrain, ["verify", EXAMPLE])
    assert verified.exit_code == 0
    assert "sound: " in verified.output
    file = tmp_path / "unequal.program"
    printed = CliRunner().invoke(ratrain, ["program", EXAMPLE, "--form", "text", "-o", str(file)])
    assert printed.exit_code == 0
    assert CliRunner().invoke(ratrain, ["verify", str(file)]).output == verified.output


def test_a_plan_that_is_over_a_small_device_s_budget_names_that_rank(tmp_path: Path) -> None:
    table = json.loads(Path(EXAMPLE).read_text())
    table["memory_budget"] = "300MB"
    path = tmp_path / "tight.json"
    path.write_text(json.dumps(table))
    run = CliRunner().invoke(ratrain, ["simulate", str(path)])
    assert run.exit_code == 3
    assert "fullest is rank 0, proven peak 554 MB of its 300 MB: DOES NOT FIT" in run.output


def test_a_kinds_share_of_the_work_counts_layers_and_the_sequences_that_they_see() -> None:
    of_all = {"tensor": 1, "micro_batch": 2, "recovery": "none", "sharding": 0}
    replicas = [  # the first kind alone takes three micro-batches, both kinds together one
        {"count": 1, "micro_batches": 3, "stages": [{**of_all, "devices": "0", "layers": 4}]},
        {
            "count": 1,
            "micro_batches": 1,
            "stages": [
                {**of_all, "devices": "1", "layers": 1},
                {**of_all, "devices": "8", "layers": 3},
            ],
        },
    ]
    plan = {
        "format": "ratrain plan 1",
        "model": {"name": "tiny-llama", "sequence_length": 64},
        "cluster": {"name": "mixed-sites", "devices": 24},
        "sequences": 8,
        "dtype": "fp16",
        "schedule": "ratrain",
        "skeleton": "1f1b",
        "without": [],
        "accumulation": "local",
        "recovery_buffer": 1,
        "prefetch": True,
        "replicas": replicas,
    }
    case = Case(plan_of_file(parse_plan(json.dumps(plan), "p.json"), "p.json"))
    shares = [part.work_share for part in kind_parts(case, case.simulation)]
    assert shares == pytest.approx([13 / 16, 3 / 16])


def check_kinds(seed: int) -> bool:
    """Takes a random plan apart by kind of device, and draws it."""
    text = json.dumps(random_plan(Random(seed)))
    try:
        subject = plan_of_file(parse_plan(text, "p.json"), "p.json")
    except SpecError:
        return False
    case = Case(subject)
    simulation = simulate_proved(case.proved, case.costs)
    parts = kind_parts(case, simulation)
    devices = sorted(index for part in parts for index in (*part.devices, *part.idle))
    assert devices == list(range(case.job.cluster.devices)), seed
    assert sum(part.work_share for part in parts) == pytest.approx(1), seed
    for part in parts:
        shares = part.compute_share, part.recovery_share, part.links_share, part.others_share
        assert sum(shares) == pytest.approx(1 if part.devices else 0, abs=1e-6), seed
    assert max(map(len, kinds_text(parts, simulation.step_time_s))) <= 80, seed
    standing = case.standing()
    assert len(standing.ranks) == case.setup.ranks, seed
    assert [len(links) + 1 for links in standing.links] == [r.ranks for r in case.setup.replicas]
    return True


@pytest.mark.slow
def test_random_plans_are_taken_apart_by_kind_of_device() -> None:
    assert sum(check_kinds(seed) for seed in range(30)) > 10


@pytest.mark.slow
def test_three_hundred_more_are_too() -> None:
    assert sum(check_kinds(seed) for seed in range(1000, 1300)) > 100
