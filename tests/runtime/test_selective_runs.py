"""Attention that stores its scores, and recovery that makes them again, on real ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from crew import Crew
from runs_made import Setting, Unlike, write_job, write_plan
from test_sequence_parallel_runs import assert_held
from test_tensor import WIDE, assert_near
from training import train

from ratrain.errors import SpecError
from ratrain.plan.file.form import file_of_plan
from ratrain.plan.file.form import write_plan as plan_text
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.layouts import search_layouts
from ratrain.program.replicas import Recovery
from ratrain.runtime.run.prepare import RunRequest, prepare_run

FLASH = Setting("1f1b", steps=3, model=WIDE, learning_rate=1e-3, clip_norm=0.5)
STORED = replace(FLASH, attention="stored")
MIXED = Unlike((2, 2), 8, recovery="selective")


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_selective_recovery_gives_the_bits_of_keeping_all_in_less_memory(
    dtype: str, crew: Crew, tmp_path: Path
) -> None:
    kept = replace(STORED, name="ratrain", recovery="keep-all", dtype=dtype, micro_batch=2)
    usual = train(crew, kept, tmp_path / "kept")
    others = [
        replace(kept, recovery="selective"),
        replace(kept, recovery="everywhere"),
        replace(kept, recovery="selective", pipeline=2),
        replace(kept, name="zb-h1", recovery="selective"),
    ]
    results = [train(crew, other, tmp_path / str(n)) for n, other in enumerate(others)]
    for result, setting in zip(results, others, strict=True):
        assert not result.differences(usual), str(setting)
        assert_held(result)
    # What is kept has no scores, of any micro-batch; they are made for one at a time.
    assert results[0].ledger_peaks[0] <= usual.ledger_peaks[0]
    if dtype == "fp32":
        assert_near(usual, train(crew, replace(FLASH, micro_batch=2), tmp_path / "flash"))


@pytest.mark.slow
def test_members_of_a_tensor_group_and_unlike_stages_recover_selectively(
    crew: Crew, tmp_path: Path
) -> None:
    alone = train(crew, STORED, tmp_path / "alone")
    group = replace(STORED, name="ratrain", tensor=2, data=2, recovery="selective")
    settings = [
        replace(group, sequence_parallel=True, sharding=3),
        replace(STORED, name="ratrain", unlike=(MIXED,)),
    ]
    for number, setting in enumerate(settings):
        result = train(crew, setting, tmp_path / str(number))
        assert_near(result, alone)
        assert_held(result)


def test_scores_are_kept_where_they_fit_and_let_go_where_the_budget_asks_for_it(
    tmp_path: Path,
) -> None:
    setting = replace(STORED, name="ratrain", sequence_length=64, files=("none.txt",))
    ample = prepare_run(RunRequest(write_job(tmp_path, setting)))
    (member,) = ample.program.setup.members
    assert member.recovery is Recovery.NONE
    assert {unit.scores_bytes for unit in member.units} == {0, 4 * 4 * 64 * 64}
    (bound,) = ample.verdict.bounds
    limited = replace(setting, budget_bytes=bound.total_bytes - 1)
    less = prepare_run(RunRequest(write_job(tmp_path, limited)))
    assert {member.recovery for member in less.program.setup.members} == {Recovery.SELECTIVE}
    assert less.verdict.bounds[0].total_bytes < bound.total_bytes


def test_a_plan_remembers_how_attention_is_computed_and_another_job_refuses_it(
    tmp_path: Path,
) -> None:
    setting = replace(STORED, name="ratrain", planned=True, files=("none.txt",))
    job = write_job(tmp_path, setting)
    text = plan_text(file_of_plan(search_layouts(load_job(job)).best.plan))
    assert json.loads(text)["attention"] == "stored"
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    assert prepare_run(RunRequest(job, plan_path=plan)).spec.attention == "stored"
    other = write_job(tmp_path, replace(setting, attention=None))
    with pytest.raises(SpecError, match="the plan has attention = 'stored'"):
        prepare_run(RunRequest(other, plan_path=plan))


def test_a_plan_of_unlike_stages_may_recover_selectively(tmp_path: Path) -> None:
    setting = replace(STORED, name="ratrain", unlike=(MIXED,), files=("none.txt",))
    job, plan = write_job(tmp_path, setting), write_plan(tmp_path, setting)
    members = prepare_run(RunRequest(job, plan_path=plan)).program.setup.members
    assert {member.recovery for member in members} == {Recovery.SELECTIVE}
