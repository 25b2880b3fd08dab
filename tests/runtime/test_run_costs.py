"""A run is predicted with what each of its own units was measured to take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launched import made
from runs_made import Setting

from ratrain.devices import CPU
from ratrain.program.kind import Kind
from ratrain.program.program import Program
from ratrain.program.verify import verify
from ratrain.runtime.rank.calibration.lanes import between_ops_s
from ratrain.runtime.rank.calibration.measured import (
    Calibration,
    LinkTimes,
    UnitTimes,
    read_calibration,
    write_calibration,
)
from ratrain.runtime.rank.calibration.run_costs import ElementBytes, costs_of_run
from ratrain.runtime.step.schedule import schedule_of
from ratrain.simulate.costs import Costs


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A program of two stages."""
    return made(tmp_path_factory.mktemp("two"), Setting("1f1b", pipeline=2)).read_program()


def told(rank: int, names: list[str]) -> Calibration:
    """A rank's calibration, in which unit "7" takes 7 s forward; the embedding takes 100, the head
    200."""
    ends = {"e": 100.0, "h": 200.0}
    units = tuple(
        UnitTimes(ends.get(name) or float(name), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 64, 64, 0)
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
    costs = costs_of_run(program, calibrations, ElementBytes((4,), 4, 4))
    assert costs.work[Kind.F].fixed_s.tolist() == [100, 0, 1, 2, 3, 4, 5, 200]


def measured_messages(
    program: Program, at_once_bytes: float, between_s: float, unit_s: float = 1.0
) -> Costs:
    """Costs of two ranks whose units take so long for a micro-batch, over a link of 1 kB/s."""
    link = LinkTimes(0.5, 1000.0, 0.0, 0.0, at_once_bytes)
    unit = UnitTimes(0.25 * unit_s, 0.0, 0.75 * unit_s, 0.0, 0.0, 0.0, 0.0, 64, 64, 0)
    calibrations = [
        replace(
            Calibration(rank, units, link, link, link, link, None, 0.0, 0.0), between_s=between_s
        )
        for rank in range(2)
        for units in [(unit,) * len(schedule_of(program, rank).units)]
    ]
    return costs_of_run(program, calibrations, ElementBytes((4,), 4, 4))


@pytest.mark.parametrize(("unit_s", "passes"), [(100.0, True), (0.001, False)])
def test_bytes_pass_at_once_where_the_link_pauses_between_messages(
    unit_s: float, passes: bool, two_ranks: Program
) -> None:
    whole = measured_messages(two_ranks, 0.0, 0.0, unit_s).work[Kind.SEND_F]
    paced = measured_messages(two_ranks, 512.0, 0.0, unit_s).work[Kind.SEND_F]
    sends = whole.volume_bytes > 0.0
    gained_bytes = (whole.volume_bytes - paced.volume_bytes)[sends]
    assert sends.any()
    assert (gained_bytes == 512.0 * passes).all()
    assert (paced.fixed_s == 0.5).all()


def test_no_more_passes_at_once_than_a_message_has(two_ranks: Program) -> None:
    paced = measured_messages(two_ranks, 1e9, 0.0, 1e6).work[Kind.SEND_F]
    assert (paced.volume_bytes == 0.0).all()


def test_what_passes_between_ops_is_part_of_each_compute_op(two_ranks: Program) -> None:
    alone = measured_messages(two_ranks, 0.0, 0.0).work
    spaced = measured_messages(two_ranks, 0.0, 0.125).work
    for kind in (Kind.F, Kind.B, Kind.R):
        assert (spaced[kind].fixed_s - alone[kind].fixed_s == 0.125).all()
    assert (spaced[Kind.SEND_F].fixed_s == alone[Kind.SEND_F].fixed_s).all()


@pytest.fixture(scope="module")
def two_replicas(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A program of two stages, of which two replicas are folded into one."""
    return made(tmp_path_factory.mktemp("four"), Setting("1f1b", pipeline=2, data=2)).read_program()


def of_replicas(program: Program, messages: float, collectives: list[float]) -> Costs:
    """Costs where messages go at one rate and the collective of each rank at its own; a unit
    computes for a second."""
    unit = UnitTimes(0.25, 0.0, 0.75, 0.0, 0.0, 0.0, 0.0, 64, 64, 0)
    link = LinkTimes(0.0, messages, 0.0, 0.0)
    calibrations = [
        Calibration(
            number // 2,
            (unit,) * len(schedule_of(program, number // 2).units),
            link,
            link,
            link,
            link,
            LinkTimes(0.0, rate, 0.0, 0.0),
            0.0,
            0.0,
        )
        for number, rate in enumerate(collectives)
    ]
    return costs_of_run(program, calibrations, ElementBytes((4,), 4, 4))


@pytest.mark.parametrize("messages", [50.0, 100.0, 400.0])
def test_a_reduction_goes_at_its_own_rate_however_fast_messages_are(
    messages: float, two_replicas: Program
) -> None:
    costs = of_replicas(two_replicas, messages, [100.0] * 4)
    work = costs.work[Kind.GradSync]
    alone_s = work.volume_bytes / costs.link_rate_bytes_per_s[work.link]
    level = two_replicas.setup.sharding
    sent_bytes = 64 * 4 * 0.5 * (1 if level else 2)
    assert alone_s == pytest.approx(sent_bytes / 100.0)


def test_ranks_that_reduce_together_have_the_mean_of_what_they_measured(
    two_replicas: Program,
) -> None:
    work = of_replicas(two_replicas, 100.0, [80.0, 120.0, 100.0, 100.0]).work[Kind.GradSync]
    evenly = of_replicas(two_replicas, 100.0, [100.0] * 4).work[Kind.GradSync]
    assert (work.volume_bytes == evenly.volume_bytes).all()


def test_a_calibration_reads_back_as_it_was_written() -> None:
    link = LinkTimes(0.5, 1000.0, 0.25, 0.125, 64.0)
    calibration = replace(told(1, ["e", "1"]), message=link, tensor=link, between_s=0.5)
    assert read_calibration(write_calibration(calibration)) == calibration


@pytest.mark.parametrize("most_s", [0.0, 60.0])
def test_an_empty_step_is_timed_in_full_or_until_its_time_is_up(
    two_ranks: Program, most_s: float
) -> None:
    schedule = schedule_of(two_ranks, 1)
    weights = [None, *(torch.zeros(64) for _ in schedule.units[1:])]
    assert between_ops_s(schedule, weights, 60.0, CPU, most_s) > 0.0


def test_an_empty_step_ends_where_what_nobody_sends_would_fill_the_budget(tmp_path: Path) -> None:
    """Receives that wait for no sender run ahead of every order that is proved to fit."""
    program = made(tmp_path, Setting("1f1b", pipeline=2, sequences=64)).read_program()
    bound_bytes = verify(program).bounds[1].total_bytes
    tight = replace(program, setup=replace(program.setup, budget_bytes=bound_bytes))
    schedule = schedule_of(tight, 1)
    assert between_ops_s(schedule, [None for _ in schedule.units], 2.0, CPU) > 0.0


def test_a_rank_that_computes_nothing_has_nothing_between_its_ops(two_ranks: Program) -> None:
    idle = replace(schedule_of(two_ranks, 0), ops=())
    assert between_ops_s(idle, [], 60.0, CPU) == 0.0


def test_a_run_has_a_time_for_every_kind_of_op(two_ranks: Program) -> None:
    names = [[unit.unit.name for unit in schedule_of(two_ranks, rank).units] for rank in range(2)]
    calibrations = [told(rank, names[rank]) for rank in range(2)]
    assert set(costs_of_run(two_ranks, calibrations, ElementBytes((4,), 4, 4)).work) == set(Kind)
