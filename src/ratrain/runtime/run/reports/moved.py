"""What a run's steps moved between its ranks' devices and the tiers below, against its program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ratrain.describe.lines import wrapped
from ratrain.describe.units import format_bytes, format_time
from ratrain.program.kind import Waiting
from ratrain.readers.files import exists
from ratrain.runtime.run.reports.itemise import OF_TIERS
from ratrain.runtime.run_files import read_records
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.simulate.moved import Moved, moved_by
from ratrain.storage import PAGE

_WAYS = ("read", "written")
BESIDE = 3 * PAGE
"""Bytes that a transfer may move beside its states: between tensors, each of which begins aligned;
on disk to fill its last page, and for the label behind it."""


def moved_in_steps(folder: RunFolder, spec: RunSpec) -> list[dict[str, Any]]:
    """For each rank and tier the bytes of a mean step: those moved, and those that the program
    moves. Nothing where none was counted."""
    counted = {
        seat.world_rank: moved
        for seat in spec.seats.all()
        if (moved := _counted(folder, seat.world_rank))["tiers"] and moved["steps"]
    }
    if not counted:
        return []
    bill = moved_by(folder.read_program().table)
    return [
        {"rank": rank, **row}
        for rank, moved in counted.items()
        for row in against_bill(moved, bill, spec.seats.seat(rank).program_rank)
    ]


def _counted(folder: RunFolder, rank: int) -> dict[str, Any]:
    path = folder.rank_file(rank, "records")
    memory = (read_records(path, rank).get("memory") if exists(path) else None) or {}
    return memory.get("moved") or {"steps": 0, "tiers": {}}


def against_bill(
    counted: dict[str, Any], bill: Iterable[Moved], program_rank: int
) -> Iterator[dict[str, Any]]:
    """For each tier of a rank what it counted, beside the program's bill. What an op of somebody's
    own moves by itself is not counted."""
    for row in bill:
        moved = counted["tiers"].get(row.tier)
        if row.rank == program_rank and moved is not None:
            yield _row({way: moved[f"{way}_bytes"] / counted["steps"] for way in _WAYS}, row)


def _row(moved: dict[str, float], bill: Moved) -> dict[str, Any]:
    return {
        "tier": bill.tier,
        **{f"{way}_bytes": moved[way] for way in _WAYS},
        "program_read_bytes": bill.read_bytes,
        "program_written_bytes": bill.written_bytes,
        "as_program": all(
            -0.5 <= moved[way] - billed.sum() / bill.steps <= BESIDE * len(billed) / bill.steps
            for way, billed in zip(_WAYS, (bill.read, bill.written), strict=True)
        ),
    }


def moved_text(report: dict[str, Any]) -> Iterator[str]:
    """The same in words, of the rank of each tier that moved the most; and how long compute waited
    for it."""
    rows = report["moved"]
    for tier in dict.fromkeys(row["tier"] for row in rows):
        there = [row for row in rows if row["tier"] == tier]
        row = max(there, key=lambda row: row["read_bytes"] + row["written_bytes"])
        read, written, says_read, says_written = (
            format_bytes(row[f"{key}_bytes"])
            for key in ("read", "written", "program_read", "program_written")
        )
        said = f"{tier}: rank {row['rank']} read {read} and wrote {written} a step, "
        says = f"its program says {says_read} and {says_written}"
        yield from wrapped(said + ("as its program says" if row["as_program"] else says))
    if rows:
        waits = [kind for kind in report["kinds"] if kind["kind"] in OF_TIERS]
        parts = [
            f"{Waiting(kind['kind']).words} {format_time(kind['measured_s'] or 0.0)}"
            + (f" ({format_time(kind['predicted_s'])})" if kind["predicted_s"] is not None else "")
            for kind in waits
            if any(kind[key] or 0.0 for key in ("measured_s", "predicted_s"))
        ]
        yield from wrapped(f"compute waited (predicted): {', '.join(parts) or 'for no tier'}")
