"""No formula of a price changes unseen."""

from __future__ import annotations

import pytest
from pinned_prices import DRAWN, JOBS, condensed, figures, known

MEANT = "a price has changed; if that is meant: python tests/plan/pinned_prices.py"


@pytest.mark.parametrize("name", [*JOBS, *DRAWN])
def test_prices_are_what_they_were(name: str) -> None:
    now, before = condensed(figures(name)), known()[name]
    assert now.keys() == before.keys(), MEANT
    changed = {
        key: (before[key], value)
        for key, value in now.items()
        if value != pytest.approx(before[key], rel=1e-9, abs=1e-15)
    }
    assert not changed, MEANT
