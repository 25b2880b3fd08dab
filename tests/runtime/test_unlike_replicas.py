"""Replicas that differ, on real processes: in cuts, in depth, in their share of each step."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crew import Crew
from runs_made import Setting, Unlike
from training import Result, train

OTHER_CUTS = (Unlike((3, 1), 4), Unlike((2, 2), 4))
OTHER_DEPTHS = (Unlike((2, 2), 4), Unlike((4,), 4))
OTHER_SHARES = (Unlike((1, 3), 5), Unlike((4,), 3))
OTHER_SIZES = (Unlike((4,), 2), Unlike((3, 1), 3, micro_batch=2))
DEEPER_SECOND = (Unlike((4,), 2), Unlike((1, 2, 1), 3, micro_batch=2))
THREE_AND_TWO = (Unlike((1, 2, 1), 4), Unlike((1, 3), 4))
SIZES_ALONE = (Unlike((2, 2), 2), Unlike((2, 2), 2, micro_batch=3))
FOLDED = (Unlike((4,), 1, micro_batch=2, count=2), Unlike((2, 2), 2, micro_batch=2))

ALONE = Setting("1f1b", learning_rate=1e-3)


@pytest.fixture(scope="module")
def five() -> Generator[Crew]:
    with Crew(5) as made:
        yield made


def unlike(replicas: tuple[Unlike, ...], name: str = "ratrain", **changes: Any) -> Setting:
    return replace(ALONE, name=name, unlike=replicas, **changes)


def assert_as_alone(result: Result, alone: Result, moment1: float = 1e-6) -> None:
    """The same losses, weights and moments, to rounding of fp32; `moment1`: of the first moment."""
    assert result.loss_values == pytest.approx(alone.loss_values, rel=1e-6)
    limits = {"weights": 1e-6, "moment1": moment1, "moment2": 1e-6}
    for unit, buffers in alone.units.items():
        for kind, ours, theirs in zip(limits, result.units[unit], buffers, strict=True):
            ours = ours[: len(theirs)]
            distance = np.linalg.norm((ours - theirs).astype(np.float64))
            limit = limits[kind] * np.linalg.norm(theirs.astype(np.float64))
            assert distance <= limit, (unit, kind)


def assert_validated_alike(result: Result, other: Result) -> None:
    """Both validated after the same steps, on as many tokens, with the same losses."""
    assert [(step, tokens) for step, _, tokens in result.validated] == [
        (step, tokens) for step, _, tokens in other.validated
    ]
    losses, expected = (
        [float.fromhex(loss) for _, loss, _ in each.validated] for each in (result, other)
    )
    assert losses == pytest.approx(expected, 1e-6)


def assert_held(result: Result) -> None:
    """The ledger never held more than was proved."""
    assert all(0 < p <= b for p, b in zip(result.ledger_peaks, result.bounds, strict=True))


@pytest.mark.slow
def test_a_replica_of_two_stages_and_one_of_one_train_as_one_process_does(
    crew: Crew, tmp_path: Path
) -> None:
    result = train(crew, unlike(OTHER_DEPTHS, steps=2), tmp_path / "unlike")
    assert_as_alone(result, train(crew, replace(ALONE, steps=2), tmp_path / "alone"))
    assert_held(result)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("replicas", "changes"),
    [
        (OTHER_CUTS, {"sharding": 0}),
        (OTHER_CUTS, {"sharding": 1, "clip_norm": 0.5}),
        (OTHER_CUTS, {"name": "gpipe"}),
        (OTHER_DEPTHS, {"sharding": 0, "name": "zb-h1"}),
        (OTHER_DEPTHS, {"sharding": 1}),
        (OTHER_SHARES, {"masked": True}),
        (OTHER_SHARES, {"sharding": 0, "masked": True}),
        (OTHER_SIZES, {"clip_norm": 0.5, "masked": True}),
        (OTHER_SIZES, {"sharding": 1, "name": "1f1b"}),
        (DEEPER_SECOND, {}),
        (FOLDED, {}),
        (OTHER_DEPTHS, {"network": "staged"}),
        (OTHER_CUTS, {"accumulation": "sharded"}),
        (SIZES_ALONE, {"accumulation": "sharded", "masked": True}),
        (SIZES_ALONE, {"sharding": 3}),
        (OTHER_CUTS, {"name": "pe-zero", "sharding": 3, "clip_norm": 0.5}),
        (OTHER_DEPTHS, {"name": "pe-zero", "sharding": 3, "network": "staged"}),
        (OTHER_SHARES, {"name": "pe-zero", "sharding": 3, "masked": True}),
        (DEEPER_SECOND, {"name": "pe-zero", "sharding": 3}),
    ],
    ids=lambda given: " ".join(map(str, given if isinstance(given, tuple) else given.items())),
)
def test_unlike_replicas_train_as_one_process_does(
    replicas: tuple[Unlike, ...], changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    setting = unlike(replicas, **changes)
    alone = replace(setting, unlike=(), name="1f1b", sharding=None, accumulation="local")
    alone = replace(alone, network="sockets")
    result = train(crew, setting, tmp_path / "unlike")
    assert_as_alone(result, train(crew, alone, tmp_path / "alone"))
    assert_held(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"sharding": 3}, {"accumulation": "sharded"}], ids=["level 3", "sharded gradients"]
)
def test_alike_replicas_beside_an_idle_device_train_at_every_level(
    changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    beside = unlike((Unlike((2, 2), 4, count=2),), idle=1, **changes)
    alone = train(crew, ALONE, tmp_path / "alone")
    result = train(crew, beside, tmp_path / "beside")
    assert_as_alone(result, alone)
    assert_held(result)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", [0, 2])
def test_replicas_of_three_and_two_stages_train_as_one_process_does(
    sharding: int, five: Crew, tmp_path: Path
) -> None:
    result = train(five, unlike(THREE_AND_TWO, sharding=sharding), tmp_path / "unlike")
    assert_as_alone(result, train(five, ALONE, tmp_path / "alone"))
    assert_held(result)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "replicas",
    [OTHER_CUTS, OTHER_DEPTHS, OTHER_SHARES, OTHER_SIZES],
    ids=lambda replicas: " ".join(map(str, replicas)),
)
def test_every_schedule_and_timing_of_unlike_replicas_has_the_same_bits(
    replicas: tuple[Unlike, ...], crew: Crew, tmp_path: Path
) -> None:
    first = train(crew, unlike(replicas), tmp_path / "ratrain")
    for name, sharding in (("1f1b", 0), ("gpipe", 1), ("zb-h1", 2), ("pe-zero", 3)):
        other = train(crew, unlike(replicas, name, sharding=sharding), tmp_path / name)
        assert not other.differences(first), name
        assert_held(other)
    late = train(crew, unlike(replicas), tmp_path / "late", delays=3)
    assert not late.differences(first)


@pytest.mark.slow
def test_each_replica_recovers_in_its_own_way_and_no_bit_changes(
    crew: Crew, tmp_path: Path
) -> None:
    kept = train(crew, unlike(OTHER_SHARES), tmp_path / "kept")
    modes = (replace(OTHER_SHARES[0], recovery="forward"), OTHER_SHARES[1])
    recovered = train(crew, unlike(modes), tmp_path / "recovered")
    assert not recovered.differences(kept)
    assert recovered.bounds[0] < kept.bounds[0]
    assert_held(recovered)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bf16"},
        {"gradient_wire": "bf16", "boundary_wire": "bf16"},
        {"gradient_wire": "bf16", "error_feedback": True},
    ],
    ids=["bf16", "narrow wires", "error feedback"],
)
def test_unlike_replicas_train_in_fewer_bits(
    changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    result = train(crew, unlike(OTHER_DEPTHS, **changes), tmp_path / "unlike")
    other = train(crew, unlike(OTHER_DEPTHS, "1f1b", sharding=0, **changes), tmp_path / "other")
    assert not result.differences(other)
    alone = train(crew, ALONE, tmp_path / "alone")
    assert result.loss_values == pytest.approx(alone.loss_values, rel=5e-3)
    assert_held(result)


@pytest.mark.slow
def test_owners_in_replicas_of_two_depths_agree_on_which_unit_overflowed(
    crew: Crew, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"dtype": "fp16", "overflow": "unit", "loss_scale": 2.0**20}
    by_owner = train(crew, unlike(OTHER_DEPTHS, **changes), tmp_path / "unlike")
    whole = train(crew, unlike(OTHER_DEPTHS, "1f1b", sharding=0, **changes), tmp_path / "whole")
    assert not by_owner.differences(whole)


@pytest.mark.slow
def test_tied_ends_of_unlike_replicas_add_up_on_one_rank_and_over_two(
    crew: Crew, tmp_path: Path
) -> None:
    tied: dict[str, Any] = {"model": (("tie_word_embeddings", True),)}
    result = train(crew, unlike(OTHER_DEPTHS, **tied), tmp_path / "unlike")
    assert_as_alone(result, train(crew, replace(ALONE, **tied), tmp_path / "alone"))
    assert_held(result)


@pytest.mark.slow
def test_unlike_replicas_validate_with_the_loss_of_one_process(crew: Crew, tmp_path: Path) -> None:
    setting = unlike(OTHER_SIZES, validate_every=2, held_out=11)
    result = train(crew, setting, tmp_path / "unlike")
    alone = train(crew, replace(setting, unlike=(), name="1f1b"), tmp_path / "alone")
    assert [(step, tokens) for step, _, tokens in result.validated] == [
        (step, tokens) for step, _, tokens in alone.validated
    ]
    losses = [float.fromhex(loss) for _, loss, _ in result.validated]
    assert losses == pytest.approx([float.fromhex(loss) for _, loss, _ in alone.validated], 1e-6)
