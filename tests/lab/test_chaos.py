"""`ratrain lab chaos`: faults that a seed draws, a run that goes on, and what the audit finds."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cli_runs import ratrain, write_job

from ratrain.cli.measuring.chaos import audit_lines
from ratrain.lab.faults import FAULTS, drawn_faults
from ratrain.lab.needs import missing
from ratrain.runtime.run.chaos import Audit, Happened, next_after, wrong_steps

HOSTS = ("birch", "oak", "pine")
CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"


def job_of(folder: Path) -> Path:
    """A job for four hosts of one device each, with many steps."""
    job = write_job(folder, steps=100_000, pipeline=1)
    text = job.read_text().replace('"cpu-lab"', f'"{CLUSTERS / "two-sites-lab.toml"}"')
    text = text.replace("devices = 2", "devices = 4").replace("data = 2", "data = 4")
    head, _, tail = text.partition("[layout]")
    job.write_text(head + "[schedule]" + tail.partition("[schedule]")[2])
    return job


def test_one_seed_draws_the_same_faults_and_another_one_others() -> None:
    def first(seed: int) -> list[object]:
        return list(islice(drawn_faults(seed, list(FAULTS), HOSTS, 20.0, 5.0), 200))

    assert first(7) == first(7)
    assert first(7) != first(8)


def test_every_kind_and_host_is_drawn_and_times_lie_around_their_means() -> None:
    faults = list(islice(drawn_faults(1, list(FAULTS), HOSTS, 20.0, 5.0), 400))
    assert {fault.kind for fault in faults} == set(FAULTS)
    assert {fault.host for fault in faults} == set(HOSTS)
    assert all(10.0 <= fault.after_s <= 30.0 for fault in faults)
    for fault in faults:
        assert 2.5 <= fault.lasts_s <= 7.5 if FAULTS[fault.kind].lasts else fault.lasts_s == 0.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--faults", "kil"], 'did you mean "kill"?'),
        (["--faults", ","], "no kind of fault"),
        (["--set", "cluster.devices=2"], "devices = 1"),
    ],
)
def test_what_cannot_be_lost_one_by_one_is_refused_with_what_to_do(
    tmp_path: Path, words: list[str], said: str
) -> None:
    done = ratrain(tmp_path, "lab", "chaos", job_of(tmp_path), *words)
    assert done.status in (2, 3), done.err
    assert said in done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("starts", "wrong"),
    [
        ([[0, 1, 2], [1, 2, 3]], ()),
        ([[0, 1, 2], [3, 4]], ()),
        ([[0, 1, 3]], (2,)),
        ([[0, 1], [4, 5]], (2, 3)),
        ([[0, 1, 1, 2]], (1,)),
        ([[0, 1, 2], [1, 1, 2]], (1,)),
        ([[2, 3]], (0, 1)),
    ],
)
def test_a_step_that_is_missing_or_came_twice_is_named(
    starts: list[list[int]], wrong: tuple[int, ...]
) -> None:
    rows: list[dict[str, Any]] = []
    for steps in starts:
        first, *others = ({"step": step} for step in steps)
        rows += [{**first, "started_s": 1.0}, *others]
    assert wrong_steps(rows) == wrong


@pytest.mark.parametrize(
    ("began_s", "ends_s"), [([], []), ([3.0], [float("inf")]), ([3.0, 7.0], [7.0, float("inf")])]
)
def test_a_fault_costs_what_comes_before_the_next_one_and_a_run_may_have_none(
    began_s: list[float], ends_s: list[float]
) -> None:
    assert next_after(began_s) == ends_s


@pytest.mark.parametrize(("hits", "says"), [([], True), ([False], True), ([False, True], False)])
def test_a_run_that_no_fault_met_is_not_called_proved_by_faults(
    hits: list[bool], says: bool, tmp_path: Path
) -> None:
    faults = tuple(Happened("kill", "oak", hit, 1.0, 0.0, 3, False, 0, 0.1) for hit in hits)
    found = Audit(0, 9, 9, (), 0.0, 0.1, faults, None, tmp_path / "log")
    assert ("no fault met a host" in " ".join(audit_lines(found, tmp_path))) == says


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(bool(missing()), reason=f"no lab on this machine: {'; '.join(missing())}")
def test_a_run_whose_hosts_are_killed_cut_and_slowed_loses_no_step(tmp_path: Path) -> None:
    words = ("--every", "1", "--lasts", "2", "--for", "40", "--seed", "5", "--json")
    done = ratrain(tmp_path, "lab", "chaos", job_of(tmp_path), *words, "--faults", "kill,cut,host")
    assert done.status == 75, done.err
    body = done.body
    assert body["wrong_steps"] == []
    assert body["again_loss_difference"] < 1e-4
    faults = body["faults"]
    restarted = {fault["kind"] for fault in faults if fault["restarted"]}
    assert restarted and restarted <= {"kill", "host"}
    assert 0 < body["goodput"]["fraction"] < 1
    assert body["goodput"]["starts"] == 1 + sum(fault["restarted"] for fault in faults)
