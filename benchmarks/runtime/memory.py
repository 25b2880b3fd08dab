"""The memory of the lab's devices lowered until one method after the other is killed.

    python benchmarks/runtime/memory.py [--json out.json]

The same model, batch and layout for all (pipeline 2 x data 2, recovery on; `fsdp2` is data 4). A
kill is the kernel's own: the rank's control group ran out of memory. Ours gets the same limit as
its budget, less what a process takes before it holds any state (`--overhead-mb`), chooses
recovery and sharding itself, and may refuse beforehand, when the verifier finds no way to fit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cases import Case
from field import field_of
from outcomes import Outcome

PEERS = ("pp+ddp", "pp+hooks", "pp+fsdp2", "fsdp2")
CASE = Case(
    "memory",
    model="large",
    pipeline=2,
    data=2,
    sequence_length=256,
    sequences=8,
    recovery=True,
    fits_itself=True,
    steps=1,
    warm_up=1,
)


def lowered(
    case: Case, methods: Sequence[str], limits: Sequence[int]
) -> list[tuple[int, list[Outcome]]]:
    """(limit in bytes, outcomes of those still alive): who was killed is not run again."""
    rows: list[tuple[int, list[Outcome]]] = []
    alive = list(methods)
    for limit in limits:
        row: list[Outcome] = []
        for method in alive:
            shape = {"pipeline": 1, "data": 4} if method == "fsdp2" else {}
            at_limit = case.but(memory_bytes=limit - case.overhead_bytes, **shape)
            with (
                tempfile.TemporaryDirectory(prefix="bench-") as folder,
                field_of(at_limit, Path(folder) / "case") as field,
            ):
                row.append(field.run(method))
            print(f"{limit / 1e6:6.0f} MB  {_words(method, row[-1])}", flush=True)
        rows.append((limit, row))
        alive = [outcome.method for outcome in row if outcome.ended]
    return rows


def _words(method: str, outcome: Outcome) -> str:
    if outcome.failure:
        return f"{method:10s} {outcome.failure[:100]}"
    text = f"{method:10s} trains, {outcome.peak_bytes / 1e6:.0f} MB over its imports"
    bound, allocated = outcome.memory
    if bound:
        text += f"; proved {bound / 1e6:.1f} MB, allocated {allocated / 1e6:.1f} MB"
    return text


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--from-mb", type=int, default=800)
    asked.add_argument("--to-mb", type=int, default=450)
    asked.add_argument("--by-mb", type=int, default=50)
    asked.add_argument("--overhead-mb", type=int, default=320, help="no states; of the limit")
    asked.add_argument("--methods", nargs="+", default=[*PEERS, "ratrain"])
    asked.add_argument("--json", type=Path)
    chosen = asked.parse_args()
    limits = [mb * 10**6 for mb in range(chosen.from_mb, chosen.to_mb - 1, -chosen.by_mb)]
    case = CASE.but(overhead_bytes=chosen.overhead_mb * 10**6)
    rows = lowered(case, chosen.methods, limits)
    if chosen.json:
        table = [
            {"limit_bytes": limit, "outcomes": [asdict(outcome) for outcome in row]}
            for limit, row in rows
        ]
        chosen.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
