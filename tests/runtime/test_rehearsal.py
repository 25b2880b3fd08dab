"""A rank's compute ops are timed as its step has them: in that order, with as much in flight."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import made
from runs_made import LENGTH, VOCAB, Setting
from torch import Tensor

from ratrain.devices import CPU
from ratrain.models.units import MicroBatch, unit_of
from ratrain.program.kind import Lane
from ratrain.runtime.rank.calibration.rehearsal import Rehearsal
from ratrain.runtime.rank.calibration.timers import launched
from ratrain.runtime.rank.joining.agreement import read_run
from ratrain.runtime.step.allocator import Allocator
from ratrain.runtime.step.exchange.narrowing import Wire
from ratrain.runtime.step.schedule import LocalOp, Schedule, schedule_of
from ratrain.runtime.step.states import Numbers, RankStates, rank_states

ALIKE = (
    Setting("1f1b", pipeline=1),
    Setting("1f1b", pipeline=3),
    Setting("zb-h1", pipeline=3),
    Setting("gpipe", pipeline=2),
    Setting("ratrain", pipeline=2, skeleton="breadth-first", virtual=2),
    Setting("ratrain", pipeline=2, recovery="everywhere"),
    Setting("backward-checkpoint", pipeline=2, recovery="everywhere"),
    Setting("interleaved", pipeline=2, virtual=2),
    Setting("ratrain", pipeline=1, sequences=1),
)


class Watched(Rehearsal):
    """Keeps the words of the ops that were played, and how many graphs were kept after each."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.played: list[tuple[str, int]] = []

    def _play(self, op: LocalOp) -> float:
        took_s = super()._play(op)
        self.played.append((op.word, len(self._graphs) + len(self._deferred)))
        return took_s


def rehearsal(setting: Setting, rank: int, folder: Path) -> tuple[Watched, Schedule, RankStates]:
    run = made(folder, setting)
    reading = read_run(run)
    assert reading.spec is not None and reading.job is not None and reading.program is not None
    model, seats = reading.job.model, reading.spec.seats
    schedule = schedule_of(reading.program, rank)

    def zeros(unit: str, kind: str, begin: int, end: int) -> Tensor:
        del unit, kind
        return torch.zeros(end - begin)

    states = rank_states(
        schedule,
        seats,
        seats.seat(rank),
        lambda name: unit_of(model.spec, name, sequence_length=model.sequence_length),
        zeros,
        [Numbers(torch.float32, torch.float32)] * seats.world_size,
        Wire(torch.float32, torch.float32),
        CPU,
        reading.job.train.rule,
    )
    tokens = torch.randint(VOCAB, (1, LENGTH))
    boundary = 1, LENGTH, model.spec.hidden
    batch, timer = MicroBatch(tokens, tokens), launched(lambda: None)
    played = Watched(schedule, states, boundary, batch, Allocator(), None, timer)
    return played, schedule, states


@pytest.mark.parametrize("setting", ALIKE, ids=lambda setting: f"{setting.name}-{setting.pipeline}")
def test_a_step_is_played_in_its_own_order(setting: Setting, tmp_path: Path) -> None:
    for rank in range(setting.pipeline):
        folder = tmp_path / str(rank)
        played, schedule, _ = rehearsal(setting, rank, folder)
        ops = [op for op in schedule.of_step(Lane.COMPUTE, 0) if op.micro_batch >= 0]
        passes = list(islice(played.passes(), 2 * setting.sequences))
        played.close()
        assert [word for word, _ in played.played] == 2 * [op.word for op in ops]
        kinds = Counter((op.kind, op.unit) for op in ops)
        assert all(set(passed.took_s) == set(kinds) for passed in passes)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_as_many_micro_batches_are_in_flight_as_in_the_step(rank: int, tmp_path: Path) -> None:
    played, schedule, _ = rehearsal(Setting("1f1b", pipeline=3), rank, tmp_path)
    list(islice(played.passes(), 8))
    assert max(graphs for _, graphs in played.played) == (3 - rank) * len(schedule.units)


def test_of_long_steps_the_first_micro_batches_take_part(tmp_path: Path) -> None:
    played, _, _ = rehearsal(Setting("gpipe", pipeline=1, sequences=40), 0, tmp_path)
    list(islice(played.passes(), 16))
    assert {int(word.split("F")[1]) for word, _ in played.played if "F" in word} == set(range(16))


def test_a_rank_that_computes_nothing_has_nothing_to_play(tmp_path: Path) -> None:
    _played, schedule, states = rehearsal(Setting("1f1b", pipeline=2), 0, tmp_path)
    idle = replace(schedule, ops=tuple(op for op in schedule.ops if op.lane is not Lane.COMPUTE))
    stand_in = MicroBatch(torch.zeros(1, 1), torch.zeros(1, 1))
    timer = launched(lambda: None)
    played = Rehearsal(idle, states, (1, 1, 1), stand_in, Allocator(), None, timer)
    assert list(played.passes()) == []
