"""Compute orders found by search: timed as the simulator does, proved, and taken from a file."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import random_jobs
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from registered import declared_inside

from ratrain.cli.main import main
from ratrain.cli.programs.schedules import command
from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.describe.strict import FrozenMap
from ratrain.errors import SpecError
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.orders.board import Board
from ratrain.plan.orders.clock import OrderClock
from ratrain.plan.orders.schedules import compare, laid_out
from ratrain.plan.orders.search import Limits, Moves, SearchResult, critical_pieces, search_compared
from ratrain.plan.orders.seeds import Pipeline, order_of, policies
from ratrain.plan.words.orders import reasons
from ratrain.plan.words.orders import settings as settings_of
from ratrain.program.kind import Kind
from ratrain.program.skeletons import SKELETONS
from ratrain.simulate.simulate import simulate

JOB = Path(__file__).parents[2] / "examples" / "small.toml"
FEW = Limits(seconds=600, evaluations=60)


@pytest.fixture(autouse=True)
def forgotten() -> Generator[None]:
    """Orders that a test declares are unknown after it."""
    with declared_inside():
        yield


def job_of(layout: LayoutSpec, skeleton: str = "1f1b", name: str = "ratrain") -> JobSpec:
    job = load_job(JOB)
    schedule = replace(job.schedule, name=name, skeleton=skeleton, recovery="auto")
    return replace(job, layout=layout, schedule=schedule)


def searched(job: JobSpec, limits: Limits = FEW, seed: int = 0) -> SearchResult:
    return search_compared(compare(laid_out(job)), limits, seed)


UNEQUAL = LayoutSpec(4, layers=(1, 3, 1, 3))


@pytest.mark.parametrize("name", ["ratrain", "1f1b", "megatron", "zero3-heavy"])
@pytest.mark.parametrize(
    ("skeleton", "layout"),
    [
        ("1f1b", UNEQUAL),
        ("gpipe", UNEQUAL),
        ("zb-h1", LayoutSpec(2, data=2)),
        ("breadth-first", LayoutSpec(2, data=2, virtual=2)),
    ],
)
def test_the_clock_gives_an_order_the_time_of_the_simulator(
    name: str, skeleton: str, layout: LayoutSpec
) -> None:
    case = case_of(job_of(layout, skeleton, name))
    clock = OrderClock(case.program, case.costs)
    timed = clock.timed(clock.orders)
    assert timed is not None
    assert timed.step_s == pytest.approx(simulate(case.program, case.costs).step_time_s, rel=1e-9)


@pytest.mark.parametrize("virtual", [1, 2])
def test_the_clock_of_one_order_gives_every_other_the_time_of_its_own_program(
    virtual: int,
) -> None:
    board = Board(case_of(job_of(LayoutSpec(2, virtual=virtual), "breadth-first")), split=True)
    orders = [order_of(board.pipelines[0], policy) for policy in policies(board.pipelines[0])][::7]
    clock = board.clock
    for order in orders:
        proved = board.proved(order)  # builds its program, and puts the board on that one's clock
        timed = clock.timed(order)
        assert proved is not None and timed is not None
        assert timed.step_s == pytest.approx(proved.step_s, rel=1e-9)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "layout",
    [LayoutSpec(2), LayoutSpec(2, virtual=2), LayoutSpec(2, data=2), LayoutSpec(1, data=2)],
)
def test_policies_and_moves_keep_every_stage_in_ascending_order_and_forward_first(
    split: bool, layout: LayoutSpec
) -> None:
    skeleton = "1f1b" if layout.virtual == 1 else "breadth-first"
    board = Board(case_of(job_of(layout, skeleton)), split=split)
    here = board.tried(board.first)
    assert here is not None
    (pipeline,) = board.pipelines
    moves, kinds = Moves(Random(1)), [Kind.F, *([Kind.I, Kind.W] if split else [Kind.B])]
    made = [order_of(pipeline, policy) for policy in policies(pipeline)]
    critical = critical_pieces(board.clock, here.timed)
    orders = here.orders
    for _ in range(600):
        orders = moves.changed(orders, critical, board.places) or orders
        made.append(orders[: board.places])
    for place, order in ((p, o) for each in made[::7] for p, o in enumerate(each)):
        turn = {piece: number for number, piece in enumerate(order)}
        for stage in range(place, pipeline.stages, pipeline.places):
            for kind in kinds:
                batches = [m for k, s, m in order if k is kind and s == stage]
                assert batches == list(range(pipeline.micro_batches))
            for m in range(pipeline.micro_batches):
                turns = [turn[kind, stage, m] for kind in kinds]
                assert turns == sorted(turns)


@pytest.mark.parametrize(
    ("layout", "split"),
    [
        (LayoutSpec(1, data=2), False),
        (LayoutSpec(2, data=2), False),
        (LayoutSpec(2, data=2), True),
    ],
)
def test_orders_of_units_and_of_transfers_take_the_time_of_their_own_programs(
    layout: LayoutSpec, split: bool
) -> None:
    job = job_of(layout)
    slow = FrozenMap({"room": replace(job.cluster.spec.links["room"], bandwidth_bytes_per_s=12e6)})
    job = replace(job, cluster=replace(job.cluster, spec=replace(job.cluster.spec, links=slow)))
    board = Board(case_of(job), split=split)
    here = board.proved(board.first)
    assert here is not None and len(here.orders) > board.places
    moves, orders, accepted, proved = Moves(Random(2)), here.orders, 0, 0
    clock = board.clock
    for _ in range(300):
        changed = moves.changed(orders, critical_pieces(clock, here.timed), board.places)
        timed = None if changed is None else clock.timed(changed)
        if changed is None or timed is None:
            continue
        orders, accepted = changed, accepted + 1
        again = board.proved(orders) if accepted % 10 == 0 else None
        if again is not None:
            proved += 1
            assert again.orders == orders
            assert timed.step_s == pytest.approx(again.step_s, rel=1e-9)
    assert proved > 3


@pytest.mark.slow
def test_the_layers_of_a_job_whose_ranks_hold_the_whole_model_are_moved(tmp_path: Path) -> None:
    job = replace(job_of(LayoutSpec(1, data=4)), batch=Batch(48))
    slow = FrozenMap({"room": replace(job.cluster.spec.links["room"], bandwidth_bytes_per_s=6e6)})
    spec = replace(job.cluster.spec, links=slow)
    job = replace(job, cluster=replace(job.cluster, spec=spec))
    job = replace(job, schedule=replace(job.schedule, skeleton=None))
    order = searched(job, Limits(seconds=600, evaluations=1500)).order
    assert order is not None
    assert order.gain_over(order.named_simulation.step_time_s) > 0.05
    assert "0.3F0" in order.csv
    words = " ".join(reasons(order))
    assert "layer by layer" in words
    file = tmp_path / "mine.csv"
    file.write_text(order.csv)
    case = case_of(replace(order.job, schedule=replace(order.job.schedule, skeleton=str(file))))
    assert simulate(case.program, case.costs).step_time_s == order.step_s


def test_a_policy_that_memory_presses_still_computes_every_piece() -> None:
    times_s = {Kind.F: (20, 13, 27, 29), Kind.I: (42, 15, 56, 51), Kind.W: (18, 12, 24, 26)}
    pipeline = Pipeline(
        places=4,
        stages=4,
        micro_batches=6,
        backward=Kind.I,
        compute_s={(kind, s): time for kind, of in times_s.items() for s, time in enumerate(of)},
        message_s={(kind, s): (1.0, 0.0) for kind in (Kind.F, Kind.I) for s in range(4)},
        held_bytes=[3, 32, 4, 29],
        room_bytes=[29, 185, 31, 23],  # the last rank cannot hold a single micro-batch
    )
    for policy in policies(pipeline):
        pieces = [piece for order in order_of(pipeline, policy) for piece in order]
        assert len(pieces) == len(set(pieces)) == 4 * 6 * 3


@pytest.mark.slow
def test_the_same_seed_and_number_of_evaluations_find_the_same_order() -> None:
    job = job_of(UNEQUAL, name="1f1b")
    limits = Limits(seconds=600, evaluations=150)
    first, again = (searched(job, limits, seed=3) for _ in range(2))
    assert first.order is not None and again.order is not None
    assert first.order.csv == again.order.csv
    assert first.effort.evaluations == again.effort.evaluations


@pytest.mark.slow
def test_an_order_stays_within_a_budget_that_orders_without_a_bound_would_break() -> None:
    job = job_of(LayoutSpec(4, layers=(1, 3, 1, 3)))
    ample = searched(job).order
    assert ample is not None
    fullest = max(bound.total_bytes for bound in ample.simulation.verdict.bounds)
    tight = replace(job, schedule=replace(job.schedule, memory_budget_bytes=fullest - 20_000_000))
    order = searched(tight).order
    assert order is not None
    assert order.simulation.feasible
    assert order.simulation.bound_bytes <= fullest - 20_000_000


@st.composite
def pipelines(draw: st.DrawFn) -> JobSpec:
    """A small job of unequal stages on a network of any rate, sometimes with little memory."""
    places = draw(st.integers(2, 4))
    layers = tuple(draw(st.integers(1, 4)) for _ in range(places))
    job = load_job(JOB)
    model = replace(job.model, spec=replace(job.model.spec, layers=sum(layers)))
    room = job.cluster.spec.links["room"]
    rate = draw(st.sampled_from([3e6, 12e6, 125e6]))
    links = FrozenMap({"room": replace(room, bandwidth_bytes_per_s=rate)})
    cluster = replace(job.cluster, spec=replace(job.cluster.spec, links=links), devices=places)
    budget = draw(st.sampled_from([None, None, 300_000_000]))
    return replace(
        job,
        model=model,
        cluster=cluster,
        batch=replace(job.batch, sequences=draw(st.integers(2, 8))),
        layout=LayoutSpec(places, layers=layers),
        schedule=replace(
            job.schedule,
            name=draw(st.sampled_from(["ratrain", "1f1b", "zb-h1", "baseline-1f1b"])),
            recovery="auto",
            memory_budget_bytes=budget,
        ),
    )


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=pipelines(), seed=st.integers(0, 9))
def test_an_order_found_is_faster_than_all_named_ones_and_a_job_takes_it_from_its_file(
    job: JobSpec, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    comparison = compare(laid_out(job))
    if not any(row.predicted and row.predicted.fits for row in comparison.rows):
        return
    order = search_compared(comparison, Limits(seconds=600, evaluations=300), seed).order
    if order is None:
        return
    path = tmp_path_factory.mktemp("orders") / "found.csv"
    path.write_text(order.csv)
    schedule = replace(order.job.schedule, skeleton=str(path))
    case = case_of(replace(order.job, schedule=schedule))
    simulation = simulate(case.program, case.costs)
    assert simulation.verdict.sound
    assert simulation.step_time_s == order.step_s
    for bound in simulation.verdict.bounds:
        budget = case.setup.budget_of(bound.rank)
        assert budget is not None and bound.total_bytes <= budget
    fitting = [row.predicted for row in comparison.rows if row.predicted and row.predicted.fits]
    assert all(order.gain_over(row.step_s) > 0 for row in fitting)


@pytest.mark.parametrize("name", ["ratrain", "megatron"])
def test_a_job_with_the_printed_settings_has_the_printed_step(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB.read_text().replace('"ratrain"', f'"{name}"'))
    asked = load_job(path)
    order = searched(asked).order
    assert order is not None
    file = tmp_path / "mine.csv"
    file.write_text(order.csv)
    case = case_of(load_job(path, settings_of(order, asked, file)))
    assert simulate(case.program, case.costs).step_time_s == order.step_s


@pytest.mark.slow
def test_the_command_line_prints_gains_reasons_memory_and_how_to_train(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    words = [str(JOB), "--search", "--evaluations", "60", "--save", str(file)]
    ran = CliRunner().invoke(command, words)
    assert ran.exit_code == 0, ran.output
    lines = ran.stdout.splitlines()
    assert max(len(line) for line in lines if "--set" not in line) <= 80
    for text in ("Search: ", "gain over it", "Why:", "Proved to fit", "schedule.skeleton="):
        assert text in ran.stdout
    body = json.loads(CliRunner().invoke(command, [*words, "--json"]).stdout)
    order = body["search"]["order"]
    named = {row["schedule"]: row for row in body["schedules"]}
    for gain in order["gains"]:
        step_s = named[gain["schedule"]]["step_time_s"]
        assert gain["gain_fraction"] == pytest.approx(1 - order["step_time_s"] / step_s)
    assert max(rank["bound_bytes"] for rank in order["memory"]) == order["bound_bytes"]
    assert file.read_text().startswith("0F0")


def test_a_named_order_that_cannot_run_with_the_passes_of_the_found_one_is_passed_over() -> None:
    asked = random_jobs.job("small-qwen", "a100-80g-dgx", 6, 12, 256, schedule="pe-zero")
    asked = replace(asked, layout=LayoutSpec(2, data=3, layers="balanced"))
    order = searched(asked, Limits(seconds=600, evaluations=150)).order
    assert order is not None
    assert order.same_passes is not None and order.gain_over(order.same_passes[1]) > 0


def test_a_search_leaves_no_order_behind_in_the_registry() -> None:
    before = set(SKELETONS)
    assert searched(load_job(JOB)).order is not None
    assert set(SKELETONS) == before


def test_a_reason_is_what_the_longest_chain_of_a_step_no_longer_waits_for() -> None:
    order = searched(load_job(JOB)).order
    assert order is not None
    chain, *_, bound = reasons(order)
    assert "of messages and" in chain and order.named.name in chain
    assert "no order of the same ops" in bound and "rank 3 computes" in bound  # it has the head


WRONG = {
    ("--save", "mine.csv"): "add --search",
    ("--evaluations", "5"): "add --search",
    ("--search", "--save", "mine.txt"): "mine.csv",
}


@pytest.mark.parametrize("words", WRONG)
def test_options_that_make_no_sense_are_refused_with_what_would(words: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as error:
        command.main([str(JOB), *words], standalone_mode=False)
    assert WRONG[words] in (error.value.fix or "")


@pytest.mark.parametrize(
    "words",
    [("--seconds", "nan"), ("--seconds", "0"), ("--evaluations", "--json"), ("--seed", "-1")],
)
def test_a_number_that_no_search_takes_is_refused_with_those_that_it_takes(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["ratrain", "schedules", str(JOB), "--search", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"ratrain schedules {words[0]}: " in message and "fix: give a" in message


def test_a_program_of_several_steps_is_not_searched() -> None:
    job = load_job(JOB)
    averaging = replace(job.schedule, sharding=0, average_every=2, passes=("backward-recovery",))
    compared = compare(laid_out(replace(job, schedule=averaging)))
    with pytest.raises(SpecError, match="several steps") as caught:
        search_compared(compared, FEW, 0)
    assert caught.value.place == f"{JOB} [schedule] average_every"
