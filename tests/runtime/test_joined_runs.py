"""Stages that compute other numbers of micro-batches at once, on real processes: boundary tensors
are joined and cut where they meet, and the numbers are those of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from runs_made import Setting, Unlike
from test_unlike_replicas import assert_as_alone, assert_held
from training import train

ALONE = Setting("1f1b", learning_rate=1e-3)
ONE_TWO = (Unlike((2, 2), 8, joined=(1, 2)),)
FOUR_ONE = (Unlike((1, 3), 8, joined=(4, 1)),)
UP_AND_DOWN = (Unlike((1, 2, 1), 8, joined=(2, 1, 4)),)
ROWS_OF_TWO = (Unlike((2, 2), 4, micro_batch=2, joined=(2, 1)),)
TWO_REPLICAS = (Unlike((3, 1), 4, joined=(1, 4)), Unlike((1, 3), 4, joined=(2, 1)))
OTHER_DEGREES = (Unlike((2, 2), 8, joined=(2, 1), tensor=(2, 1)),)


def joining(replicas: tuple[Unlike, ...], **changes: Any) -> Setting:
    return replace(ALONE, **{"name": "ratrain", "unlike": replicas, **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "changes"),
    [
        (ONE_TWO, {"masked": True}),
        (FOUR_ONE, {"name": "gpipe", "clip_norm": 0.5}),
        (UP_AND_DOWN, {}),
        (UP_AND_DOWN, {"name": "zb-h1", "sharding": 0, "masked": True}),
        (UP_AND_DOWN, {"name": "breadth-first", "network": "gloo"}),
        (ROWS_OF_TWO, {"name": "backward-checkpoint"}),
        (TWO_REPLICAS, {"masked": True, "clip_norm": 0.5}),
        (TWO_REPLICAS, {"name": "pe-zero", "sharding": 3}),
        (OTHER_DEGREES, {"masked": True}),
    ],
    ids=lambda given: " ".join(map(str, given if isinstance(given, tuple) else given.items())),
)
def test_stages_that_join_micro_batches_train_as_one_process_does(
    replicas: tuple[Unlike, ...], changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = joining(replicas, **changes)
    alone = replace(setting, unlike=(), name="1f1b", sharding=None, network="sockets")
    result = train(crew, setting, tmp_path / "joined")
    assert_as_alone(result, train(crew, alone, tmp_path / "alone"))
    assert_held(result)
