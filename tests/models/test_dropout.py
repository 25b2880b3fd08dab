"""Dropout by counters: what is dropped follows from where it is, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from ratrain.models.functions.dropout import Drawn, dropped

DRAWN = Drawn(0.25, 7, 3, 0)
X = torch.ones(4, 512, 96)


def kept(drawn: Drawn, unit: str = "1", place: int = 0, x: torch.Tensor = X) -> torch.Tensor:
    return dropped(x, drawn, unit, place) != 0


def test_as_much_is_dropped_as_was_asked_for_and_the_rest_keeps_the_mean() -> None:
    for rate in (0.1, 0.25, 0.9):
        out = dropped(X, replace(DRAWN, rate=rate), "1", 0)
        assert float((out == 0).float().mean()) == pytest.approx(rate, abs=5e-3)
        assert float(out.mean()) == pytest.approx(1, abs=2e-2)


def test_masks_of_other_places_are_unlike() -> None:
    others = (
        kept(DRAWN),
        kept(replace(DRAWN, seed=8)),
        kept(replace(DRAWN, step=4)),
        kept(replace(DRAWN, first=4)),
        kept(DRAWN, unit="2"),
        kept(DRAWN, place=1),
        kept(DRAWN).roll(1, 1),
        kept(DRAWN).roll(1, 2),
        kept(DRAWN).roll(1, 0),
    )
    for one, other in combinations(others, 2):
        assert float((one == other).float().mean()) == pytest.approx(0.625, abs=5e-3)


def test_a_sequence_has_its_mask_in_any_micro_batch() -> None:
    whole = kept(DRAWN)
    parts = [kept(replace(DRAWN, first=row), x=X[row : row + 1]) for row in range(4)]
    assert torch.equal(whole, torch.cat(parts))


def test_only_what_was_added_is_dropped_and_gradients_go_the_same_way() -> None:
    base = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    added = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    out = dropped(base + added, DRAWN, "1", 0, base)
    mask = kept(DRAWN, x=torch.ones(2, 5, 8)) / 0.75
    assert torch.allclose(out, base + added * mask)
    weight = torch.randn_like(out)
    of_base, of_added = torch.autograd.grad((out * weight).sum(), [base, added])
    assert torch.allclose(of_base, weight)
    assert torch.allclose(of_added, weight * mask)


def test_the_hash_gives_the_bits_that_it_gave() -> None:
    """Runs that go on after an update of RATrain drop the same."""
    found = kept(DRAWN, x=torch.ones(1, 2, 12)).int().flatten().tolist()
    assert "".join(map(str, found)) == "111111111110011110111110"
