"""Plans of unlike replicas in layer-major orders, as the planner writes them, on real processes:
their numbers are those of the same plan in 1F1B, bit for bit, and of one process to rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from runs_made import Setting, Unlike
from test_unlike_replicas import assert_as_alone, assert_held
from training import train

from ratrain.runtime.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ALONE = Setting("1f1b", learning_rate=1e-3)
WHOLE = (Unlike((4,), 6), Unlike((4,), 2))
MIXED = (Unlike((2, 1, 1), 3, micro_batch=2), Unlike((4,), 2))
DEGREES = (Unlike((3, 1), 5, tensor=(1, 2)), Unlike((4,), 3))


def by_layer(together: int, replicas: tuple[Unlike, ...], **changes: Any) -> Setting:
    """A plan whose schedule is ratrain, in an order that the planner chose."""
    order = f"layer-major-{together}"
    return replace(ALONE, name="ratrain", skeleton=order, unlike=replicas, **changes)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "setting",
    [
        by_layer(2, WHOLE, masked=True),
        by_layer(4, WHOLE, sharding=1, clip_norm=0.5),
        by_layer(2, MIXED),
        by_layer(2, DEGREES, sharding=2),
        by_layer(2, MIXED, network="staged"),
    ],
    ids=str,
)
def test_it_has_the_bits_of_1f1b_and_the_numbers_of_one_process(
    setting: Setting, crew: Crew, tmp_path: Path
) -> None:
    layered = train(crew, setting, tmp_path / "layered")
    together = int(str(setting.skeleton).rpartition("-")[2])
    assert RunFolder(tmp_path / "layered" / "run").read_program().setup.together == together
    usual = train(crew, replace(setting, skeleton="1f1b"), tmp_path / "usual")
    assert not layered.differences(usual)
    assert_held(layered)
    alone = replace(setting, name="1f1b", skeleton=None, unlike=(), sharding=None)
    assert_as_alone(layered, train(crew, replace(alone, network="sockets"), tmp_path / "alone"))
