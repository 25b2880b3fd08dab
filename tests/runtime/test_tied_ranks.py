"""A tied model trains as if its embedding and its head were one matrix, wherever they stand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from crew import Crew, grid_routes, network_among
from runs_made import Setting, write_job
from test_same_numbers import begun_units, plainly_trained
from torch import Tensor
from training import Result, train

from ratrain.models.shapes import unit_layout
from ratrain.plan.layout.jobs import load_job
from ratrain.program.strategies import STRATEGIES
from ratrain.runtime.seats import Seats
from ratrain.runtime.step.network.network import Copy

LAYOUTS = [(1, 1), (2, 1), (2, 2), (3, 1)]
INTERLEAVED = {"interleaved", "megatron-interleaved"}
MODEL = (("tie_word_embeddings", True),)
TIED = Setting(model=MODEL)

pytestmark = pytest.mark.slow


def copies(result: Result, folder: Path) -> list[tuple[bytes, bytes]]:
    """Weights and moments of the matrix, as embedding and as head."""
    spec = load_job(folder / "job.toml").model.spec
    e, h = (
        unit_layout(spec, unit).by_name[name]
        for unit, name in (("e", "embedding.tokens"), ("h", "head.logits"))
    )
    return [
        (embedding[e.offset : e.end].tobytes(), head[h.offset : h.end].tobytes())
        for embedding, head in zip(result.units["e"], result.units["h"], strict=True)
    ]


@pytest.mark.matrix
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "p{}d{}".format(*layout))
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_tied_run_agrees_with_plain_torch_and_keeps_its_copies_equal(
    layout: tuple[int, int], clip_norm: float | None, crew: Crew, tmp_path: Path
) -> None:
    setting = replace(TIED, steps=5, clip_norm=clip_norm).at(layout)
    result = train(crew, setting, tmp_path / "ours")
    job = load_job(write_job(tmp_path / "plain", setting))
    losses, norms, units = plainly_trained(job)
    assert result.loss_values == pytest.approx(losses, rel=2e-6)
    if clip_norm is not None:
        assert max(norms) > clip_norm, "nothing was clipped"
        assert result.norms == pytest.approx(norms, rel=1e-5)
    for unit, weights in units.items():
        assert np.abs(result.units[unit][0] - weights).max() < 2e-4, unit
    assert np.abs(result.units["e"][0] - begun_units(job)["e"]).max() > 1e-2
    for embedding, head in copies(result, tmp_path / "ours"):
        assert embedding == head


def test_a_tied_run_is_not_an_untied_one(crew: Crew, tmp_path: Path) -> None:
    tied, untied = (
        train(crew, Setting(model=model).at((2, 1)), tmp_path / str(len(model)))
        for model in (MODEL, ())
    )
    assert tied.losses != untied.losses


@pytest.mark.parametrize("layout", [(2, 1), (2, 2)], ids=lambda layout: "p{}d{}".format(*layout))
def test_every_strategy_gives_a_tied_model_the_same_bits(
    layout: tuple[int, int], crew: Crew, tmp_path: Path
) -> None:
    names = sorted(set(STRATEGIES) - {"tensor-parallel-heavy"})
    settings = [replace(TIED, name=n, virtual=1 + (n in INTERLEAVED)).at(layout) for n in names]
    settings += [replace(TIED, sharding=level).at(layout) for level in range(4)]
    settings.append(replace(TIED, name="zb-h1").at((1, layout[1])))
    results = [
        train(crew, result, tmp_path / str(number)) for number, result in enumerate(settings)
    ]
    for number, (result, setting) in enumerate(zip(results, settings, strict=True)):
        assert not result.differences(results[0]), str(setting)
        for embedding, head in copies(result, tmp_path / str(number)):
            assert embedding == head, str(setting)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "p{}d{}".format(*layout))
def test_copies_stay_equal_in_lower_precision(
    layout: tuple[int, int], dtype: str, crew: Crew, tmp_path: Path
) -> None:
    setting = replace(TIED, dtype=dtype, clip_norm=0.5, loss_scale=256.0, steps=4).at(layout)
    result = train(crew, setting, tmp_path)
    for number, (embedding, head) in enumerate(copies(result, tmp_path)):
        assert embedding == head, number
    assert any(moment.any() for _, moment, _ in result.units.values())


def test_a_tensor_group_ties_its_parts_of_the_matrix(crew: Crew, tmp_path: Path) -> None:
    model = (*MODEL, ("num_key_value_heads", 4))
    alone = replace(TIED, name="1f1b", model=model, learning_rate=1e-3, clip_norm=0.5)
    layouts = {"alone": alone, "flat": replace(alone, tensor=2), "deep": replace(alone, tensor=2)}
    layouts["deep"] = replace(layouts["deep"], pipeline=2)
    results = {name: train(crew, each, tmp_path / name) for name, each in layouts.items()}
    assert not results["deep"].differences(results["flat"])
    assert results["flat"].loss_values == pytest.approx(results["alone"].loss_values, rel=1e-6)
    assert results["flat"].norms == pytest.approx(results["alone"].norms, rel=1e-5)
    for name, each in results.items():
        for embedding, head in copies(each, tmp_path / name):
            assert embedding == head, name


def add_copies(rank: int, world_size: int, elements: int, dtype: torch.dtype) -> Tensor:
    """One rank of two pipelines of `world_size` / 2 ranks: its own numbers, added up."""
    seats = Seats(world_size // 2, 2, (0, 0), (0,))
    seat = seats.seat(rank)
    network = network_among(seats, seat, grid_routes(seats, tied=True))
    gradient = numbers(rank, elements, dtype)
    if rank in seats.both_ends(seat.data):
        network.add_copies([Copy(seat.division, gradient)])
    return gradient


def numbers(seed: int, elements: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("elements", [1, 262_144, 1_000_003])
def test_both_ends_of_each_replica_get_the_rounded_sum_piece_by_piece(
    elements: int, dtype: torch.dtype, crew: Crew
) -> None:
    sums = crew.ask(4, add_copies, elements, dtype)
    for data in range(2):
        first, second = (numbers(rank, elements, dtype) for rank in (data, 2 + data))
        expected = (first.double() + second.double()).to(dtype)
        assert torch.equal(sums[data], sums[2 + data])
        assert torch.equal(sums[data], expected)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(3))
def test_no_timing_changes_a_bit_of_a_tied_run(seed: int, crew: Crew, tmp_path: Path) -> None:
    usual = train(crew, TIED.at((2, 2)), tmp_path / "usual")
    name = ("ratrain", "zb-h1", "zero3-heavy")[seed]
    late = train(crew, replace(TIED, name=name).at((2, 2)), tmp_path / "late", delays=seed)
    assert not late.differences(usual)
    for peak, bound in zip(late.ledger_peaks, late.bounds, strict=True):
        assert 0 < peak <= bound
