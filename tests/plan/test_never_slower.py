"""More memory, more or faster devices, and a space that leaves more open: never a slower plan."""

from __future__ import annotations

import pytest
from drawn_clusters import FAMILIES
from never_slower import CLAIMS, SAME, compared


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("number", [100, 101])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_job_has_more_of_never_makes_its_plan_slower(
    claim: str, family: str, number: int
) -> None:
    for pair in compared(family, number, claim):
        steps_s = pair.steps_s
        assert steps_s is None or pair.loss(*steps_s) <= SAME, (pair.words, steps_s)
