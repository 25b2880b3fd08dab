"""The protocol of launchers, hosts and ranks on a simulated clock, by seeds; bugs are planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faulted import NO_BUGS, Failed, run_seed
from sim_run import STEPS, Bugs, SimRun
from sim_world import SimWorld

from ratrain.runtime.rank.live import Kept
from ratrain.runtime.run import remote
from ratrain.runtime.run.host_ranks import Following
from ratrain.runtime.run.processes import RankProcesses
from ratrain.runtime.run.survive import Surviving

MOST_SEEDS = 400
FIRST_SEEDS = {"forgets early": 870}
"""Of bugs that few seeds find, some hundred seconds of them: where to begin."""


def test_runs_survive_what_seeds_draw() -> None:
    outcomes = [run_seed(seed) for seed in range(12)]
    assert all(outcome.steps == STEPS for outcome in outcomes if outcome.status == 0)
    assert any(outcome.live_sources for outcome in outcomes)


def test_a_rank_that_is_stopped_while_it_waits_for_the_next_episode_is_replaced() -> None:
    world = SimWorld(3)
    run = SimRun(world, ["here", "there"], NO_BUGS)
    run.launch(restarts=3)
    world.after(8.0, lambda: run.lose_power(run.hosts["there"]))
    world.after(10.0, lambda: run.hosts["here"].ranks[0].stop())  # for ever
    try:
        world.run(120.0, lambda: run.status is not None)
    finally:
        world.close()
    assert (run.status, run.auditor.told) == (0, STEPS)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("first", range(100, 1100, 50))
def test_further_seeds(first: int) -> None:
    for seed in range(first, first + 50):
        run_seed(seed)


def test_a_seed_replays_exactly() -> None:
    seeds = range(7, 12)
    runs = [run_seed(seed) for seed in seeds]
    assert runs == [run_seed(seed) for seed in seeds]
    assert max(len(run.log) for run in runs) > 3


SIMULATED = (
    "no commit",
    "no mirror",
    "mirror lags",
    "forgets doubt",
    "names early",
    "old checkpoint",
    "old attempts write",
    "forgets early",
)
"""In what ranks do: see `sim_run`."""


def found(bugs: Bugs = NO_BUGS, first: int = 0) -> str:
    """What the first seed finds that finds anything; the same again, since a seed replays."""
    for seed in range(first, first + MOST_SEEDS):
        try:
            run_seed(seed, bugs)
        except Failed as failed:
            with pytest.raises(Failed) as again:
                run_seed(seed, bugs)
            assert str(again.value) == str(failed)
            return str(failed).splitlines()[0]
    pytest.fail(f"{MOST_SEEDS} seeds find nothing")


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("bug", SIMULATED)
def test_a_bug_in_what_ranks_do_is_found(bug: str) -> None:
    assert "seed" in found(Bugs(frozenset({bug})), FIRST_SEEDS.get(bug, 0))


def _never_later(kept: Kept, _version: int) -> Kept:
    return replace(kept, later=None)


PLANTED: dict[str, tuple[type, str, Callable[..., object]]] = {
    "a rank in doubt stays at the older version": (Kept, "at", _never_later),
    "a silent host is never given up": (remote._Host, "look", lambda _host: None),  # pyright: ignore[reportPrivateUsage]
    "ranks that wait for the next episode are ended": (
        Following,
        "_may_go_on",
        property(lambda _following: False),  # type: ignore[dict-item]
    ),
    "nobody is called back": (RankProcesses, "call_back", lambda _processes: None),
    "hosts that are lost are planned for": (
        Surviving,
        "_lost",
        lambda _surviving, _there=(), _patience_s=0.0: (),
    ),
}
"""In the real code."""


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_in_the_real_protocol_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, instead = PLANTED[bug]
    monkeypatch.setattr(owner, name, instead)
    assert "seed" in found()
