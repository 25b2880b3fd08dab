"""Every schedule of the same semantics gives the same bits, and they are the right numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from crew import Crew
from plain_numbers import plain_losses
from runs_made import Setting, beginning, write_job
from torch import Tensor
from training import Result, train

from ratrain.describe.job import JobSpec
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plan.layout.jobs import load_job
from ratrain.program.skeletons import TOGETHER, layer_major_name
from ratrain.program.strategies import PASSES, STRATEGIES
from ratrain.runtime.step.optimizer import learning_rate

LAYOUTS = [(1, 1), (2, 1), (1, 2), (1, 4), (2, 2), (3, 1)]
PLAIN = [
    *("1f1b", "gpipe", "zb-h1", "megatron", "baseline-1f1b", "tuned", "full-save", "zero3-heavy"),
    *(
        "paper-backward-checkpoint",
        "paper-baseline-1f1b",
        "paper-tuned",
        "breadth-first",
        "pe-zero",
    ),
]
INTERLEAVED = ["interleaved", "megatron-interleaved"]
CHOICES = [
    *(Setting(name) for name in ["ratrain", "backward-checkpoint", *PLAIN]),
    *(Setting(without=(left_out,)) for left_out in PASSES),
    Setting(without=PASSES),
    *(
        Setting(recovery=recovery)
        for recovery in ("keep-all", "selective", "exempt-last", "everywhere")
    ),
    *(Setting(skeleton=layer_major_name(together)) for together in (*TOGETHER, 3)),
    *(Setting(skeleton=layer_major_name(2), sharding=level) for level in range(4)),
    *(
        Setting(skeleton=layer_major_name(4), recovery=recovery)
        for recovery in ("keep-all", "exempt-last", "everywhere")
    ),
    *(Setting(sharding=level) for level in range(4)),
    *(Setting("zb-h1", sharding=level) for level in (0, 2, 3)),
    *(Setting("gpipe", sharding=level) for level in (2, 3)),
]
SHARDED = [
    Setting(accumulation="sharded"),
    Setting(accumulation="sharded", sharding=3),
    Setting(accumulation="sharded", recovery="everywhere"),
    Setting(accumulation="sharded", skeleton="layer-major-2"),
    Setting(accumulation="sharded", skeleton="layer-major-4", sharding=3),
    Setting("tuned", accumulation="sharded"),
    Setting("zero3-heavy", accumulation="sharded"),
    Setting("backward-checkpoint", accumulation="sharded"),
    Setting("zb-h1", accumulation="sharded", sharding=2),
]

Doubles = npt.NDArray[np.float64]
MANY = 64
"""Micro-batches whose gradients are added up."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_every_strategy_that_runs_is_among_these() -> None:
    tried = {setting.name for setting in CHOICES} | set(INTERLEAVED)
    tensor = {"tensor-parallel-heavy", "paper-tensor-parallel-heavy"}
    assert tried == set(STRATEGIES) - tensor


@pytest.fixture(scope="module")
def usual(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Result]:
    """What 1F1B gives on every layout."""
    folder = tmp_path_factory.mktemp("usual")
    return {
        layout: train(crew, Setting("1f1b").at(layout), folder / str(n))
        for n, layout in enumerate(LAYOUTS)
    }


@pytest.mark.matrix
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "p{}d{}".format(*layout))
def test_every_strategy_gives_the_same_bits(
    layout: tuple[int, int],
    crew: Crew,
    usual: dict[tuple[int, int], Result],
    tmp_path: Path,
) -> None:
    others = [choice.at(layout) for choice in CHOICES]
    if layout[0] == 2:
        others += [replace(Setting(name, virtual=2).at(layout)) for name in INTERLEAVED]
    for number, setting in enumerate(others):
        result = train(crew, setting, tmp_path / str(number))
        assert not result.differences(usual[layout]), str(setting)


