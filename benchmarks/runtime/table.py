"""Sweeps' JSON files as one table in Markdown, and what they say of the targets.

python benchmarks/runtime/sweep.py --layout 2x2 --json 2x2.json
python benchmarks/runtime/table.py 2x2.json ...
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outcomes import Outcome

PEERS = ("ddp", "fsdp2", "fsdp2-kept", "pp", "pp+ddp", "pp+fsdp2", "deepspeed")
BY_HAND = "pp+hooks"
OWN = ("backward-checkpoint", "baseline-1f1b")


def outcomes_of(row: dict[str, Any]) -> dict[str, Outcome]:
    """Method to outcome, of a row of a sweep; only those that ended."""
    outcomes = [Outcome(**outcome) for outcome in (*row["peers"], *row["ours"])]
    return {outcome.method: outcome for outcome in outcomes if outcome.ended}


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The table: step seconds; what each method takes of ratrain's time; the bound."""
    names = [*PEERS, BY_HAND, *OWN]
    used = [name for name in names if any(name in outcomes_of(row) for row in rows)]
    yield f"| regime | runs | {' | '.join(used)} | ratrain | predicted | bound | of bound |"
    yield "|---" * (len(used) + 6) + "|"
    for row in rows:
        outcomes = outcomes_of(row)
        ours = outcomes["ratrain"]
        times = [f"{outcomes[name].step_s:.2f}" if name in outcomes else "" for name in used]
        bound_s = max(row["bound"]["compute_s"], row["bound"]["link_s"])
        yield (
            f"| {row['case']['name']} | {len(ours.steps_s)} | {' | '.join(times)} "
            f"| {ours.step_s:.2f} | {ours.predicted_s:.2f} | {bound_s:.2f} "
            f"| {bound_s / ours.step_s:.0%} |"
        )


def words(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Each target and what the rows say of it."""
    for name, others in (("best peer", PEERS), (BY_HAND, (BY_HAND,)), *((n, (n,)) for n in OWN)):
        ratios = [ratio for row in rows if (ratio := _speed(row, others))]
        if ratios:
            yield f"{name} / ratrain: {_spread(ratios)}"
    errors = [
        outcome.predicted_s / outcome.step_s - 1
        for row in rows
        for outcome in outcomes_of(row).values()
        if outcome.predicted_s
    ]
    yield (
        f"predicted against measured, {len(errors)} runs of ours: median error "
        f"{statistics.median(map(abs, errors)):.1%}, bias {statistics.fmean(errors):+.1%}, "
        f"worst {max(errors, key=abs):+.1%}"
    )


def _speed(row: dict[str, Any], others: tuple[str, ...]) -> float | None:
    outcomes = outcomes_of(row)
    times = [outcomes[name].step_s for name in others if name in outcomes]
    return min(times) / outcomes["ratrain"].step_s if times else None


def _spread(ratios: list[float]) -> str:
    return f"median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"


def main() -> None:
    rows = [row for path in sys.argv[1:] for row in json.loads(Path(path).read_text())]
    print("\n".join([*lines(rows), "", *words(rows)]))


if __name__ == "__main__":
    main()
