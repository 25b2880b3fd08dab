"""What a page is filled with: the simulator's and the run's own numbers, nothing lost unsaid."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from costs_made import random_costs
from hypothesis import given, settings
from hypothesis import strategies as st
from made import small
from simulated_runs import SLOWER, Size, simulated_run

from ratrain.checkpoint.best import Best, write_best
from ratrain.checkpoint.folder import step_name
from ratrain.cli.terminal.jobs import case_of_file
from ratrain.errors import SpecError
from ratrain.plan.layout.jobs import load_job_to_plan
from ratrain.plan.search.misfit import misfits, planned
from ratrain.plan.words import NEAR
from ratrain.program.kind import Kind
from ratrain.program.verify import verify
from ratrain.report.contents import Contents
from ratrain.report.data import data_of
from ratrain.report.facts.candidates import advice_of
from ratrain.report.facts.memory import op_times, thinned
from ratrain.report.facts.ops import Ops
from ratrain.report.groups import MEMORY_GROUPS, OTHER, group_of
from ratrain.report.page import page
from ratrain.report.read import contents_of, page_path
from ratrain.report.thin import shown_steps, thinned_steps
from ratrain.runtime.rank.metrics import validation_row
from ratrain.runtime.rank.validation import Validated
from ratrain.runtime.run_folder import RunFolder
from ratrain.simulate.simulate import simulate, timeline_of
from ratrain.timeline.compare import kind_of, one_step

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["ratrain", "zero3-heavy", "interleaved", "zb-h1", "gpipe"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return simulated_run(tmp_path_factory.mktemp("report") / "small", Size(data=2))


@pytest.fixture(scope="module")
def of_run(run: RunFolder) -> Contents:
    return contents_of(run.path)


@pytest.fixture(scope="module")
def of_job() -> Contents:
    return contents_of(EXAMPLES / "small.toml")


# ---- plans whose stages and replicas differ -----------------------------------------------


def test_replicas_that_differ_are_drawn_with_their_own_stages_on_their_own_devices() -> None:
    contents = contents_of(EXAMPLES / "unequal-replicas.json")
    assert contents.plan is not None
    cards = [[(c.devices, c.layer_count) for c in chain.cards] for chain in contents.plan.chains]
    assert cards == [
        [("device 0", 8)],
        [("device 1", 5), ("device 2", 2), ("device 3", 1)],
    ]
    assert [chain.share for chain in contents.plan.chains] == [
        "Replica 0: 9 micro-batches of 1, 37.5 % of the sequences",
        "Replica 1: 15 micro-batches of 1, 62.5 % of the sequences",
    ]
    assert [len(chain.links) for chain in contents.plan.chains] == [0, 2]
    assert not contents.plan.idle
    assert contents.advice is not None and len(contents.advice.kinds) == 2
    assert "rank 0, the fullest" in contents.verdict.text


def test_devices_without_a_stage_are_drawn_as_idle(tmp_path: Path) -> None:
    table = json.loads((EXAMPLES / "unequal-replicas.json").read_text())
    only = table["replicas"][0] | {"micro_batches": 24}
    path = tmp_path / "idle.json"
    path.write_text(json.dumps(table | {"replicas": [only]}))
    contents = contents_of(path)
    assert contents.plan is not None
    idle = [(each.device, each.devices, each.count) for each in contents.plan.idle]
    assert idle == [("fast-rank", "device 1", 1), ("slow-rank", "devices 2-3", 2)]
    assert ("Devices", "1 of 4") in [(tile.label, tile.value) for tile in contents.tiles]
    assert "no stage is placed here" in page(contents)


# ---- the critical path ------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_critical_path_is_a_chain_that_ends_with_the_last_backward(
    name: str, seed: int
) -> None:
    program = small(name)
    simulation = simulate(program, random_costs(program.table, seed))
    timeline = timeline_of(simulation)
    step = one_step(timeline, max(span.step for span in timeline.spans))
    ops, run = Ops(program.table), simulation.run
    times = op_times(ops, run)
    hops = ops.critical_path(times, times.last)
    last = max(s.end_s for s in step.spans if kind_of(s.word) in ("B", "W"))
    assert hops[-1].end_s == pytest.approx(last)
    assert hops[-1].kind in (Kind.B.name, Kind.W.name)
    for before, after in pairwise(hops):
        assert after.start_s >= before.end_s - 1e-9
    assert sum(hop.ops for hop in hops) <= len(step.spans)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_op_of_the_critical_path_was_let_begin_by_the_one_before(seed: int) -> None:
    """The simulator notes what let each op begin; of causes at one moment either may be named."""
    program = small("ratrain")
    simulation = simulate(program, random_costs(program.table, seed))
    table, run = program.table, simulation.run
    n, first = len(table), simulation.window.period * len(table)
    ops = Ops(table)
    path = ops.critical_ops(op_times(ops, run), simulation.window.period)
    assert len(path) > 10
    for before, op in pairwise(path):
        cause = int(run.cause[first + op])
        if table.group[op] >= 0 and table.group[cause % n] == table.group[op]:
            cause = int(run.cause[cause])  # the other end of a message: what it waited for
        assert run.end_s[cause] == pytest.approx(run.end_s[first + before])


# ---- reduction --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1000)), min_size=1, max_size=400),
    st.integers(1, 30),
)
def test_thinned_memory_keeps_its_ends_and_its_highest_and_lowest_point(
    points: list[tuple[float, int]], stretches: int
) -> None:
    time_s = np.sort(np.array([time for time, _ in points]))
    value = np.array([size for _, size in points])
    kept = thinned(time_s, value, stretches)
    assert kept[0] == 0
    assert kept[-1] == len(points) - 1
    assert value[kept].max() == value.max()
    assert value[kept].min() == value.min()
    assert len(kept) <= max(2 * stretches + 2, 2 * stretches)
    assert list(kept) == sorted(set(kept.tolist()))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-10, 10) | st.just(math.nan), min_size=1, max_size=300), st.integers(4, 40)
)
def test_thinned_steps_keep_extremes_and_the_first_step_that_is_no_number(
    values: list[float], most: int
) -> None:
    kept = thinned_steps(values, most)
    finite = [value for value in values if math.isfinite(value)]
    shown = [values[at] for at in kept]
    assert kept == sorted(set(kept))
    assert {0, len(values) - 1} <= set(kept)
    if finite:
        assert min(finite) in shown
        assert max(finite) in shown
    broken = [at for at, value in enumerate(values) if not math.isfinite(value)]
    if broken:
        assert broken[0] in kept
    assert len(kept) <= max(most, 3 * (most // 2) + 2)


# ---- a run ------------------------------------------------------------------------------


def test_a_run_is_told_by_its_own_report(run: RunFolder, of_run: Contents) -> None:
    report = json.loads(run.report.read_text())
    assert of_run.times is not None
    assert of_run.times.step_measured_s == report["step_time_s"]["measured"]
    assert of_run.times.step_predicted_s == report["step_time_s"]["predicted"]
    kinds = {k["kind"]: (k["predicted_s"], k["measured_s"]) for k in report["kinds"]}
    assert {k.kind: (k.predicted_s, k.measured_s) for k in of_run.times.kinds} == kinds
    assert [row.bound_bytes for row in of_run.memory[0].rows] == [
        row["bound_bytes"] for row in report["memory"]
    ]
    assert of_run.progress is not None
    assert of_run.progress.loss[-1] == report["loss"]["last"]


def test_both_panels_of_a_run_have_every_op_and_the_measured_one_is_slower(
    run: RunFolder, of_run: Contents
) -> None:
    predicted, measured = of_run.panels
    assert (predicted.title, measured.title) == ("predicted", "measured")
    assert predicted.ops == measured.ops == len(run.read_program().table)
    assert measured.length_s == pytest.approx(SLOWER * predicted.length_s, rel=1e-3)
    assert all(box.word for row in predicted.rows for box in row.compute)
    assert [hop.last for hop in predicted.critical] == [hop.last for hop in measured.critical]


def test_memory_over_a_step_peaks_where_the_ledger_says(run: RunFolder, of_run: Contents) -> None:
    bounds = {bound.rank: bound.total_bytes for bound in verify(run.read_program()).bounds}
    curves = {(curve.source, curve.rank): curve for curve in of_run.memory[0].curves}
    assert set(curves) == {(s, r) for s in ("predicted", "measured") for r in bounds}
    for (_, rank), curve in curves.items():
        totals = [sum(sizes) for sizes in zip(*curve.groups.values(), strict=True)]
        assert 0 < max(totals) <= bounds[rank]
        assert curve.time_s[0] == 0


def test_a_stopped_run_shows_its_prediction_and_says_what_is_missing(tmp_path: Path) -> None:
    contents = contents_of(simulated_run(tmp_path / "stopped", Size(), done=7).path)
    assert contents.verdict.tone == "plain"
    assert "7 of 40 steps" in contents.verdict.text
    assert [panel.title for panel in contents.panels] == ["predicted"]
    assert any("No op was recorded" in line for line in contents.left_out)


def test_a_loss_that_is_no_number_is_the_verdict(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "broken", Size(steps=12))
    lines = run.metrics.read_text().splitlines()
    body = {**json.loads(lines[5]), "loss": math.nan}
    run.metrics.write_text("\n".join([*lines[:5], json.dumps(body), *lines[6:]]) + "\n")
    contents = contents_of(run.path)
    assert contents.verdict.tone == "bad"
    assert "not a number from step 6" in contents.verdict.text
    assert contents.progress is not None
    assert contents.progress.loss[5] is None


def test_a_run_whose_job_file_is_gone_does_without_devices_and_says_so(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "moved", Size())
    (tmp_path / "moved" / "cluster.toml").unlink()
    contents = contents_of(run.path)
    assert contents.candidates is None
    assert contents.plan is not None
    assert contents.plan.chains[0].cards[0].device == ""
    assert any("because of the job file" in line for line in contents.left_out)


def test_validation_is_a_curve_and_the_best_checkpoint_is_marked(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "validated", Size(steps=12))
    losses = {4: 3.5, 8: 2.5, 12: 3.0}
    with run.metrics.open("a") as file:
        for step, loss in losses.items():
            file.write(json.dumps(validation_row(step, Validated(loss, 100))) + "\n")
            (run.path / "checkpoints" / step_name(step)).mkdir(parents=True)
    write_best(run.path, Best(8, losses[8]))
    contents = contents_of(run.path)
    assert contents.progress is not None
    curve = zip(contents.progress.step, contents.progress.validation, strict=True)
    assert {step: loss for step, loss in curve if loss is not None} == losses
    assert contents.checkpoints is not None
    assert {c.step: c.validation_loss for c in contents.checkpoints} == losses
    assert [c.step for c in contents.checkpoints if c.best] == [8]
    assert "best 2.5000 after step 8" in [tile.note for tile in contents.tiles]
    text = page(contents)
    assert "Validation loss</th>" in text
    assert text.count("the best so far") == 1


def test_of_many_validations_the_best_stays_in_the_curve() -> None:
    losses = [6.0 - step / 5000 for step in range(5000)]
    validations = {step: 2.0 + step / 5000 for step in range(0, 5000, 2)}
    kept = shown_steps(losses, {**validations, 2344: 1.0})
    assert {0, 2344, 4998, 4999} <= set(kept)
    assert len(kept) <= 4600
    assert shown_steps(losses[:40], {4: 3.0}) == list(range(40))


@pytest.mark.slow
def test_of_many_steps_the_spike_stays_and_the_rest_is_said(tmp_path: Path) -> None:
    contents = contents_of(simulated_run(tmp_path / "long", Size(steps=5000)).path)
    assert contents.progress is not None
    assert contents.progress.steps == 5000
    assert len(contents.progress.step) <= 3002
    assert 5000 // 3 + 1 in contents.progress.step
    assert any("Of 5,000 steps" in line for line in contents.left_out)


# ---- a job, a plan ----------------------------------------------------------------------


def test_a_job_shows_its_layout_first_among_all_that_were_simulated(of_job: Contents) -> None:
    assert of_job.candidates is not None
    chosen, *others = of_job.candidates.points
    assert chosen.kind == "chosen"
    assert chosen.step_s == of_job.times.step_predicted_s if of_job.times else False
    assert {point.kind for point in others} >= {"simulated"}
    drawn = sum(p.stands_for for p in others if p.kind in ("fits", "misfit"))
    assert drawn <= of_job.candidates.checked
    assert of_job.verdict.text.startswith("Fits: proven")


def test_a_plan_file_gives_the_same_step_as_its_search(tmp_path: Path) -> None:
    from ratrain.cli.main import ratrain

    plan = tmp_path / "plan.json"
    arguments = ["plan", str(EXAMPLES / "small.toml"), "-o", str(plan)]
    assert ratrain.main(arguments, standalone_mode=False) in (None, 0)
    contents = contents_of(plan)
    predicted = json.loads(plan.read_text())["predicted"]["step_time_s"]
    assert contents.times is not None
    assert contents.times.step_predicted_s == pytest.approx(predicted, rel=0.02)
    assert contents.verdict.tone == "good"


def test_a_job_that_does_not_fit_says_which_rank_and_by_how_much(tmp_path: Path) -> None:
    job = tmp_path / "tight.toml"
    text = (EXAMPLES / "small.toml").read_text()
    job.write_text(text.replace("[schedule]", '[schedule]\nmemory_budget = "150MB"'))
    contents = contents_of(job)
    assert contents.verdict.tone == "bad"
    assert "rank 3 can need" in contents.verdict.text
    assert "more than its budget of 150 MB" in contents.verdict.text


def test_a_layout_that_binds_is_told_of_once_and_a_faster_one_by_its_name(tmp_path: Path) -> None:
    job = tmp_path / "tight.toml"
    text = (EXAMPLES / "small.toml").read_text()
    job.write_text(text.replace("[schedule]", '[schedule]\nmemory_budget = "420MB"'))
    contents = contents_of(job)
    assert contents.advice is not None
    told = (contents.advice.binding, *contents.advice.ways)
    layouts = [line.removeprefix("memory: ").split(" would take")[0] for line in told]
    assert len(set(layouts)) == len(layouts) > 1
    assert "where saved activations take" in told[0]
    assert "it would fit with sharding level" in told[0]
    assert "Pipeline 1 x data 4, micro-batch 1 would take 4.79 s" in contents.verdict.text
    assert layouts[1].startswith("pipeline 1 x data 4, micro-batch 1, with sharding level 3")


def test_a_plan_that_is_slower_than_the_chosen_one_would_not_help() -> None:
    job = EXAMPLES / "quickstart.toml"
    case = case_of_file(job, overrides=("batch.sequences=8",))  # so it is faster than any below
    fast = simulate(case.program, case.costs)
    search = planned(load_job_to_plan(job))
    assert any(misfit.step_s > fast.step_time_s for misfit in misfits(search, NEAR))
    ways = advice_of(case.plan, fast, search).ways
    assert ways and all("% less" in way or way.startswith("no faster") for way in ways)


def test_a_page_uses_rank_for_the_plan_s_ranks_alone(of_run: Contents, of_job: Contents) -> None:
    (memory,) = of_run.memory
    assert [row.label for row in memory.rows] == [
        "process 0 (rank 0)",
        "process 1 (rank 0)",
        "process 2 (rank 1)",
        "process 3 (rank 1)",
    ]
    assert [row.label for row in of_job.memory[0].rows] == [f"rank {n}" for n in range(4)]


def test_an_axis_that_is_longer_than_its_step_is_explained() -> None:
    contents = contents_of(EXAMPLES / "unequal.toml")
    (panel,) = contents.panels
    assert panel.length_s > 0.75
    assert panel.note == (
        "a step takes 742 ms as simulated (drawn up to 829 ms: its last work goes on beside the "
        "next step)"
    )


def test_a_budget_far_above_every_layout_is_said_in_words(of_job: Contents) -> None:
    assert of_job.candidates is not None
    assert not of_job.candidates.budget_is_near
    assert data_of(of_job)["candidates"]["budget_bytes"] is None
    assert "the budget of 2\u00a0GB is far above the top of the picture" in page(of_job)
    near = replace(of_job.candidates, budget_bytes=10**9)
    assert data_of(replace(of_job, candidates=near))["candidates"]["budget_bytes"] == 10**9


@pytest.mark.parametrize("name", ["nothing.toml", "nothing.json", "notes.txt", "folder"])
def test_what_is_no_run_plan_or_job_is_one_message(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(SpecError) as caught:
        contents_of(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_values_of_a_job_cannot_be_set_for_what_is_no_job(run: RunFolder) -> None:
    from ratrain.cli.main import ratrain

    with pytest.raises(SpecError) as caught:
        ratrain.main(
            ["report", str(run.path), "--set", "train.steps=3"],
            standalone_mode=False,
        )
    assert caught.value.fix == "leave --set out"


def test_a_run_keeps_its_page_and_a_job_leaves_it_where_it_was_asked_for(tmp_path: Path) -> None:
    assert page_path(tmp_path) == tmp_path / "report.html"
    assert page_path(tmp_path / "job.toml") == Path("job-report.html")


def test_every_family_of_states_has_a_group() -> None:
    for name in NAMES:
        for family in small(name).table.states.families:
            assert group_of(family.name) != OTHER, family.name
    assert len({group.key for group in MEMORY_GROUPS}) == len(MEMORY_GROUPS)
