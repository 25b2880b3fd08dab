"""Headers that contradict themselves are refused, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import replica

from ratrain.errors import ProgramError
from ratrain.program.setup import Setup
from ratrain.program.skeletons import build
from ratrain.program.text import read_text, write_text


def test_level_3_refuses_replicas_with_unequal_micro_batch_counts() -> None:
    plain = Setup((replica((2, 2), 4), replica((2, 2), 3)))
    with pytest.raises(ProgramError, match="cannot gather views for every use"):
        replace(plain, sharding=3)


def test_level_3_refuses_replicas_cut_into_unequal_stages() -> None:
    plain = Setup((replica((2, 2), 4), replica((1, 3), 4)))
    with pytest.raises(ProgramError, match="cannot gather views for every use"):
        replace(plain, sharding=3)
    assert replace(plain, sharding=2).gathers


@pytest.mark.parametrize(
    ("field", "message"),
    [("together", "no micro-batch goes through"), ("period", "needs at least one step")],
)
def test_a_header_of_no_step_or_no_micro_batch_at_a_time_is_refused(
    field: str, message: str
) -> None:
    plain = Setup((replica((2,), 4),))
    text = write_text(build("gpipe", plain)) + f"\n{field} 0\n"
    with pytest.raises(ProgramError, match=message):
        replace(plain, **{field: 0})  # pyright: ignore[reportArgumentType]
    lines = [line for line in text.splitlines() if not line.startswith(f"{field} 1")]
    moved = [lines[0], lines[-1], *lines[1:-1]]
    with pytest.raises(ProgramError, match=message):
        read_text("\n".join(moved))
