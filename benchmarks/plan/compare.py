"""Whether a change of the planner finds worse plans, or takes longer for them.

    python benchmarks/plan/compare.py --write BEFORE.json          # on one version
    python benchmarks/plan/compare.py --write AFTER.json --against BEFORE.json

Searches drawn clusters (`tests/plan/drawn_clusters.py`: identical devices, mixed ones, pools,
little memory, tensor groups, two sites, kernel models, nine to sixteen devices) and writes for each
the plan that is chosen, its predicted step, and the processor time that the search took.
`--against` says which steps differ, by how much, and what became of the time. Predicted steps are
the same in every run of one version; processor time is noisy where others use the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import TypedDict

sys.path.append(str(Path(__file__).parents[2] / "tests" / "plan"))

from drawn_clusters import FAMILIES, drawn

from ratrain.errors import Infeasible
from ratrain.plan.file.form import write_plan
from ratrain.plan.search.every_plan import every_plan

SAME = 1e-9
"""Part of a step up to which two are the same."""


class Row(TypedDict):
    """A search. `step_s`: None where nothing fits; `plan`: a digest of the plan's file."""

    job: str
    step_s: float | None
    plan: str
    processor_s: float


def searched(family: str, number: int) -> Row:
    """One of them."""
    job = drawn(family, number)
    began_s = time.process_time()
    try:
        chosen = every_plan(job).chosen
    except Infeasible:
        return Row(
            job=f"{family} {number}",
            step_s=None,
            plan="",
            processor_s=time.process_time() - began_s,
        )
    took_s = time.process_time() - began_s
    digest = sha256(write_plan(chosen.file()).encode()).hexdigest()[:12]
    return Row(job=f"{family} {number}", step_s=chosen.step_s, plan=digest, processor_s=took_s)


def compared(before: list[Row], after: list[Row]) -> bool:
    """Says what differs; whether no step is longer."""
    earlier = {row["job"]: row for row in before}
    pairs = [(earlier[row["job"]], row) for row in after if row["job"] in earlier]
    changes: list[float] = []
    for old, new in pairs:
        if (old["step_s"] is None) != (new["step_s"] is None):
            print(f"{new['job']}: a plan before or after only")
        if old["step_s"] is None or new["step_s"] is None:
            continue
        changes.append(new["step_s"] / old["step_s"] - 1)
        if abs(changes[-1]) > SAME:
            print(f"{new['job']}: {changes[-1]:+.4%}")
        elif old["plan"] != new["plan"]:
            print(f"{new['job']}: another plan of the same step")
    times = [(old["processor_s"], new["processor_s"]) for old, new in pairs]
    print(
        f"{len(changes)} steps: {sum(c > SAME for c in changes)} longer "
        f"(worst {max(changes, default=0.0):+.4%}), {sum(c < -SAME for c in changes)} shorter "
        f"(best {min(changes, default=0.0):+.4%}); processor time "
        f"{sum(a for a, _ in times):.1f} -> {sum(b for _, b in times):.1f} s, "
        f"median {median(b / a for a, b in times):.3f} of before"
    )
    return all(change <= SAME for change in changes)


def main() -> int:
    """A row for each cluster."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=8, help="clusters of each family")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--write", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for family in options.families:
        for number in range(options.each):
            row = searched(family, number)
            rows.append(row)
            step = "nothing fits" if row["step_s"] is None else f"{row['step_s']:.6f} s"
            print(f"{row['processor_s']:6.1f} s  {step:>14}  {row['job']}", flush=True)
            options.write.write_text(json.dumps(rows, indent=1))
    if options.against is None:
        return 0
    return 0 if compared(json.loads(options.against.read_text()), rows) else 1


if __name__ == "__main__":
    sys.exit(main())
