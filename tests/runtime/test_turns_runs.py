"""Replicas that average each unit in a step of its own, as processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from launched import cut_short, loss_bits, made, saved_steps, start
from runs_made import Setting

from ratrain.checkpoint.listing import latest, listed
from ratrain.checkpoint.own import own_kind
from ratrain.checkpoint.reader import Checkpoint, open_checkpoint
from ratrain.describe.average_wires import AVERAGE_WIRES, AverageWire
from ratrain.program.kind import Cost, Kind
from ratrain.runtime.run.reports.difference import difference_of
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run_folder import RunFolder

SETTING = Setting("ratrain", pipeline=2, data=2, average_every=3, averages="early-start", steps=7)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(path: Path, setting: Setting, *, calibrate: bool = False) -> RunFolder:
    folder = made(path, setting, calibrate=calibrate)
    start(folder)
    return folder


def end(folder: RunFolder) -> Checkpoint:
    checkpoint = latest(folder.checkpoints)
    assert checkpoint is not None
    return open_checkpoint(checkpoint.path)


def differing(a: RunFolder, b: RunFolder) -> list[str]:
    """States that two runs end with unlike, in any bit."""
    ends = end(a), end(b)
    assert ends[0].kinds == ends[1].kinds
    return [
        f"{unit}/{kind}"
        for unit, size in ends[0].manifest.meta.units.items()
        for kind in ends[0].manifest.kinds_of(unit)
        if len({each.read_range(unit, kind, 0, size).tobytes() for each in ends}) > 1
    ]


def turns_of(folder: RunFolder) -> dict[str, int]:
    """Each unit's step, of a run's program."""
    table = folder.read_program().table
    names = [unit.name for member in table.setup.members for unit in member.units]
    rows = np.flatnonzero([Kind(kind).cost is Cost.AVERAGE for kind in table.kind.tolist()])
    return {names[table.unit[row]]: int(table.step[row]) for row in rows}


@pytest.mark.parametrize(("dtype", "data"), [("fp32", 3), ("bf16", 2)])
def test_an_early_start_leaves_the_same_bits_as_averages_behind_backward(
    dtype: str, data: int, tmp_path: Path
) -> None:
    setting = replace(SETTING, dtype=dtype, data=data, sequences=12)
    early = run(tmp_path / "early", setting, calibrate=True)
    turns = turns_of(early)
    assert set(turns) == set(early.read_setup().unit_degrees) and len(set(turns.values())) > 1
    asked = replace(setting, averages="dreamddp", turns=tuple(turns.items()))
    published = run(tmp_path / "published", asked, calibrate=True)
    assert turns_of(published) == turns
    assert loss_bits(early) == loss_bits(published)
    assert not differing(early, published)
    for folder, word in ((early, "AverageCopy"), (published, "AverageW")):
        steps = [difference_of(folder, step).ops for step in (4, 5, 6)]
        assert not any(step.missing or step.extra for step in steps)
        averaged = [op.word for step in steps for op in step.ops if word in op.word]
        assert len(averaged) == len(turns), "each once in a period"
        assert report_of(folder)["period"]["whole"]


def test_a_run_goes_on_bit_by_bit_from_the_middle_of_a_period(tmp_path: Path) -> None:
    setting = replace(SETTING, every=2, keep=9)
    whole = run(tmp_path / "whole", setting)
    assert saved_steps(whole) == [2, 4, 6, 7]
    for upto in (2, 4):
        folder = cut_short(whole, tmp_path / str(upto), setting, upto)
        start(folder)
        assert loss_bits(folder) == loss_bits(whole)
        assert not differing(folder, whole)


def test_an_update_begins_with_the_mean_and_replicas_keep_their_own_step(tmp_path: Path) -> None:
    """A step of AdamW moves a weight by at most the learning rate, or little more: after the second
    step, which averages, both replicas are that near to the mean of the first, and not alike. Who
    asks a checkpoint for weights gets the mean of all replicas'."""
    setting = Setting(
        "1f1b", data=2, average_every=1, averages="early-start", steps=3, sequences=8,
        every=1, keep=9, train=(("optimizer", "adamw"), ("weight_decay", 0.0)),
    )  # fmt: skip
    saved = listed(run(tmp_path, setting).checkpoints)
    one, two = (open_checkpoint(checkpoint.path) for checkpoint in saved[:2])
    for unit, size in one.manifest.meta.units.items():
        first = [one.read_range(unit, own_kind("weights", k, 2), 0, size) for k in range(2)]
        last = [two.read_range(unit, own_kind("weights", k, 2), 0, size) for k in range(2)]
        mean = one.read_range(unit, "weights", 0, size)
        assert np.array_equal(mean, (first[0] + first[1]) / np.float32(2)), unit
        assert not np.array_equal(first[0], first[1]) and not np.array_equal(last[0], last[1])
        moved = [after - mean for after in last]
        assert max(float(abs(each).max()) for each in moved) < 2 * 1e-2, "one AdamW step"


def test_an_outer_step_of_rate_one_without_momentum_is_the_mean(tmp_path: Path) -> None:
    setting = replace(SETTING, steps=4)
    plain = run(tmp_path / "plain", setting)
    keys = (("outer_learning_rate", 1.0), ("outer_momentum", 0.0))
    outer = run(tmp_path / "outer", replace(setting, train=keys))
    for a, b in zip(loss_values(plain), loss_values(outer), strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    assert loss_values(run(tmp_path / "other", replace(setting, train=OUTER))) != loss_values(outer)


@pytest.mark.parametrize("wire", [None, "bf16", "int8", "int4"])
def test_an_outer_step_goes_on_bit_by_bit_and_all_replicas_have_its_states(
    wire: AverageWire | None, tmp_path: Path
) -> None:
    setting = replace(SETTING, every=2, keep=9, train=OUTER, average_wire=wire)
    setting = replace(setting, pipeline=1 if wire else 2)  # then averages are all that is sent
    whole = run(tmp_path / "whole", setting)
    kinds = {"outer_momentum", "outer_weights", "weights.1of2"}
    assert kinds | ({"outer_residual.1of2"} if wire else set()) <= set(end(whole).kinds)
    if wire:
        wide = run(tmp_path / "wide", replace(setting, average_wire=None))
        losses = zip(loss_values(whole), loss_values(wide), strict=True)
        assert all(a == pytest.approx(b, rel=1e-2) for a, b in losses)
        assert loss_bits(whole) != loss_bits(wide)
        part = AVERAGE_WIRES[wire].bytes_per_param / 4
        assert part * 0.95 < sent_bytes(whole) / sent_bytes(wide) < part + 0.1
    folder = cut_short(whole, tmp_path / "again", setting, 4)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert not differing(folder, whole)


OUTER = (("outer_learning_rate", 0.7), ("outer_momentum", 0.9))


def loss_values(folder: RunFolder) -> list[float]:
    return [float.fromhex(loss) for loss in loss_bits(folder)]


def sent_bytes(folder: RunFolder) -> float:
    """What all ranks have sent in the run's last steps, a period of them."""
    rows = folder.read_metrics()
    return sum(rank["sent_bytes"] for row in rows[-3:] for rank in row["ranks"])
