"""More memory, more or faster devices, and a space that leaves more open: never a slower plan.

A search for counterexamples: by `make soak`.
"""

from __future__ import annotations

import os
from itertools import product

import pytest
from drawn_clusters import FAMILIES
from never_slower import CLAIMS, SAME, compared


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("RATRAIN_SOAK"), reason="an hour: by `make soak`")
@pytest.mark.parametrize(("claim", "family", "number"), list(product(CLAIMS, FAMILIES, (100, 101))))
def test_what_a_job_has_more_of_never_makes_its_plan_slower(
    claim: str, family: str, number: int
) -> None:
    for pair in compared(family, number, claim):
        steps_s = pair.steps_s
        assert steps_s is None or pair.loss(*steps_s) <= SAME, (pair.words, steps_s)
