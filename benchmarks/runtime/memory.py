"""The memory of the lab's devices lowered until one method after the other is killed.

    python benchmarks/runtime/memory.py [--json out.json]

The same model, batch and layout for all (pipeline 2 x data 2, recovery on). A kill is the
kernel's own: the rank's control group ran out of memory. Ours may also refuse beforehand, when
the verifier finds that the program cannot fit. A device's limit counts everything the process
has resident: the interpreter and torch too.
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

PEERS = ("pp+ddp", "pp+fsdp2", "pp+hooks", "fsdp2")
CASE = Case(
    "memory",
    model="large",
    pipeline=2,
    data=2,
    sequence_length=256,
    sequences=16,
    micro_batch=2,
    recovery=True,
    steps=2,
    warm_up=1,
)


def survivors(
    case: Case, methods: Sequence[str], limits: Sequence[int]
) -> list[tuple[int, list[Outcome]]]:
    """(limit in bytes, every method's outcome): who was killed once is not run again."""
    rows: list[tuple[int, list[Outcome]]] = []
    dead: dict[str, Outcome] = {}
    for limit in limits:
        row: list[Outcome] = []
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as folder,
            field_of(_within(case, limit), Path(folder) / "case") as field,
        ):
            for method in methods:
                outcome = dead.get(method) or field.run(method)
                if outcome.failure:
                    dead[method] = outcome
                row.append(outcome)
                print(f"{limit / 1e6:6.0f} MB  {_words(method, outcome)}", flush=True)
        rows.append((limit, row))
        if len(dead) == len(methods):
            break
    return rows


def _within(case: Case, limit: int) -> Case:
    """The case in processes of `limit` bytes: what imports take is the device's overhead."""
    return case.but(memory_bytes=limit - case.overhead_bytes)


def _words(method: str, outcome: Outcome) -> str:
    if outcome.failure:
        return f"{method:14s} {outcome.failure[:90]}"
    text = f"{method:14s} trains, resident at most {outcome.peak_bytes / 1e6:.0f} MB"
    bound, allocated = outcome.memory
    if bound:
        ratio = allocated / bound
        text += f"; bound {bound / 1e6:.1f} MB, allocated {allocated / 1e6:.1f} MB ({ratio:.3f})"
    return text


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--from-mb", type=int, default=1200)
    asked.add_argument("--to-mb", type=int, default=400)
    asked.add_argument("--by-mb", type=int, default=100)
    asked.add_argument("--overhead-mb", type=int, default=260, help="imports, of the limit")
    asked.add_argument("--methods", nargs="+", default=[*PEERS, "ratrain"])
    asked.add_argument("--json", type=Path)
    chosen = asked.parse_args()
    limits = [mb * 10**6 for mb in range(chosen.from_mb, chosen.to_mb - 1, -chosen.by_mb)]
    case = CASE.but(overhead_bytes=chosen.overhead_mb * 10**6)
    rows = survivors(case, chosen.methods, limits)
    if chosen.json:
        table = [
            {"limit_bytes": limit, "outcomes": [asdict(o) for o in row]} for limit, row in rows
        ]
        chosen.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
