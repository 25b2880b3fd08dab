"""The states of ranks that stay, as the source of another episode: of any plan, bit for bit as a
checkpoint would be; and which version of them is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from runs_made import Setting, write_job, write_plan
from training import forget, train

from ratrain.plan import load_job
from ratrain.runtime.rank.live import live_states
from ratrain.runtime.run.prepare import RunRequest, prepare_run

KEPT, STEPS, RANKS = 2, 4, 4
BASE = Setting(sequences=12, steps=STEPS, every=KEPT, keep=5)
PAIRS = {
    "fewer replicas": (replace(BASE, data=3, sharding=0), replace(BASE, data=2, sharding=0)),
    "more ranks": (replace(BASE, data=2, sharding=1), replace(BASE, data=4, sharding=2)),
    "a pipeline": (replace(BASE, data=2, sharding=0), replace(BASE, pipeline=3)),
    "no pipeline": (
        replace(BASE, pipeline=2, data=2, sharding=0),
        replace(BASE, data=3, sharding=3),
    ),
    "tensor groups": (replace(BASE, data=2, sharding=0), replace(BASE, tensor=2, data=2)),
    "no tensor groups": (replace(BASE, tensor=2), replace(BASE, pipeline=2, dtype="bf16")),
}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(RANKS) as crew:
        yield crew


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_an_episode_from_live_states_has_the_bits_of_one_from_a_checkpoint(
    pair: str, crew: Crew, tmp_path: Path
) -> None:
    before, after = PAIRS[pair]
    crew.ask(RANKS, forget)
    train(crew, replace(before, steps=KEPT), tmp_path / "before", saves=True)
    live = train(crew, after, tmp_path / "live", live=True)
    saved = tmp_path / "before" / "run" / "checkpoints" / f"step-{KEPT:08d}"
    read = train(crew, after, tmp_path / "read", checkpoint=saved)
    assert len(live.losses) == STEPS - KEPT
    assert not live.differences(read)


# ---- which version ---------------------------------------------------------------------------


def told(*ranks: Mapping[str, int], fits: bool = True) -> list[dict[str, Any]]:
    """What ranks say that hold whole units in these versions."""
    return [
        {
            "held": {name: [[version, 0, SIZES[name]]] for name, version in of_rank.items()},
            "kinds": ["weights"] if of_rank else [],
            "beside": {str(version): {"updates": version} for version in set(of_rank.values())},
            "fits": fits,
        }
        for of_rank in ranks
    ]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("case")
    setting = replace(BASE, data=3, sharding=0)
    job = write_job(folder, replace(setting, files=("none.txt",)))
    request = RunRequest(job, threads=1, calibrate=False, plan_path=write_plan(folder, setting))
    prepared = prepare_run(request)
    return load_job(job).model.spec, prepared.proved.program.setup, prepared.spec.seats


SIZES: dict[str, int] = {}


@pytest.mark.parametrize(
    ("versions", "taken"),
    [
        pytest.param(([7] * 6, [7] * 6, []), 7, id="all alike, one rank new"),
        pytest.param(([8] * 6, [7] * 6, []), 8, id="one rank has updated all"),
        pytest.param(([8, 8, 8, 7, 7, 7], [7, 7, 7, 8, 8, 8], []), 8, id="together they have all"),
        pytest.param(([8, 8, 8, 7, 7, 7], [7] * 6, []), 7, id="the older one is complete"),
        pytest.param(([8, 8, 8, 7, 7, 7], [8, 8, 8, 7, 7, 7], []), None, id="neither is"),
        pytest.param(([], [], []), None, id="nobody holds anything"),
    ],
)
def test_the_newest_version_of_which_survivors_hold_all_is_taken(
    versions: tuple[list[int], ...], taken: int | None, case: Any
) -> None:
    from ratrain.models.shapes import unit_names
    from ratrain.runtime.rank.live import stored_sizes

    model, setup, seats = case
    SIZES.update(stored_sizes(model, dict.fromkeys(unit_names(model), 1)))
    assert len(SIZES) == 6
    held = [dict(zip(SIZES, of_rank, strict=False)) for of_rank in versions]
    live = live_states(model, setup, seats, told(*held))
    assert (live.step if live else None) == taken
    if live is not None:
        assert live.beside == {"updates": taken}
        for copy in live.copies:
            assert held[copy.source][copy.needed.name] == taken
    assert live_states(model, setup, seats, told(*held, fits=False)) is None
