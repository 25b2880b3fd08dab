"""A skeleton, a pass, a kind of op, a family, a device and a collective of somebody's own: the
files of docs/how-to/extending.md, each through text, verifier, bounds, simulator and planner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from extending_page import MODULES, files_of_page, write_files
from registered import declared_inside

from ratrain.cli.main import ratrain
from ratrain.cost.algorithms import ALGORITHMS, Group, half, of_messages
from ratrain.describe.cluster import Link
from ratrain.describe.job import JobSpec, LayoutSpec, ScheduleSpec
from ratrain.describe.optimizers import Step
from ratrain.describe.train import TrainSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import file_of_plan, parse_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.placement import place
from ratrain.plan.search.misfit import planned
from ratrain.plugins import EXTENSIONS
from ratrain.program.kind import Kind, Lane
from ratrain.program.settled import proof_of
from ratrain.program.skeletons import SKELETONS
from ratrain.program.text import read_any, read_text, write_text
from ratrain.program.tiers import HOST
from ratrain.program.verify import Rule, verify
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import simulate


@pytest.fixture
def page(tmp_path: Path) -> Generator[Path]:
    """The page's files in a folder, its modules imported."""
    folder = write_files(tmp_path / "page")
    with declared_inside(folder):
        for name in MODULES:
            import_module(name)
        yield folder


def job_of_page(folder: Path, **schedule: object) -> JobSpec:
    """The page's job with a schedule of nothing but what is given; several stages per rank where
    the skeleton is the page's."""
    job = load_job(folder / "mine.toml")
    if "skeleton" not in schedule:
        job = replace(job, layout=LayoutSpec(2, 2))
    return replace(job, schedule=ScheduleSpec(**{"dtype": "fp32", **schedule}))  # type: ignore[arg-type]


def goes_everywhere(job: JobSpec) -> Case:
    """Checks a job's program in all forms, and those of all its plans."""
    case = case_of(job)
    check_forms(case)
    search = planned(replace(job, layout=None))
    for tried in search.tried[:4]:
        of_plan = Case(tried.plan)
        assert verify(of_plan.program).sound
        assert tried.bound_bytes == max(b.total_bytes for b in verify(of_plan.program).bounds)
    text = write_plan(file_of_plan(search.best.plan))
    again = Case(plan_of_file(parse_plan(text, "plan.json"), "plan.json"))
    assert again.program == Case(search.best.plan).program
    assert again.job.schedule.collective == job.schedule.collective
    check_forms(again)
    return case


def check_forms(case: Case) -> None:
    """Text, verifier, bounds and simulator of a case agree."""
    program = case.program
    assert read_text(write_text(program)) == program
    short = read_any(write_text(case.proved.program))
    assert proof_of(short).verdict.bounds == case.proved.verdict.bounds
    verdict = verify(program)
    assert verdict.sound
    for tier in ("bounds", "lower_bounds"):
        proved, whole = getattr(case.proved.verdict, tier), getattr(verdict, tier)
        assert [b.by_family for b in proved] == [b.by_family for b in whole]
    simulation = simulate_proved(case.proved, case.costs)
    assert simulation.feasible
    assert simulation.step_time_s > 0
    peaks = {times.rank: times.peak_bytes for times in simulation.ranks}
    assert all(peaks[bound.rank] <= bound.total_bytes for bound in verdict.bounds)


def kinds_of(case: Case) -> set[str]:
    return {action.kind.name for lane in case.program.lanes.values() for action in lane}


def test_each_file_of_the_page_is_under_40_lines() -> None:
    files = files_of_page()
    assert {f"{name}.py" for name in MODULES} < set(files)
    for name, text in files.items():
        lines = [line for line in text.splitlines() if line.strip()]
        assert len(lines) < 40, name


@pytest.mark.parametrize("virtual", [1, 2, 4])
def test_a_skeleton_goes_everywhere_with_any_number_of_chunks(page: Path, virtual: int) -> None:
    job = job_of_page(page, skeleton="waves")
    job = replace(
        job,
        layout=LayoutSpec(1 if virtual == 4 else 2, 4 if virtual == 4 else 2, virtual=virtual),
    )
    case = goes_everywhere(job)
    assert case.program.passes[0] == "waves"


def test_a_skeleton_that_repeats_is_proved_by_a_short_program(page: Path) -> None:
    job = job_of_page(page, skeleton="waves")
    job = replace(job, batch=replace(job.batch, sequences=2 * 2000))
    case = case_of(job)
    assert case.proved.program_ops > 10 * len(case.proved.short.table)
    simulation = simulate_proved(case.proved, case.costs)
    whole = verify(case.program)
    assert [b.total_bytes for b in case.proved.verdict.bounds] == [
        b.total_bytes for b in whole.bounds
    ]
    assert simulation.step_time_s == pytest.approx(
        simulate(case.program, case.costs, verdict=whole).step_time_s, rel=1e-5
    )


