"""Stages and replicas of unlike tensor degrees, on real processes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from runs_made import Setting, Unlike
from test_unlike_replicas import assert_as_alone, assert_held
from training import train

MODEL = (("num_key_value_heads", 4),)
ALONE = Setting("1f1b", learning_rate=1e-3, model=MODEL)
WIDENING = (Unlike((2, 2), 8, tensor=(1, 2)),)
NARROWING = (Unlike((1, 3), 4, micro_batch=2, tensor=(2, 1)),)
TWO_AND_ONE = (Unlike((4,), 5, tensor=(2,)), Unlike((4,), 3))
CROSSED = (Unlike((2, 2), 5, tensor=(1, 2)), Unlike((4,), 3, tensor=(2,)))
WAIST = (Unlike((1, 2, 1), 8, tensor=(2, 1, 2)),)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def five() -> Generator[Crew]:
    with Crew(5) as made:
        yield made


def unlike(replicas: tuple[Unlike, ...], name: str = "ratrain", **changes: Any) -> Setting:
    return replace(ALONE, name=name, unlike=replicas, **changes)


@pytest.mark.parametrize(
    ("replicas", "changes"),
    [
        (WIDENING, {"clip_norm": 0.5}),
        (NARROWING, {"masked": True}),
        (WAIST, {}),
        (TWO_AND_ONE, {"clip_norm": 0.5, "masked": True}),
        (TWO_AND_ONE, {"sharding": 0}),
        (CROSSED, {"sharding": 1, "clip_norm": 0.5}),
        (CROSSED, {"network": "gloo"}),
        (WAIST, {"network": "gloo"}),
    ],
    ids=lambda given: " ".join(map(str, given if isinstance(given, tuple) else given.items())),
)
def test_stages_of_unlike_degrees_train_as_one_process_does(
    replicas: tuple[Unlike, ...], changes: dict[str, Any], five: Crew, tmp_path: Path
) -> None:
    setting = unlike(replicas, **changes)
    alone = replace(setting, unlike=(), name="1f1b", network="sockets")
    result = train(five, setting, tmp_path / "unlike")
    assert_as_alone(result, train(five, alone, tmp_path / "alone"))
    assert_held(result)