@pytest.mark.parametrize("layout", [(1, 2), (2, 2)], ids=lambda layout: "p{}d{}".format(*layout))
def test_sharded_accumulation_gives_the_same_bits_among_its_own(
    layout: tuple[int, int], crew: Crew, tmp_path: Path
) -> None:
    results = [
        train(crew, setting.at(layout), tmp_path / str(number))
        for number, setting in enumerate(SHARDED)
    ]
    for result, setting in zip(results, SHARDED, strict=True):
        assert not result.differences(results[0]), str(setting)


def test_the_depth_of_a_pipeline_changes_no_bit(usual: dict[tuple[int, int], Result]) -> None:
    for deep, flat in (((2, 1), (1, 1)), ((3, 1), (1, 1)), ((2, 2), (1, 2))):
        assert not usual[deep].differences(usual[flat])


@pytest.mark.matrix
@pytest.mark.parametrize("layout", [(1, 1), (2, 2)], ids=["p1d1", "p2d2"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_run_agrees_with_plain_torch(
    layout: tuple[int, int], clip_norm: float | None, crew: Crew, tmp_path: Path
) -> None:
    setting = Setting(steps=5, clip_norm=clip_norm).at(layout)
    result = train(crew, setting, tmp_path / "ours")
    job = load_job(write_job(tmp_path / "plain", setting))
    losses, norms, units = plainly_trained(job)
    assert result.loss_values == pytest.approx(losses, rel=2e-6)
    if clip_norm is not None:
        assert max(norms) > clip_norm, "nothing was clipped"
        assert result.norms == pytest.approx(norms, rel=1e-5)
    for unit, weights in units.items():
        assert np.abs(result.units[unit][0] - weights).max() < 2e-4, unit


def test_every_token_that_counts_weighs_the_same_in_every_layout(
    crew: Crew, tmp_path: Path
) -> None:
    """Masked targets (-100) lie unevenly on sequences, so on micro-batches and replicas too: a mean
    of means, or a sum over all tokens, would give other gradients."""
    setting = Setting(masked=True, micro_batch=2, clip_norm=0.5)
    job = load_job(write_job(tmp_path / "plain", setting))
    losses, norms, units = plainly_trained(job, setting)
    counts = [(setting.samples(0, first, 4)[1] >= 0).sum() for first in (0, 4)]
    assert 0 < 2 * min(counts) < max(counts), "replicas count almost alike"
    layouts = [(1, 1, 1), (1, 2, 1), (2, 2, 1), (1, 4, 1), (4, 1, 1), (2, 1, 2)]
    results = [
        train(
            crew,
            replace(setting, pipeline=pipeline, data=data, tensor=tensor),
            tmp_path / f"{pipeline}-{data}-{tensor}",
        )
        for pipeline, data, tensor in layouts
    ]
    for result, layout in zip(results, layouts, strict=True):
        assert result.loss_values == pytest.approx(losses, rel=2e-6), layout
        assert result.norms == pytest.approx(norms, rel=1e-5), layout
        for unit, weights in units.items():
            assert np.abs(result.units[unit][0] - weights).max() < 2e-4, (layout, unit)
    assert not results[0].differences(results[4]), "the depth of a pipeline changes no bit"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("dtype", "gradient_dtype"),
    [("fp32", "fp32"), ("bf16", "fp32"), ("fp16", "fp32"), ("bf16", "bf16")],
)
def test_clipping_and_precision_give_the_same_bits_at_every_level_and_schedule(
    dtype: str, gradient_dtype: str, crew: Crew, tmp_path: Path
) -> None:
    usual = Setting(dtype=dtype, gradient_dtype=gradient_dtype, clip_norm=0.5).at((2, 2))
    choices = [
        replace(usual, name=name, sharding=level)
        for name in ("ratrain", "zb-h1", "gpipe")
        for level in range(4)
    ]
    results = [train(crew, result, tmp_path / str(number)) for number, result in enumerate(choices)]
    assert all(norm > 0.5 for norm in results[0].norms)
    for result, setting in zip(results, choices, strict=True):
        assert not result.differences(results[0]), str(setting)
        assert result.norms == results[0].norms, str(setting)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_lower_precision_stays_near_fp32(
    dtype: str, crew: Crew, usual: dict[tuple[int, int], Result], tmp_path: Path
) -> None:
    result = train(crew, Setting(dtype=dtype).at((2, 2)), tmp_path)
    assert result.loss_values == pytest.approx(usual[2, 2].loss_values, rel=0.01)
    assert result.losses != usual[2, 2].losses


@pytest.fixture(scope="module")
def sum_of_gradients(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Doubles]:
    """By unit, the first moment of one bf16 step if the gradients of its micro-batches,
    each as it comes out of a step of its own, were added up without rounding."""
    total: dict[str, Doubles] = {}
    for first in range(MANY):
        alone = Setting(steps=1, sequences=1, first=first, dtype="bf16")
        result = train(crew, alone, tmp_path_factory.mktemp("alone"))
        for unit, (_, moment, _) in result.units.items():
            total[unit] = total.get(unit, 0) + moment.astype(np.float64) / MANY
    return total


@pytest.mark.parametrize("layout", [(1, 1), (1, 2)], ids=["p1d1", "p1d2"])
def test_many_micro_batches_add_up_as_in_fp32_unless_a_job_asks_for_16_bits(
    layout: tuple[int, int],
    crew: Crew,
    sum_of_gradients: dict[str, Doubles],
    tmp_path: Path,
) -> None:
    """Added up in fp32, bf16 gradients are less than half as far from their sum as in bf16."""
    far: dict[str, float] = {}
    for gradient_dtype in ("fp32", "bf16"):
        setting = Setting(steps=1, sequences=MANY, dtype="bf16", gradient_dtype=gradient_dtype)
        result = train(crew, setting.at(layout), tmp_path / gradient_dtype)
        squares = (
            np.square(result.units[unit][1] - moment).sum()
            for unit, moment in sum_of_gradients.items()
        )
        far[gradient_dtype] = float(np.sqrt(sum(squares)))
    assert 0 < far["fp32"] < far["bf16"] / 2, far


def test_a_step_whose_gradients_overflow_changes_nothing_but_the_scale(
    crew: Crew, tmp_path: Path
) -> None:
    setting = Setting(dtype="fp16", loss_scale=2.0**30, steps=1)
    for number, layout in enumerate([(1, 1), (2, 2)]):
        result = train(crew, setting.at(layout), tmp_path / str(number))
        assert result.loss_scales == {2.0**29}
        job = load_job(tmp_path / str(number) / "job.toml")
        for unit, begun in begun_units(job).items():
            assert np.array_equal(result.units[unit][0], begun)
            assert not result.units[unit][1].any() and not result.units[unit][2].any()


def test_training_goes_on_once_the_scale_is_small_enough(crew: Crew, tmp_path: Path) -> None:
    setting = Setting(dtype="fp16", loss_scale=2.0**27, steps=14).at((2, 2))
    choices = [setting, replace(setting, name="1f1b"), replace(setting, sharding=0)]
    results = [
        train(crew, setting, tmp_path / str(number)) for number, setting in enumerate(choices)
    ]
    (scale,) = results[0].loss_scales
    assert 1.0 < scale < 2.0**26, "the first steps were not skipped, or nothing else was done"
    assert any(moment.any() for _, moment, _ in results[0].units.values())
    assert not any(result.differences(results[0]) for result in results)


def test_the_first_update_is_a_whole_one_however_many_steps_overflowed_before(
    crew: Crew, tmp_path: Path
) -> None:
    """AdamW's first update is the learning rate times the gradient's sign: its bias correction
    counts updates, not steps."""
    setting = Setting(dtype="fp16", loss_scale=2.0**27).at((2, 2))
    norms = train(crew, replace(setting, steps=14), tmp_path / "long").norms
    skipped = list(np.isfinite(norms)).index(True)
    assert skipped >= 2
    result = train(crew, replace(setting, steps=skipped + 1), tmp_path / "short")
    job = load_job(tmp_path / "short" / "job.toml")
    begun = begun_units(job)
    for unit in ("0", "3"):  # all of a layer has a gradient, unlike words that do not occur
        moved = np.median(abs(result.units[unit][0] - begun[unit]))
        assert moved == pytest.approx(learning_rate(job.train, skipped), rel=0.05), unit


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(6))
def test_no_timing_changes_a_bit(
    seed: int, crew: Crew, usual: dict[tuple[int, int], Result], tmp_path: Path
) -> None:
    for number, layout in enumerate([(2, 2), (3, 1)]):
        name = ("ratrain", "zb-h1", "zero3-heavy")[seed % 3]
        result = train(crew, Setting(name).at(layout), tmp_path / str(number), delays=seed)
        assert not result.differences(usual[layout])


