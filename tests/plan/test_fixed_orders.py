"""Compute orders out of a CSV file: planned, proved and simulated like those of the registry."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from registered import declared_inside

from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import file_of_plan, load_plan, write_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.orders.board import Board
from ratrain.plan.search.layouts import search_layouts
from ratrain.program.actions import Action
from ratrain.program.kind import Lane
from ratrain.program.pipelining.csv import write_csv
from ratrain.program.program import Program
from ratrain.simulate.simulate import simulate


@pytest.fixture(autouse=True)
def forgotten() -> Generator[None]:
    """Orders that a test reads are unknown after it."""
    with declared_inside():
        yield


JOB = Path(__file__).parents[2] / "examples" / "small.toml"


def job_of(skeleton: str, layout: LayoutSpec) -> JobSpec:
    job = load_job(JOB)
    schedule = replace(job.schedule, skeleton=skeleton, recovery="auto")
    return replace(job, layout=layout, schedule=schedule)


def computed(program: Program) -> dict[int, list[Action]]:
    """What each rank computes, in order."""
    return {
        rank: list(actions)
        for (rank, lane), actions in program.lanes.items()
        if lane is Lane.COMPUTE
    }


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("1f1b", LayoutSpec(4)),
        ("gpipe", LayoutSpec(4)),
        ("zb-h1", LayoutSpec(4)),
        ("1f1b", LayoutSpec(2, data=2)),
        ("interleaved", LayoutSpec(2, data=2, virtual=2)),
        ("breadth-first", LayoutSpec(2, data=2, virtual=2)),
    ],
)
def test_an_order_written_as_csv_is_the_order_that_is_read_as_a_skeleton(
    name: str, layout: LayoutSpec, tmp_path: Path
) -> None:
    named = case_of(job_of(name, layout))
    path = tmp_path / "order.csv"
    path.write_text(write_csv(named.program))
    read = case_of(job_of(str(path), layout))
    assert computed(read.program) == computed(named.program)
    assert read.proved.verdict.sound
    times = [simulate(case.program, case.costs).step_time_s for case in (named, read)]
    assert times[1] == pytest.approx(times[0], rel=0.05)  # its gradients have places of their own


def test_the_planner_keeps_to_the_degrees_of_a_fixed_order_and_a_plan_names_its_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "order.csv"
    path.write_text(write_csv(case_of(job_of("zb-h1", LayoutSpec(2, data=2))).program))
    best = search_layouts(replace(job_of(str(path), LayoutSpec(4)), layout=None)).best.plan
    assert (best.layout.pipeline, best.layout.data, best.layout.virtual) == (2, 2, 1)
    plan = tmp_path / "plan.json"
    plan.write_text(write_plan(file_of_plan(best)))
    again = Case(plan_of_file(load_plan(plan), str(plan)))
    assert computed(again.program) == computed(Case(best).program)


WRONG = {
    "0F0,0F1,0B1,0B0": "out of order",
    "0F0,0F0,0B0,0B1": "not for each of 2 once",
    "0F0,0F1,0B0": "not for each of 2 once",
    "0F0,0B0,0I1,0F1": "not for each of 2 once",
    "0F0,0X0": "does not name a kind of action",
    "0.0F0,0.1F0,0.1B0": "has no 0.0B0",
    "0.0F0,0.0F0,0.0B0": "is there twice",
    "0.0F0,0.0F1,0.0B1,0.0B0": "out of order",
    "0.0F0,0.0X0": "is not an action",
    "0.0F0,0.0B": "does not name a micro-batch",
    "0.0F0,0.0B0,0.0GradSync0": "names a micro-batch",
}


@pytest.mark.parametrize("row", WRONG)
def test_an_order_that_cannot_be_run_is_refused_with_its_row(row: str, tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    path.write_text(row + "\n")
    with pytest.raises(SpecError, match=WRONG[row]) as error:
        case_of(job_of(str(path), LayoutSpec(1)))
    assert error.value.fix
    assert "row 1" in str(error.value)


def test_an_order_of_other_degrees_names_those_that_it_is_for(tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n")
    with pytest.raises(SpecError, match="for 2 ranks and 1 micro-batches, not for 4 ranks and 8"):
        case_of(job_of(str(path), LayoutSpec(4)))


def test_cells_with_and_without_a_unit_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    path.write_text("0.0F0,0B0\n")
    with pytest.raises(SpecError, match="some cells of compute name a unit") as error:
        case_of(job_of(str(path), LayoutSpec(1)))
    assert "0.3F0" in (error.value.fix or "")


WRONG_FOR_THE_JOB = {
    "0.0F0,0.1F0,0.1B0,0.0B0": "names 2 units of stage 0, which has 10",
    "0F0,0B0,0.3PrefetchW,0.1PrefetchW": "gather lane of rank 0 has other ops than the job's",
}


@pytest.mark.parametrize("row", WRONG_FOR_THE_JOB)
def test_an_order_of_units_or_transfers_that_the_job_does_not_have_is_refused(
    row: str, tmp_path: Path
) -> None:
    path = tmp_path / "order.csv"
    path.write_text(row + "\n")
    job = job_of(str(path), LayoutSpec(1, data=4))
    with pytest.raises(ProgramError, match=WRONG_FOR_THE_JOB[row]) as error:
        case_of(replace(job, batch=Batch(4)))
    assert error.value.fix and "[schedule] skeleton" in str(error.value)


def test_an_order_with_turns_of_gathers_is_written_and_read_back(tmp_path: Path) -> None:
    board = Board(case_of(job_of("1f1b", LayoutSpec(2, data=2))), split=False)
    proved = board.proved(board.first)
    assert proved is not None
    *others, gathers = proved.orders
    path = tmp_path / "order.csv"
    path.write_text(board.csv((*others, gathers[::-1])))
    program = case_of(job_of(str(path), LayoutSpec(2, data=2))).program
    turns = [(action.kind, action.stage, action.unit) for action in program.lane(1, Lane.GATHER)]
    assert turns == list(gathers[::-1])
    assert "transfers-in-turn" in program.passes


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none.csv: .*No such file"):
        case_of(job_of(str(tmp_path / "none.csv"), LayoutSpec(4)))


@pytest.mark.parametrize(
    ("layout", "key"), [(LayoutSpec(4, data=1), "pipeline"), (LayoutSpec(2, data=2), "virtual")]
)
def test_an_order_for_other_degrees_names_the_degree_and_what_to_write(
    tmp_path: Path, layout: LayoutSpec, key: str
) -> None:
    path = tmp_path / "order.csv"
    path.write_text(
        write_csv(case_of(job_of("breadth-first", LayoutSpec(2, 2, virtual=2))).program)
    )
    with pytest.raises(SpecError) as caught:
        case_of(job_of(str(path), layout))
    assert caught.value.place.endswith(f"[layout] {key}")
    assert caught.value.fix == "use pipeline = 2 and virtual = 2"
