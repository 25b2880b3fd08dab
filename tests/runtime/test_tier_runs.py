"""Optimizer states in host memory and on disk, on real processes: the bits of a run without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from crew import Crew
from runs_made import Setting, Unlike
from training import Result, train

from ratrain.describe.optimizers import OPTIMIZERS
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import STRATEGIES

pytestmark = [pytest.mark.slow]

TIERS = ("host", "disk")


def bits_of(result: Result) -> dict[str, list[bytes]]:
    """Weights and optimizer states of every unit."""
    return {unit: [b.tobytes() for b in buffers] for unit, buffers in result.units.items()}


def assert_same_bits(crew: Crew, folder: Path, setting: Setting, tier: str) -> Result:
    """A run with its optimizer in a tier has the bits of one without, within both proofs."""
    away = train(crew, replace(setting, optimizer_tier=tier), folder / tier)
    kept = train(crew, setting, folder / "kept")
    assert away.losses == kept.losses and bits_of(away) == bits_of(kept)
    assert all(p <= b for p, b in zip(away.ledger_peaks, away.bounds, strict=True))
    assert all(0 < p <= b for p, b in zip(away.host_peaks, away.host_bounds, strict=True))
    assert not any(kept.host_peaks)
    assert away.moved and all(row["as_program"] for row in away.moved), away.moved
    assert not list((folder / tier / "tier").glob("*"))
    return away


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("sharding", [0, 1, 2, 3])
@pytest.mark.parametrize("tier", TIERS)
def test_no_bit_changes_at_any_sharding_level(
    crew: Crew, tmp_path: Path, tier: str, sharding: int, dtype: str
) -> None:
    accumulation = "sharded" if sharding > 1 else "local"
    setting = Setting("ratrain", 2, 2, sharding=sharding, dtype=dtype, accumulation=accumulation)
    assert_same_bits(crew, tmp_path, replace(setting, clip_norm=1.0), tier)


def _settings() -> list[Setting]:
    """Every strategy that trains, every order, every optimizer."""
    settings = [
        Setting(name, 2, 2, recovery="auto")
        for name in STRATEGIES
        if not name.startswith("paper-") and name != "tensor-parallel-heavy"
    ]
    settings += [Setting("ratrain", 2, 1, skeleton=skeleton) for skeleton in SKELETONS]
    settings += [
        Setting("ratrain", 2, 1, dtype="bf16", optimizer=name, sharding=0) for name in OPTIMIZERS
    ]
    return [replace(s, virtual=2) if _chunks(s) else s for s in settings]


def _chunks(setting: Setting) -> bool:
    name = setting.skeleton or STRATEGIES[setting.name].skeleton
    return SKELETONS[name].chunks and name != "breadth-first"


@pytest.mark.matrix
@pytest.mark.parametrize("setting", _settings(), ids=str)
def test_no_bit_changes_in_any_schedule_or_optimizer(
    crew: Crew, tmp_path: Path, setting: Setting
) -> None:
    assert_same_bits(crew, tmp_path, setting, "disk")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "setting",
    [
        Setting("ratrain", 2, 2, dtype="fp16", clip_norm=0.5),
        Setting(
            "ratrain", 1, 2, dtype="bf16", sharding=2, accumulation="sharded", bucket_bytes=40_000
        ),
        Setting("ratrain", 2, 2, dtype="bf16", error_feedback=True),
        Setting("ratrain", 1, 2, tensor=2, dtype="bf16"),
        Setting("1f1b", 2, 2, dtype="bf16", model=(("tie_word_embeddings", True),)),
        Setting("ratrain", 2, 1, dtype="bf16", validate_every=2),
        Setting("1f1b", 2, 2, dtype="bf16", unlike=(Unlike((2, 2), 4), Unlike((4,), 4))),
        Setting(
            "1f1b",
            unlike=(Unlike((2, 2), 4), Unlike((4,), 4, tensor=(2,))),
            dtype="bf16",
            sharding=0,
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("tier", TIERS)
def test_no_bit_changes_beside_what_else_a_job_may_ask_for(
    crew: Crew, tmp_path: Path, setting: Setting, tier: str
) -> None:
    assert_same_bits(crew, tmp_path, setting, tier)


@pytest.mark.matrix
@pytest.mark.parametrize("sharding", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_checkpoint_saved_meanwhile_goes_on_with_the_same_bits_in_any_tier(
    crew: Crew, tmp_path: Path, sharding: int, dtype: str, seed: int
) -> None:
    """Ops sleep at random, so that saves, stores and fetches meet in other orders."""
    setting = Setting("ratrain", 2, 2, sharding=sharding, dtype=dtype, steps=4, every=2, keep=4)
    whole = train(crew, setting, tmp_path / "kept")
    away = replace(setting, optimizer_tier="disk")
    saved = train(crew, away, tmp_path / "away", delays=seed, saves=True)
    assert bits_of(saved) == bits_of(whole)
    checkpoint = tmp_path / "away" / "run" / "checkpoints" / "step-00000002"
    for tier in (None, *TIERS):
        again = replace(setting, optimizer_tier=tier)
        went_on = train(crew, again, tmp_path / f"on-{tier}", checkpoint=checkpoint)
        assert went_on.losses == whole.losses[2:]
        assert bits_of(went_on) == bits_of(whole)


def _waiting(setting: Setting, tier: str, *what: str) -> Setting:
    """The setting with states of these sorts in a tier."""
    return replace(setting, **dict.fromkeys((f"{each}_tier" for each in what), tier))


def assert_same_run(crew: Crew, folder: Path, setting: Setting, away: Setting) -> Result:
    """A run with states in tiers has the bits of one without, within the proof of each tier."""
    kept, moved = train(crew, setting, folder / "kept"), train(crew, away, folder / "away")
    assert moved.losses == kept.losses and bits_of(moved) == bits_of(kept)
    assert all(p <= b for p, b in zip(moved.ledger_peaks, moved.bounds, strict=True))
    assert all(p <= b for p, b in zip(moved.host_peaks, moved.host_bounds, strict=True))
    assert any(moved.host_peaks)
    # What is kept of a forward may be less than what is proved of it.
    assert moved.moved and (away.recovery == "spill" or all(r["as_program"] for r in moved.moved))
    assert not list((folder / "away" / "tier").glob("*"))
    return moved


@pytest.mark.matrix
@pytest.mark.parametrize("sharding", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("skeleton", [s for s in SKELETONS if not s.startswith("layer-major-1")])
def test_weights_optimizer_and_gradients_on_disk_change_no_bit_in_any_order_or_sharding_level(
    crew: Crew, tmp_path: Path, skeleton: str, dtype: str, sharding: int
) -> None:
    setting = Setting("ratrain", 2, 2, sharding=sharding, dtype=dtype, skeleton=skeleton)
    setting = replace(setting, virtual=2) if _chunks(setting) else setting
    away = _waiting(setting, "disk", "optimizer", "view", "gradient")
    assert_same_run(crew, tmp_path, setting, away)


@pytest.mark.matrix
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("recovery", ["keep-all", "everywhere"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("skeleton", ["gpipe", "breadth-first", "layer-major-4", "zb-h1"])
def test_activations_in_a_tier_change_no_bit_whether_spilled_or_recomputed(
    crew: Crew, tmp_path: Path, skeleton: str, dtype: str, recovery: str, tier: str
) -> None:
    """Split backward keeps the inputs that recomputing needs: nothing waits."""
    if skeleton == "zb-h1" and recovery == "everywhere":
        skeleton = "1f1b"
    setting = Setting("ratrain", 2, 2, skeleton=skeleton, dtype=dtype, recovery=recovery)
    away = _waiting(setting, tier, "activation")
    if recovery == "keep-all":
        setting = replace(setting, sequences=16)
        away = replace(away, sequences=16, recovery="spill")
    assert_same_run(crew, tmp_path, setting, away)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "setting",
    [
        Setting("ratrain", 2, 2, dtype="fp16", clip_norm=0.5),
        Setting("ratrain", 1, 2, dtype="bf16", sharding=2, accumulation="sharded"),
        Setting(
            "ratrain", 1, 2, dtype="bf16", sharding=2, accumulation="sharded", bucket_bytes=40_000
        ),
        Setting("ratrain", 2, 2, dtype="bf16", error_feedback=True),
        Setting("ratrain", 1, 2, tensor=2, dtype="bf16"),
        Setting("1f1b", 2, 2, dtype="bf16", model=(("tie_word_embeddings", True),)),
        Setting("ratrain", 2, 1, dtype="bf16", validate_every=2),
        Setting("pe-zero", 2, 2, dtype="fp32", validate_every=2),
        Setting("ratrain", 2, 2, gradient_wire="bf16"),
        Setting("1f1b", 2, 2, dtype="bf16", unlike=(Unlike((2, 2), 4), Unlike((4,), 4))),
        Setting(
            "1f1b",
            unlike=(Unlike((2, 2), 4), Unlike((4,), 4, tensor=(2,))),
            dtype="bf16",
            sharding=0,
        ),
    ],
    ids=str,
)
def test_everything_in_tiers_changes_no_bit_beside_what_else_a_job_may_ask_for(
    crew: Crew, tmp_path: Path, setting: Setting
) -> None:
    away = _waiting(setting, "disk", "optimizer", "view", "activation")
    assert_same_run(crew, tmp_path, setting, replace(away, activation_tier="host"))


@pytest.mark.matrix
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    "setting",
    [
        Setting("ratrain", 2, 2, clip_norm=0.5),
        Setting("ratrain", 2, 1, clip_norm=0.5, sharding=0, skeleton="layer-major-4"),
        Setting("ratrain", 1, 2, clip_norm=0.5, sharding=1, gradient_wire="bf16"),
        Setting("ratrain", 2, 2, dtype="bf16", clip_norm=0.5, error_feedback=True),
        Setting("ratrain", 2, 2, dtype="fp16", loss_scale=2.0**21),
        Setting("ratrain", 2, 1, dtype="fp16", loss_scale=2.0**21, overflow="unit"),
        Setting("ratrain", 1, 1, model=(("tie_word_embeddings", True),)),
        Setting("ratrain", 2, 2, clip_norm=0.5, model=(("tie_word_embeddings", True),)),
    ],
    ids=str,
)
def test_gradients_wait_beside_clipping_loss_scales_and_tied_weights_and_no_bit_changes(
    crew: Crew, tmp_path: Path, setting: Setting, tier: str
) -> None:
    assert_same_run(crew, tmp_path, setting, _waiting(setting, tier, "gradient"))


@pytest.mark.parametrize("ranks", [(1, 1), (2, 2)])
def test_with_everything_on_disk_and_clipping_no_bit_changes(
    crew: Crew, tmp_path: Path, ranks: tuple[int, int]
) -> None:
    setting = Setting("ratrain", *ranks, clip_norm=0.5)
    away = _waiting(setting, "disk", "optimizer", "view", "gradient", "activation")
    assert_same_run(crew, tmp_path, setting, away)


@pytest.mark.matrix
@pytest.mark.parametrize("ranks", [(2, 1), (1, 2), (1, 1)])
def test_a_checkpoint_of_a_run_with_states_in_tiers_goes_on_with_other_ranks_and_tiers(
    crew: Crew, tmp_path: Path, ranks: tuple[int, int]
) -> None:
    setting = Setting("ratrain", 2, 2, dtype="bf16", steps=4, every=2, keep=4)
    away = _waiting(setting, "disk", "optimizer", "view", "activation")
    whole = train(crew, away, tmp_path / "whole", saves=True)
    checkpoint = tmp_path / "whole" / "run" / "checkpoints" / "step-00000002"
    other = replace(setting, pipeline=ranks[0], data=ranks[1])
    went_on = [
        train(crew, each, tmp_path / f"on-{number}", checkpoint=checkpoint)
        for number, each in enumerate((other, _waiting(other, "host", "optimizer", "view")))
    ]
    assert went_on[0].losses == went_on[1].losses
    assert bits_of(went_on[0]) == bits_of(went_on[1])
    if ranks == (2, 2):
        assert went_on[0].losses == whole.losses[2:]
