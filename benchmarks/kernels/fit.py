"""The fit of `call_cycles` (machine.py): set on every other row of the NN products of one core,
tried on the rows between, and the other way round. A minute."""

from __future__ import annotations

from dataclasses import replace

from ratrain.kernels import read_rows, scored
from ratrain.kernels.machine import FT_M7032

rows = [row for row in read_rows(None) if row.group == "NN, one core"]
errors = {
    cycles: [abs(s.error) for s in scored(rows, replace(FT_M7032, call_cycles=cycles))]
    for cycles in (11.0, 14.0, 17.0, 20.0, 23.0)
}


def mean(cycles: float, half: int) -> float:
    part = errors[cycles][half::2]
    return sum(part) / len(part)


for half in (0, 1):
    best = min(errors, key=lambda cycles: mean(cycles, half))
    print(
        f"fit on half {half}: {best:.0f} cycles, mean error {mean(best, half):.2%};"
        f" on the other half {mean(best, 1 - half):.2%}"
    )