def test_a_wave_holds_less_than_a_breadth_first_pass(page: Path) -> None:
    def bound(skeleton: str) -> int:
        job = job_of_page(page, skeleton=skeleton, recovery="everywhere")
        job = replace(job, batch=replace(job.batch, sequences=64))
        return max(b.total_bytes for b in case_of(job).proved.verdict.bounds)

    assert bound("waves") < bound("breadth-first")


def test_a_pass_goes_everywhere_and_moves_bytes_to_the_tier_below(page: Path) -> None:
    passes = ("forward-recovery", "layerwise-state-pipeline", "update-prefetch")
    job = job_of_page(page, skeleton="breadth-first", recovery="everywhere", passes=passes)
    job = replace(job, layout=LayoutSpec(2, 2), batch=replace(job.batch, sequences=64))
    away = replace(job, schedule=replace(job.schedule, passes=(*passes, "offload-most")))
    kept, case = case_of(job), goes_everywhere(away)
    assert {"OffloadInput", "FetchInput"} <= kinds_of(case)
    here, before = case.proved.verdict, kept.proved.verdict
    assert not before.lower_bounds
    assert all("input_host" in b.by_family for b in here.lower_bounds if b.total_bytes)
    assert here.bounds[0].total_bytes < before.bounds[0].total_bytes


def test_a_kind_of_op_and_a_family_of_states_go_everywhere(page: Path) -> None:
    case = goes_everywhere(job_of_page(page, passes=("weight-average",)))
    assert "AddToAverage" in kinds_of(case)
    averages = [b.by_family["average"] for b in case.proved.verdict.lower_bounds]
    program = case.program
    optimizer = [b.by_family["optimizer"] for b in case.proved.verdict.bounds]
    assert [3 * size for size in averages] == pytest.approx(optimizer, rel=1e-3)
    assert {b.tier for b in case.proved.verdict.lower_bounds} == {HOST}
    last_update = program.lane(0, Lane.UPDATE)[-1]
    early = {
        key: tuple(a for a in actions if a.kind.name != "AddToAverage")
        for key, actions in program.lanes.items()
    }
    findings = verify(replace(program, lanes=early)).findings
    assert {finding.rule for finding in findings} == {Rule.READ_BEFORE_WRITE}
    assert all("Save" in each.message for each in findings)  # it is nobody else's need
    own = Lane.named("AVERAGING")
    twice = {**program.lanes, (0, own): program.lane(0, own) * 2}
    findings = verify(replace(program, lanes=twice)).findings
    assert Rule.WRITTEN_TWICE in {finding.rule for finding in findings}
    assert last_update.kind is Kind.UpdateShard


def test_a_declared_cost_is_what_the_simulator_takes(page: Path) -> None:
    case = case_of(job_of_page(page, passes=("weight-average",)))
    kind = next(k for k in case.costs.work if k.name == "AddToAverage")
    units = [unit for member in case.program.setup.members for unit in member.units]
    expected = [unit.optimizer_bytes / 3 / 10e9 for unit in units]
    assert case.costs.work[kind].fixed_s.tolist() == pytest.approx(expected)


def test_programs_without_the_pass_have_no_byte_of_its_family(page: Path) -> None:
    case = case_of(job_of_page(page))
    assert not case.proved.verdict.lower_bounds
    assert "notes" not in write_text(case.program)


def test_a_device_is_planned_for_by_its_file_alone(page: Path) -> None:
    case = goes_everywhere(job_of_page(page))
    assert {device.kind.name for device in case.job.cluster.members()} == {"small-accelerator"}
    assert case.proved.short.setup.tier == "HBM"


@pytest.mark.slow
def test_a_collective_goes_everywhere_and_is_what_the_simulator_takes(page: Path) -> None:
    case = goes_everywhere(job_of_page(page, collective="halving"))
    group = case.plan.placement.data_group(0)
    halved = of_messages(ALGORITHMS["halving"], 1e6, group)
    assert half("halving", 1e6, group) == halved
    assert case.plan.placement.layout.data == 2


@pytest.mark.usefixtures("page")
def test_recursive_halving_beats_a_ring_where_latency_counts() -> None:
    link = Link(1e-3, 1e9, "a test")
    group = Group(tuple(range(16)), link, link, link)
    small, large = half("halving", 1e3, group), half("halving", 1e9, group)
    assert small.latency_s == pytest.approx(4e-3)  # log2 16 rounds
    assert small.alone_s(1e9) < half("ring", 1e3, group).alone_s(1e9) / 3
    assert large.volume_bytes == pytest.approx(half("ring", 1e9, group).volume_bytes)


