"""What a plan and a run say of proven memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_jobs import job

from ratrain.plan.case.case import Case
from ratrain.plan.file.form import load_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.search.every_plan import case_of_job
from ratrain.plan.words.planned import peaks_in_words
from ratrain.runtime.run.prepare import RunRequest, prepare_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "unequal-replicas.json"
JOB = """
[model]
name = "small-llama"
sequence_length = 512
[cluster]
name = "lab-mixed"
devices = 4
[batch]
sequences = 24
[schedule]
name = "ratrain"
dtype = "fp32"
[train]
steps = 1
[data]
files = ["text.txt"]
"""


def test_ranks_of_one_budget_have_one_peak() -> None:
    proved = case_of_job(job("tiny-llama", "cpu-lab", 4, 8)).proved
    words = peaks_in_words(proved.verdict.bounds, proved.program.setup)
    assert words.startswith("proven peak ") and "per rank (budget " in words


def test_ranks_of_unlike_budgets_have_the_peak_of_the_fullest_of_each() -> None:
    proved = Case(plan_of_file(load_plan(EXAMPLE), str(EXAMPLE))).proved
    setup, most = proved.program.setup, dict[int | None, int]()
    for bound in proved.verdict.bounds:
        budget = setup.budget_of(bound.rank)
        most[budget] = max(most.get(budget, 0), bound.total_bytes)
    assert sorted(most, key=str) == [1_000_000_000, 2_000_000_000]
    fast, slow = (f"{most[budget] / 1e6:.0f} MB" for budget in (2_000_000_000, 1_000_000_000))
    assert peaks_in_words(proved.verdict.bounds, setup) == (
        f"proven peaks {fast} of 2 GB, {slow} of 1 GB (fullest rank of each budget)"
    )


def test_a_run_of_unequal_devices_names_every_budget(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    (tmp_path / "text.txt").write_text("a word and another " * 1000)
    prepared = prepare_run(RunRequest(path, plan_path=EXAMPLE))
    proof = " ".join(prepared.proof())
    assert " of 2 GB, " in proof and " of 1 GB " in proof and proof.endswith(": fits")
