"""One job, one program: what `program`, `simulate` and the job's plan file build has equal text."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from drawn_jobs import draw
from runs_made import Setting, write_job

from ratrain.cli.main import ratrain
from ratrain.errors import RatrainError
from ratrain.program.skeletons import SKELETONS
from ratrain.program.text import write_text
from ratrain.simulate import long

QUICK, BLOCK = 5, 25
JOBS = int(os.environ.get("RATRAIN_DRAWN_JOBS", "150"))
"""2,000 take seven minutes."""
EVERY_SKELETON = tuple(SKELETONS)
FURTHER = ("offload-inputs", "gather-once", "backward-recovery", "forward-recovery")


def drawn(seed: int) -> Setting:
    """A random job, sometimes with a skeleton and passes of its own, with data or without."""
    dice = random.Random(-seed)
    setting = draw(seed).setting
    if dice.random() < 0.4:
        skeleton = dice.choice(EVERY_SKELETON)
        virtual = setting.virtual if SKELETONS[skeleton].chunks else 1
        setting = replace(setting, skeleton=skeleton, virtual=virtual)
    if dice.random() < 0.3:
        passes = tuple(name for name in FURTHER if dice.random() < 0.4)
        setting = replace(setting, passes=passes, without=())
    return replace(setting, files=("text.txt",) if dice.random() < 0.5 else ())


def asked(*words: object) -> Result:
    return CliRunner().invoke(ratrain, [str(word) for word in words])


def program_text(file: Path) -> str:
    """What `ratrain program` writes of a job or plan."""
    written = file.parent / "written.program"
    result = asked("program", file, "--form", "text", "-o", written)
    if result.exception is not None:
        raise result.exception
    return written.read_text()


class Simulated:
    """Keeps the program that `ratrain simulate` simulated last."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._simulate = long.simulate_proved
        patch.setattr(long, "simulate_proved", self)
        self.text = ""

    def __call__(self, proved: Any, costs: Any, **options: Any) -> Any:
        self.text = write_text(proved.program)
        simulation = self._simulate(proved, costs, **options)
        assert write_text(simulation.program) == self.text
        return simulation


def check(setting: Setting, folder: Path, simulated: Simulated) -> tuple[bool, bool]:
    """Whether the job could be laid out as it says, and planned."""
    as_laid_out = write_job(folder, replace(setting, planned=False))
    laid_out = _same(as_laid_out, simulated)
    planned = write_job(folder / "planned", replace(setting, planned=True))
    plan = folder / "planned" / "plan.json"
    result = asked("plan", planned, "-o", plan)
    if isinstance(result.exception, RatrainError):
        assert result.exception.place
        assert result.exception.fix
        return laid_out, False
    assert result.exception is None
    text = program_text(plan)
    if "replicas" not in json.loads(plan.read_text()):  # a job alone never has unlike ones
        assert program_text(planned) == text
    assert asked("simulate", plan, "--steps", 2).exit_code == 0
    assert simulated.text == text
    return laid_out, True


def _same(job: Path, simulated: Simulated) -> bool:
    """Whether the job has a program; then it is the one that is simulated."""
    simulated.text = ""
    result = asked("simulate", job, "--steps", 2)
    try:
        text = program_text(job)
    except RatrainError as error:
        assert str(error) == str(result.exception)
        return False
    assert simulated.text == text
    if isinstance(result.exception, RatrainError):
        assert "deadlocks after" in str(result.exception)
        assert "Deadlock" in asked("verify", job).output
    return True


def check_all(seeds: range, folder: Path, patch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(patch)
    outcomes = [check(drawn(seed), folder / str(seed), simulated) for seed in seeds]
    laid_out, planned = (sum(column) for column in zip(*outcomes, strict=True))
    assert laid_out > len(seeds) / 2
    assert planned > len(seeds) / 2


def test_program_simulate_and_the_plan_file_build_one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_all(range(QUICK), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("first", range(QUICK, JOBS, BLOCK))
def test_program_simulate_and_the_plan_file_build_one_program_for_many_jobs(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_all(range(first, first + BLOCK), tmp_path, monkeypatch)