def test_the_ledger_never_holds_more_than_the_verifier_s_bound(crew: Crew, tmp_path: Path) -> None:
    for number, name in enumerate(["ratrain", "zb-h1", "gpipe", "tuned", "zero3-heavy"]):
        result = train(
            crew, Setting(name, steps=4).at((2, 2)), tmp_path / str(number), delays=number
        )
        for peak, bound in zip(result.ledger_peaks, result.bounds, strict=True):
            assert 0 < peak <= bound


# ---- plain torch ----------------------------------------------------------------------------


def begun_units(job: JobSpec) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """The flat buffers that a run begins with."""
    spec = job.model.spec
    return {
        unit: beginning(spec, unit, "weights", 0, unit_layout(spec, unit).size).numpy()
        for unit in unit_names(spec)
    }


def plainly_trained(
    job: JobSpec,
    setting: Setting | None = None,
) -> tuple[list[float], list[float], dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]]:
    """Losses, norms and flat buffers of the reference after the job's steps."""
    spec = job.model.spec
    flats = {unit: torch.from_numpy(flat) for unit, flat in begun_units(job).items()}
    leaves: dict[str, Tensor] = {}
    for unit, flat in flats.items():
        for parameter in unit_layout(spec, unit).parameters:
            leaves[f"{unit}.{parameter.name}"] = (
                flat[parameter.offset : parameter.end].view(parameter.shape).clone()
            )
    batches = [
        (torch.from_numpy(tokens), torch.from_numpy(targets))
        for tokens, targets in (
            (setting or Setting()).samples(step, 0, job.batch.sequences)
            for step in range(job.train.steps)
        )
    ]
    losses, norms = plain_losses(spec, leaves, job.train, batches)
    for unit, flat in flats.items():
        for parameter in unit_layout(spec, unit).parameters:
            flat[parameter.offset : parameter.end] = (
                leaves[f"{unit}.{parameter.name}"].detach().flatten()
            )
    return losses, norms, {unit: flat.numpy() for unit, flat in flats.items()}


