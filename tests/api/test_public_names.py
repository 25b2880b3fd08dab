"""The names that `import ratrain` offers, and the values that their functions return."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

import ratrain
from ratrain.errors import Infeasible, SpecError

SMALL = Path(__file__).parents[2] / "examples" / "small.toml"


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_ratrain_imports_no_room_nor_any_library() -> None:
    code = "import sys, ratrain; print(*(m for m in sys.modules if m.startswith('ratrain')));"
    code += "print({'numpy', 'torch', 'rich', 'click', 'inspect'} & set(sys.modules) or '-')"
    assert in_new_process(code).split() == ["ratrain", "-"]


def test_every_public_name_is_there_has_words_and_is_listed() -> None:
    for name in ratrain.__all__:
        assert getattr(ratrain, name).__doc__, name
        assert name in dir(ratrain)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = ratrain.simulat  # pyright: ignore


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "simulate", "report"])
def test_a_room_of_a_functions_name_is_called_as_the_function_whoever_imported_it_first(
    name: str,
) -> None:
    call = f"""
try:
    ratrain.{name}('nothing.toml')
except ratrain.RatrainError as error:
    print(error.place)
"""
    room_first = f"import ratrain.{name}; import ratrain\n{call}"
    function_first = (
        f"import ratrain\n{call}\nimport ratrain.{name} as room\n"
        f"assert room is ratrain.{name}\n{call}"
    )
    assert in_new_process(room_first).split() == ["nothing.toml"]
    assert in_new_process(function_first).split() == ["nothing.toml"] * 2


def test_a_room_that_can_be_called_has_the_functions_signature() -> None:
    assert list(inspect.signature(ratrain.plan).parameters) == ["job", "progress"]


@pytest.mark.slow
def test_types_reach_the_user(tmp_path: Path) -> None:
    """Pyright, strictly, over a script of a user's."""
    script = tmp_path / "script.py"
    script.write_text(
        "import ratrain\n"
        "job = ratrain.load_job('job.toml')\n"
        "time_s: float = ratrain.simulate(ratrain.plan(job).best).step_time_s\n"
        "run = ratrain.train(job, on_step=lambda step: print(step.loss))\n"
        "losses: tuple[float, ...] = run.losses\n"
        "wrong: int = ratrain.report(job).html\n"
    )
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pyright = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)]
    done = subprocess.run(
        [*pyright, "--pythonpath", sys.executable], capture_output=True, text=True, check=False
    )
    problems = json.loads(done.stdout)["generalDiagnostics"]
    assert [problem["range"]["start"]["line"] for problem in problems] == [5], problems


# ---- results -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job() -> ratrain.Job:
    return ratrain.load_job(SMALL)


def test_results_are_frozen_print_in_eighty_columns_and_have_html_and_figures(
    job: ratrain.Job,
) -> None:
    built = ratrain.build(job)
    results = [job, built, ratrain.verify(built), ratrain.simulate(built), ratrain.plan(job)]
    for result in (*results, ratrain.report(job)):
        assert max(map(len, repr(result).splitlines())) <= 80
        assert result._repr_html_().lstrip().startswith("<")
        with pytest.raises(FrozenInstanceError):
            result.spec = None  # pyright: ignore
    for result in (built, results[3], results[4]):
        assert json.dumps(result.to_dict())


def test_figures_are_those_of_the_command_line(job: ratrain.Job) -> None:
    code = f"import sys; sys.argv = ['ratrain', 'simulate', {str(SMALL)!r}, '--json'];"
    printed = json.loads(in_new_process(code + "from ratrain.cli.main import main; main()"))
    ours = ratrain.simulate(job).to_dict()
    for key in ("job", "step_time_s", "bound_bytes", "ranks"):
        assert ours[key] == printed[key]


def test_a_plan_is_built_and_saved_as_the_same_program(job: ratrain.Job, tmp_path: Path) -> None:
    best = ratrain.plan(job).best
    saved = best.save(tmp_path / "plan.json")
    assert ratrain.build(saved).to_dict() == ratrain.build(best).to_dict()
    assert ratrain.verify(best).bound_bytes == best.bound_bytes


def test_a_programs_file_is_verified(job: ratrain.Job, tmp_path: Path) -> None:
    built = ratrain.build(job)
    text = built.save(tmp_path / "small.program")
    assert ratrain.verify(text).bound_bytes == ratrain.verify(built).bound_bytes
    text.write_text(text.read_text().replace(" 0SEND_F3", ""))
    proof = ratrain.verify(text)
    assert not proof and "MissingSend" in repr(proof)


def test_a_job_may_take_another_schedule_and_leave_passes_out(job: ratrain.Job) -> None:
    plain = ratrain.simulate(job.using("baseline-1f1b"))
    assert plain.step_time_s > ratrain.simulate(job).step_time_s
    assert job.spec.schedule.name == "ratrain"
    left_out = job.using(without=("forward-recovery",))
    assert ratrain.build(left_out).to_dict()["without"] == ["forward-recovery"]


def test_what_is_wrong_is_raised_and_nothing_exits(job: ratrain.Job, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown strategy 'zb-h2'"):
        ratrain.simulate(job.using("zb-h2"))
    starved = replace(job.spec.schedule, memory_budget_bytes=1_000_000)
    with pytest.raises(Infeasible):
        ratrain.plan(ratrain.Job(replace(job.spec, schedule=starved)))
    with pytest.raises(SpecError, match=r"no \[data\]"):
        ratrain.train(job, run=tmp_path / "run")
    with pytest.raises(ratrain.RatrainError, match="not a run's folder"):
        ratrain.load_run(tmp_path)


def test_a_changed_job_is_not_trained_as_its_file_says(job: ratrain.Job, tmp_path: Path) -> None:
    changed = ratrain.Job(replace(job.spec, batch=replace(job.spec.batch, sequences=16)))
    with pytest.raises(SpecError, match="changed after it was loaded"):
        ratrain.train(changed, run=tmp_path / "run")
    with pytest.raises(SpecError, match="changed after it was loaded"):
        ratrain.report(changed)


def test_a_schedule_that_says_what_is_sent_is_checked_and_not_derived(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"
    path.write_text("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    found = ratrain.check_schedule(path, {"F": 2.0})
    assert found.sound and found.sound_under("one")
    assert found.to_dict()["schedule"]["rules"][0]["step_time"] == 8.1
    assert "sound however" in repr(found)
    with pytest.raises(ratrain.RatrainError, match="check_schedule"):
        ratrain.verify(path)
    path.write_text("0F0,0B0\n")
    assert "messages: derived" in repr(ratrain.verify(path))
