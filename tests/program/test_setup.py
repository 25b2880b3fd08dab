"""Headers that contradict themselves are refused, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import replica

from ratrain.errors import ProgramError
from ratrain.program.setup import Setup


def test_level_3_refuses_replicas_with_unequal_micro_batch_counts() -> None:
    plain = Setup((replica((2, 2), 4), replica((2, 2), 3)))
    with pytest.raises(ProgramError, match="cannot gather views for every use"):
        replace(plain, sharding=3)


def test_level_3_refuses_replicas_cut_into_unequal_stages() -> None:
    plain = Setup((replica((2, 2), 4), replica((1, 3), 4)))
    with pytest.raises(ProgramError, match="cannot gather views for every use"):
        replace(plain, sharding=3)
    assert replace(plain, sharding=2).gathers
