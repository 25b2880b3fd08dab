"""A run is predicted with what each of its own units was measured to take."""

from __future__ import annotations

from pathlib import Path

import pytest
from launched import made
from runs_made import Setting

from ratrain.program.kind import Kind
from ratrain.runtime.rank.calibration import Calibration, UnitTimes
from ratrain.runtime.rank.run_costs import ElementBytes, costs_of_run
from ratrain.runtime.step.schedule import schedule_of


def told(rank: int, names: list[str]) -> Calibration:
    """A rank's calibration, in which unit "7" takes 7 s forward; the embedding takes 100, the head
    200."""
    ends = {"e": 100.0, "h": 200.0}
    units = tuple(
        UnitTimes(ends.get(name) or float(name), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 64, 0)
        for name in names
    )
    return Calibration(rank, units, None, None, None, None, None, 0.0, 0.0)


@pytest.mark.parametrize(("pipeline", "virtual"), [(1, 1), (2, 1), (2, 2), (3, 2), (1, 2)])
def test_each_unit_has_its_own_time_however_many_stages_a_rank_holds(
    pipeline: int, virtual: int, tmp_path: Path
) -> None:
    model = (("num_hidden_layers", 6),)
    name = "interleaved" if virtual > 1 else "1f1b"
    setting = Setting(name, pipeline=pipeline, virtual=virtual, sequences=6, model=model)
    program = made(tmp_path, setting).read_program()
    calibrations = [
        told(rank, [unit.unit.name for unit in schedule_of(program, rank).units])
        for rank in range(pipeline)
    ]
    costs = costs_of_run(program, calibrations, ElementBytes(4, 4, 4))
    assert costs.work[Kind.F].fixed_s.tolist() == [100, 0, 1, 2, 3, 4, 5, 200]
