"""The loss on held-out sequences: the same in every layout, and training does not notice it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from crew import Crew
from launched import made
from plain_numbers import plain_logits
from runs_made import Setting, write_job
from torch.nn import functional
from training import Result, train

from ratrain.errors import SpecError
from ratrain.models.shapes import unit_layout
from ratrain.plan.layout.jobs import load_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETTING = Setting(steps=5, validate_every=2)
OFFLOADING = (
    "forward-recovery",
    "layerwise-state-pipeline",
    "update-prefetch",
    "offload-inputs",
)
LAYOUTS = [(1, 1, 1), (2, 2, 1), (1, 4, 1), (4, 1, 1), (2, 1, 2)]


def laid_out(setting: Setting, layout: tuple[int, int, int]) -> Setting:
    pipeline, data, tensor = layout
    return replace(setting, pipeline=pipeline, data=data, tensor=tensor)


def plain_loss(setting: Setting, result: Result, folder: Path) -> tuple[float, int]:
    """The held-out loss of a run's last weights, in plain torch."""
    spec = load_job(write_job(folder, setting)).model.spec
    leaves = {
        f"{unit}.{each.name}": torch.from_numpy(buffers[0][each.offset : each.end]).view(each.shape)
        for unit, buffers in result.units.items()
        for each in unit_layout(spec, unit).parameters
    }
    total, tokens = 0.0, 0
    for number in range(setting.held_out_batches):
        inputs, targets = map(
            torch.from_numpy, setting.held_out_samples(number, 0, setting.sequences)
        )
        logits = plain_logits(spec, leaves, inputs).flatten(0, 1)
        total += float(functional.cross_entropy(logits, targets.flatten(), reduction="sum"))
        tokens += int((targets >= 0).sum())
    return total / tokens, tokens


def test_every_layout_validates_alike_and_as_plain_torch_does(crew: Crew, tmp_path: Path) -> None:
    results = [
        train(crew, laid_out(SETTING, layout), tmp_path / str(number))
        for number, layout in enumerate(LAYOUTS)
    ]
    first = [float.fromhex(bits) for _, bits, _ in results[0].validated]
    for result, layout in zip(results, LAYOUTS, strict=True):
        assert [step for step, _, _ in result.validated] == [2, 4, 5], layout
        losses = [float.fromhex(bits) for _, bits, _ in result.validated]
        assert losses == pytest.approx(first, rel=2e-6), layout
        loss, tokens = plain_loss(SETTING, result, tmp_path / "plain")
        assert losses[-1] == pytest.approx(loss, rel=2e-6), layout
        assert result.validated[-1][2] == tokens == SETTING.held_out * 16
    assert results[0].validated == results[3].validated, "the depth of a pipeline changes no bit"


@pytest.mark.matrix
@pytest.mark.parametrize(
    "setting",
    [
        Setting(),
        Setting("zb-h1"),
        Setting("zero3-heavy", accumulation="sharded"),
        Setting("gpipe", dtype="fp16", clip_norm=0.5),
        Setting("interleaved", virtual=2),
        Setting("pe-zero", virtual=2),
        Setting(recovery="everywhere", passes=OFFLOADING),
    ],
    ids=str,
)
def test_training_does_not_notice_that_it_is_validated(
    setting: Setting, crew: Crew, tmp_path: Path
) -> None:
    setting = replace(setting, steps=5).at((2, 2))
    alone = train(crew, setting, tmp_path / "alone")
    for every in (1, 2, 7):
        validated = train(crew, replace(setting, validate_every=every), tmp_path / str(every))
        assert not validated.differences(alone)
        assert validated.norms == alone.norms
        assert len(validated.validated) == {1: 5, 2: 3, 7: 1}[every]
        for peak, bound in zip(validated.ledger_peaks, validated.bounds, strict=True):
            assert 0 < peak <= bound


def test_replicas_that_average_weights_are_validated_where_they_are_alike(
    crew: Crew, tmp_path: Path
) -> None:
    averaging = Setting("1f1b", 2, 2, steps=4, average_every=2)
    alone = train(crew, averaging, tmp_path / "alone")
    setting = replace(averaging, validate_every=2)
    validated = train(crew, setting, tmp_path / "validated")
    assert not validated.differences(alone)
    assert [step for step, _, _ in validated.validated] == [2, 4]
    loss, _ = plain_loss(setting, validated, tmp_path / "plain")
    assert float.fromhex(validated.validated[-1][1]) == pytest.approx(loss, rel=2e-6)


def test_replicas_are_not_validated_between_two_averages(tmp_path: Path) -> None:
    setting = Setting("1f1b", steps=4, average_every=2, validate_every=3)
    with pytest.raises(SpecError) as error:
        made(tmp_path, setting.at((1, 2)))
    assert "[train] validate_every" in error.value.place and "multiple of 2" in error.value.fix
