"""Nothing grows with the number of steps: memory, threads, open files, checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from launched import made, meanwhile, ranks_of, saved_steps, start, steps_done, wait_until
from runs_made import Setting

STEPS, WARM = 1000, 200
MIB = 1 << 20
BLOCK_BYTES = (1 << 18) + 64
"""One block of 256 KiB as the C library rounds it. Once in three runs a late step held one more
than the early ones; which block it was is not known."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def held_by(pid: int) -> tuple[int, int]:
    """Threads and open files of a process."""
    process = Path(f"/proc/{pid}")
    return len(list((process / "task").iterdir())), len(list((process / "fd").iterdir()))


def test_nothing_grows_over_a_thousand_steps(tmp_path: Path) -> None:
    setting = Setting(
        pipeline=1, data=2, steps=STEPS, every=50, keep=2, sequences=2, clip_norm=1.0, timeout_s=300
    )
    folder = made(tmp_path, setting)
    seen: dict[str, dict[int, tuple[int, int]]] = {}

    def look() -> None:
        for name, step in (("early", WARM), ("late", STEPS - 60)):
            wait_until(lambda step=step: steps_done(folder) >= step, 600)
            seen[name] = {rank: held_by(pid) for rank, pid in ranks_of(folder).items()}

    with meanwhile(look):
        start(folder)
    rows = folder.read_metrics()
    assert len(rows) == STEPS and saved_steps(folder) == [950, 1000]
    assert len(seen["early"]) == len(seen["late"]) == 2
    for rank in range(2):
        assert seen["late"][rank][0] <= seen["early"][rank][0], "threads"
        assert seen["late"][rank][1] <= seen["early"][rank][1] + 2, "open files"
        for figure, noise_bytes in (
            ("ledger_peak_bytes", 0),
            ("allocated_peak_bytes", BLOCK_BYTES),
            ("resident_bytes", 2 * MIB),
        ):
            values = [row["ranks"][rank][figure] for row in rows]
            grown = max(values[-100:]) - max(values[100:WARM])
            assert grown <= noise_bytes, f"rank {rank}: {figure} grew by {grown:,.0f} bytes"
    assert all(row["gradient_norm_before"] > 0 for row in rows[WARM:])
