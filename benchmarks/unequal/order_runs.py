"""Orders found by search, trained for real in a lab beside the fastest named order.

    python benchmarks/unequal/order_runs.py                    # every row, three repetitions
    python benchmarks/unequal/order_runs.py --row uneven --simulate

Needs root (labs). A row's layers are measured in its lab first; the search and the comparison of
named orders then go by these times. `simulated` is what they say of a step, `calibrated` what the
run predicts from ops that its own ranks timed. The two take turns; a figure is the median of the
repetitions' medians. Losses are the same bit for bit: an order moves no sum.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from blocks import measured_blocks
from cases import Case, cluster_of
from ours import run_ours, write_job
from outcomes import Outcome, together

from ratrain.lab import Lab
from ratrain.plan.jobs import load_job
from ratrain.plan.order_search import Limits
from ratrain.plan.schedules import compare_schedules
from ratrain.plan.searched_order import search_for
from ratrain.plan.searched_words import settings

BASE = Case("", model="deep", steps=4, warm_up=1)
ROWS = (
    BASE.but(
        name="uneven",
        pipeline=4,
        layers=(4, 2, 3, 3),
        shares=(0.45, 0.45, 0.45, 0.45),
        sequences=8,
        link="100 Mbit/s",
    ),
    BASE.but(
        name="slow link",
        pipeline=4,
        shares=(0.45, 0.45, 0.45, 0.45),
        sequences=12,
        link="50 Mbit/s",
    ),
)


@dataclass(frozen=True)
class Entrant:
    """An order, what the simulator says of it, and how it is run."""

    name: str
    simulated_s: float
    case: Case
    folder: Path
    schedule: str

    def run(self, lab: Lab) -> Outcome:
        return run_ours(self.case, self.folder, lab, self.schedule)


def entrants(case: Case, folder: Path, lab: Lab, seconds: float) -> Iterator[Entrant]:
    """The fastest named order, and the one that the search found from there."""
    blocks = measured_blocks(folder / "config.json", case.sequence_length, lab)
    measured = {share: blocks.toml(share) for share in case.shares}
    named, searched = (folder / name for name in ("named", "searched"))
    for there in (named, searched):
        case.write(there, measured)
        write_job(case, there)
    job = load_job(searched / "job.toml")
    order = search_for(compare_schedules(job), Limits(seconds), seed=0).order
    if order is None or order.named.predicted is None:
        sys.exit(f"{case.name}: the search found no order that is faster than the named ones")
    name, named_s = order.named.name, order.named.predicted.step_s
    yield Entrant(name, named_s, case, named, name)
    file = searched / "order.csv"
    file.write_text(order.csv)
    asked = case.but(settings=tuple(settings(order, job, file)))
    yield Entrant("order found", order.step_s, asked, searched, order.job.schedule.name)


def run_row(case: Case, repetitions: int, seconds: float, simulate: bool) -> None:
    """Prints the row's two lines, and the gain in simulation and in the lab."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder = Path(place)
        case.write(folder)
        with Lab(cluster_of(folder), case.ranks) as lab:
            both = tuple(entrants(case, folder, lab, seconds))
            runs: list[list[Outcome]] = [[] for _ in both]
            for _ in range(0 if simulate else repetitions):
                for entrant, entrant_runs in zip(both, runs, strict=True):
                    entrant_runs.append(entrant.run(lab))
    split = " + ".join(map(str, case.layers_of_stages))
    print(f"{case.name}: layers {split}, {case.micro_batches} micro-batches, {case.link}")
    named, searched = both
    if simulate:
        print(f"  simulated {_gain(named.simulated_s, searched.simulated_s)} over {named.name}")
        return
    print(f"  {'order':26s}{'simulated':>10s}{'calibrated':>11s}{'measured':>10s}  least - most")
    outcomes = [together(entrant_runs) for entrant_runs in runs]
    for entrant, outcome in zip(both, outcomes, strict=True):
        if outcome.failure:
            print(f"  {entrant.name:26s}{outcome.failure}")
            continue
        print(
            f"  {entrant.name:26s}{entrant.simulated_s:9.3f}s{outcome.predicted_s:10.3f}s"
            f"{outcome.step_s:9.3f}s  {min(outcome.steps_s):.3f} - {max(outcome.steps_s):.3f}"
        )
    if all(outcome.ended for outcome in outcomes):
        print(
            f"  gain {_gain(named.simulated_s, searched.simulated_s)} simulated, "
            f"{_gain(outcomes[0].predicted_s, outcomes[1].predicted_s)} calibrated, "
            f"{_gain(outcomes[0].step_s, outcomes[1].step_s)} measured; losses "
            f"{'the same' if outcomes[0].losses == outcomes[1].losses else 'DIFFER'}",
            flush=True,
        )


def _gain(before_s: float, after_s: float) -> str:
    return f"{1 - after_s / before_s:.1%}"


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--row", nargs="*", choices=[case.name for case in ROWS])
    asked.add_argument("--repetitions", type=int, default=3)
    asked.add_argument("--seconds", type=float, default=30.0, help="of a search")
    asked.add_argument("--simulate", action="store_true", help="train nothing")
    chosen = asked.parse_args()
    for case in ROWS:
        if not chosen.row or case.name in chosen.row:
            run_row(case, chosen.repetitions, chosen.seconds, chosen.simulate)


if __name__ == "__main__":
    main()