@pytest.mark.slow
def test_all_of_the_page_in_one_job_through_the_command_line(tmp_path: Path) -> None:
    folder = write_files(tmp_path)
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        EXTENSIONS: ",".join(MODULES),
    }
    script = "from ratrain.cli.main import main; main()"
    command = [sys.executable, "-c", script, "simulate", str(folder / "mine.toml")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "tiny-llama on 4 x here" in run.stdout
    del environment[EXTENSIONS]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "waves" in run.stderr


@pytest.mark.parametrize("name", ["no_such_module", "..no_such_module", "no_such_module/x"])
def test_a_module_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(EXTENSIONS, f"json, {name}")
    result = CliRunner().invoke(ratrain, ["models"])
    assert isinstance(result.exception, SpecError)
    assert "no_such_module" in str(result.exception)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def x(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("\n1 / 0", "ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("raise SystemExit(5)", "SystemExit: 5 (broken.py, line 1)"),
    ],
)
def test_a_broken_module_is_one_error_that_names_its_line(
    tmp_path: Path, code: str, reason: str
) -> None:
    (tmp_path / "broken.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), EXTENSIONS: "broken"}
    script = "from ratrain.cli.main import main; main()"
    command = [sys.executable, "-c", script, "models"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and run.stdout == "" and "Traceback" not in run.stderr
    assert reason in run.stderr and f"take broken out of {EXTENSIONS}" in run.stderr


@pytest.mark.usefixtures("page")
def test_a_name_is_declared_once() -> None:
    for name in (*MODULES, "average_family"):
        sys.modules.pop(name, None)
    for name in ("waves", "offload_most", "average_family", "halving"):
        with pytest.raises((ProgramError, SpecError), match="twice"):
            import_module(name)


def test_what_was_declared_is_forgotten(tmp_path: Path) -> None:
    before = list(SKELETONS), list(Kind)
    with declared_inside(write_files(tmp_path)):
        for name in MODULES:
            import_module(name)
        assert "waves" in SKELETONS
        assert Kind.has("AddToAverage")
    assert (list(SKELETONS), list(Kind)) == before
    assert "waves" not in sys.modules


def test_unknown_collectives_name_the_nearest(page: Path) -> None:
    with pytest.raises(SpecError, match='did you mean "halving"'):
        case_of(job_of_page(page, collective="halvin"))


def test_the_group_of_a_stage_knows_hosts_and_links(page: Path) -> None:
    job = replace(job_of_page(page), layout=LayoutSpec(1, 4))
    group = place(job, LayoutSpec(1, 4)).data_group(0)
    assert group.hosts == (0, 0, 1, 1)
    assert group.sharing == 1
    assert (group.inside.bandwidth_bytes_per_s, group.across.bandwidth_bytes_per_s) == (50e9, 125e6)


def test_an_optimizer_is_in_the_bill_and_updates_as_torch_s(page: Path) -> None:
    job = load_job(page / "mine.toml")
    assert job.train.optimizer == "adamax" and job.train.keys.beta2 == 0.999
    held = [unit.optimizer_bytes for m in case_of(job).program.setup.members for unit in m.units]
    usual = replace(job, train=TrainSpec(optimizer="sgd"))
    half = [unit.optimizer_bytes for m in case_of(usual).program.setup.members for unit in m.units]
    assert held == [2 * size_bytes for size_bytes in half]
    weights, leaf = torch.ones(64), torch.nn.Parameter(torch.ones(64))
    states = tuple(state.hold(torch.zeros(64), ()) for state in job.train.rule.states)
    theirs = torch.optim.Adamax([leaf], lr=1e-2)
    for number in range(3):
        leaf.grad = torch.randn(64)
        step = Step(rate=1e-2, updates=number, weight_decay=0.0)
        job.train.rule.update(weights, leaf.grad.clone(), states, job.train.keys, step)
        theirs.step()
    torch.testing.assert_close(weights, leaf.detach())


@pytest.mark.slow
def test_what_the_page_adds_trains_through_the_command_line(tmp_path: Path) -> None:
    folder = write_files(tmp_path)
    (folder / "text.txt").write_text("to be or not to be, that is the question. " * 400)
    further = '\n[data]\nfiles = ["text.txt"]\n\n[checkpoint]\nevery = 1\n'
    job = folder / "mine.toml"
    job.write_text(job.read_text() + further)
    environment = {**os.environ, "PYTHONPATH": str(folder), EXTENSIONS: ",".join(MODULES)}
    script = "from ratrain.cli.main import main; main()"

    def trained(*more: str) -> dict[str, Any]:
        command = [sys.executable, "-c", script, "train", str(job), "--json", "--emulate", *more]
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=folder
        )
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    assert trained("--run", "first")["steps"]["done"] == 3
    other = ("layout.data=1", "layout.pipeline=4", "layout.virtual=1", "cluster.devices=4")
    plain = (*other, "schedule.skeleton=1f1b", "schedule.passes=[]")
    said = [word for each in plain for word in ("--set", each)]
    trained("--from", "first@2", "--steps", "3", "--run", "again", *said)
    losses = [
        [json.loads(line)["loss"] for line in (folder / run / "metrics.jsonl").open()]
        for run in ("first", "again")
    ]
    assert losses[1] == pytest.approx(losses[0][2:], rel=1e-5)