def test_units_that_decide_by_themselves_have_the_same_bits_in_every_schedule(
    crew: Crew, tmp_path: Path
) -> None:
    """At this loss scale some units overflow in some steps and others do not."""
    setting = Setting(dtype="fp16", loss_scale=2.0**21, overflow="unit", steps=4).at((2, 2))
    choices = [
        setting,
        replace(setting, name="1f1b"),
        replace(setting, name="baseline-1f1b"),
        replace(setting, sharding=0),
        replace(setting, name="zero3-heavy"),
    ]
    results = [
        train(crew, setting, tmp_path / str(number)) for number, setting in enumerate(choices)
    ]
    assert not any(result.differences(results[0]) for result in results)
    assert results[0].loss_scales == {2.0**21}, "the loss scale stays"
    job = load_job(tmp_path / "0" / "job.toml")
    begun = begun_units(job)
    untouched = {name for name in begun if np.array_equal(results[0].units[name][0], begun[name])}
    assert untouched and untouched != set(begun), untouched


def test_units_that_decide_by_themselves_train_as_all_together_where_none_overflows(
    crew: Crew, tmp_path: Path
) -> None:
    setting = Setting(dtype="fp16", loss_scale=1024.0).at((2, 2))
    together = train(crew, setting, tmp_path / "together")
    alone = train(crew, replace(setting, overflow="unit"), tmp_path / "alone")
    assert not alone.differences(together)
