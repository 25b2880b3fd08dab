"""SUMMA on the simulated mesh: software and hardware, order of multicasts, depth of prefetch.

Run: python benchmarks/noc/summa.py
"""

from __future__ import annotations

from ratrain.chip.noc.chip import ChipSpec
from ratrain.chip.noc.gemm_simulation import Order, simulate_summa
from ratrain.errors import ChipError

WAYS: tuple[tuple[str, bool, Order, int, int], ...] = (
    ("software trees, 3 buffers", False, "phases", 3, 1),
    ("hardware, rows then columns, 2 buffers", True, "phases", 2, 1),
    ("hardware, rows then columns, 3 buffers", True, "phases", 3, 1),
    ("hardware, diagonal, 2 ahead of 4 buffers", True, "diagonal", 4, 2),
    ("hardware, diagonal, 4 ahead of 6 buffers", True, "diagonal", 6, 4),
)


def cycles(size: int, hardware: bool, order: Order, buffers: int, ahead: int) -> str:
    """Cycles per iteration of the steady state, or how it failed."""
    try:
        run = simulate_summa(
            ChipSpec(size, size),
            hardware=hardware,
            order=order,
            buffers=buffers,
            ahead=ahead,
            iterations=12,
        )
    except ChipError as error:
        return "deadlock" if "deadlock" in error.what else error.what
    return f"{run.cycles:.0f}"


def main() -> None:
    print(f"{'cycles per iteration':<44}{'8x8':>9}{'16x16':>9}{'32x32':>9}{'64x64':>9}")
    for name, hardware, order, buffers, ahead in WAYS:
        counts = [cycles(size, hardware, order, buffers, ahead) for size in (8, 16, 32, 64)]
        print(f"{name:<44}" + "".join(f"{count:>9}" for count in counts))


if __name__ == "__main__":
    main()
