"""With what a run ended whose replicas or sites train apart: whether all have one model, and the
bytes that were sent between sites, as sockets were given them, beside those of its program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ratrain.describe.lines import wrapped
from ratrain.describe.units import format_bytes, format_time
from ratrain.program.between import between_sites
from ratrain.readers.files import exists
from ratrain.runtime.run_files import read_records
from ratrain.runtime.run_folder import RunFolder, RunSpec


def settled_of(folder: RunFolder, spec: RunSpec) -> dict[str, Any] | None:
    """None where nothing trains apart, or the run has not ended."""
    ranks: list[dict[str, Any]] = []
    for rank in range(spec.seats.world_size):
        path = folder.rank_file(rank, "records")
        settled = read_records(path, rank).get("settled") if exists(path) else None
        if settled is None:
            return None
        ranks.append(settled)
    setup = folder.read_setup()
    planned = between_sites(setup)
    steps = ranks[0]["steps"]
    return {
        "apart": setup.apart,
        "sites": bool(setup.sites),
        "ranges": ranks[0]["ranges"],
        "unlike": ranks[0]["unlike"],
        "averaged": setup.averages.by_turns,
        "took_s": max(rank["took_s"] for rank in ranks),
        "between_sites": planned
        and {
            "step_bytes": sum(rank["steps_bytes"] for rank in ranks) / steps,
            "planned_step_bytes": planned.step_bytes,
            "last_bytes": sum(rank["last_bytes"] for rank in ranks),
            "planned_last_bytes": planned.last_bytes,
        },
    }


def settled_text(settled: dict[str, Any] | None) -> Iterator[str]:
    """In lines of at most 80 columns."""
    if settled is None:
        return
    what = f"{settled['apart']} {'sites' if settled['sites'] else 'replicas'}"
    how = f"after a last average of all weights ({format_time(settled['took_s'])})"
    how = how if settled["averaged"] else "as the last step's averages left them"
    counted = f"{settled['ranges']:,} ranges compared by digests"
    if settled["unlike"]:
        yield from wrapped(
            f"NOT one model: {what} end with other weights in {settled['unlike']:,} of {counted}"
        )
    elif settled["ranges"]:
        yield from wrapped(
            f"one model: all {what} end with the same weights, difference 0, {how}; {counted}"
        )
    between = settled["between_sites"]
    if between:
        step, last = (
            f"{format_bytes(between[f'{of}_bytes'])} (program "
            f"{format_bytes(between[f'planned_{of}_bytes'])})"
            for of in ("step", "last")
        )
        yield from wrapped(
            f"sent between sites, by all ranks, as sockets were given it, with words of control: "
            f"{step} a step; in the last average {last}"
        )
