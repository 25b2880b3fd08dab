"""Any job trains, or is refused before its ranks start. `make soak` runs many more of these."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_jobs import MOST_PROCESSES, DrawnJob, draw, run_job
from drawn_replans import draw_replan, run_replan
from drawn_unequal import MOST_RANKS, draw_unequal
from runs_made import write_job, write_plan, write_text

from ratrain.errors import RatrainError
from ratrain.program.strategies import STRATEGIES
from ratrain.runtime.run.prepare import RunRequest, prepare_run

QUICK = 30


def test_drawn_jobs_have_every_schedule_and_every_degree_up_to_seven() -> None:
    settings = [draw(seed).setting for seed in range(1000)]
    assert {setting.name for setting in settings} == set(STRATEGIES)
    for degree in ("pipeline", "data", "tensor"):
        assert {getattr(setting, degree) for setting in settings} == set(range(1, 8))
    assert max(setting.world_size for setting in settings) == MOST_PROCESSES


@pytest.mark.slow
def test_a_drawn_job_is_prepared_or_refused_with_its_place_and_a_fix(tmp_path: Path) -> None:
    prepared = 0
    for seed in range(QUICK):
        setting = replace(draw(seed).setting, files=("text.txt",))
        try:
            run = prepare_run(RunRequest(write_job(tmp_path / str(seed), setting)))
        except RatrainError as error:
            assert error.place and error.fix, f"{seed}: {error}"
            continue
        prepared += 1
        assert run.world_size <= MOST_PROCESSES
    assert prepared > QUICK / 2


@pytest.mark.slow
def test_a_drawn_unequal_job_is_prepared_or_refused_with_its_place_and_a_fix(
    tmp_path: Path,
) -> None:
    write_text(tmp_path / "text.txt")
    prepared = 0
    for seed in range(2 * QUICK):
        setting = replace(draw_unequal(seed).setting, files=("../text.txt",))
        folder = tmp_path / str(seed)
        job, plan = write_job(folder, setting), write_plan(folder, setting)
        try:
            run = prepare_run(RunRequest(job, plan_path=plan))
        except RatrainError as error:
            assert error.place and error.fix, f"{seed}: {error}"
            continue
        prepared += 1
        assert 2 <= run.world_size <= MOST_RANKS
    assert prepared > QUICK


RUN: dict[str, Callable[[DrawnJob], bool]] = {
    "three replicas": lambda drawn: drawn.setting.data == 3 and drawn.setting.world_size == 3,
    "seven replicas": lambda drawn: drawn.setting.data == 7,
    "three ranks share each layer": lambda drawn: (
        drawn.setting.tensor == 3 and drawn.setting.world_size == 3
    ),
    "planned, and a rank is killed": lambda drawn: (
        drawn.setting.planned and drawn.cut == "kill" and drawn.setting.world_size == 4
    ),
    "five replicas, then another layout": lambda drawn: (
        drawn.setting.data == 5 and drawn.moved is not None
    ),
}


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", RUN)
def test_a_drawn_job_trains_and_resumes_with_the_numbers_of_an_uninterrupted_run(
    case: str, tmp_path: Path
) -> None:
    for seed in itertools.count():
        drawn = draw(seed)
        if not RUN[case](drawn):
            continue
        folder = tmp_path / str(seed)
        folder.mkdir()
        if not run_job(drawn, folder).refusal:
            return


REPLANS = {"the same sums": 0, "from stages that differ": 1, "to stages that differ": 2}


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", REPLANS.values(), ids=REPLANS)
def test_a_drawn_run_goes_on_with_another_plan_and_the_losses_of_one_left_alone(
    first: int, tmp_path: Path
) -> None:
    for seed in itertools.count(first, 3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if not run_replan(draw_replan(seed), folder).refusal:
            return
