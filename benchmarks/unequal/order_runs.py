"""Orders found by search, trained for real in a lab beside the fastest named order.

    python benchmarks/unequal/order_runs.py                    # every row, three repetitions
    python benchmarks/unequal/order_runs.py --row uneven --simulate

Needs root (labs). A row's layers are measured in its lab first; the search and the comparison of
named orders then go by these times. `simulated` is what they say of a step, `calibrated` what the
run predicts from ops that its own ranks timed. The two take turns; a figure is the median of the
repetitions' medians. Losses are the same bit for bit: an order moves no sum.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from blocks import measured_blocks
from cases import Case, cluster_of
from command import parser_of, say
from ours import run_ours, write_job
from outcomes import Outcome, together

from ratrain.lab import Lab
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.orders.schedules import compare, laid_out
from ratrain.plan.orders.search import Limits, search_compared
from ratrain.plan.words.orders import settings

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
    order = search_compared(compare(laid_out(job)), Limits(seconds), seed=0).order
    if order is None or order.named.predicted is None:
        sys.exit(f"{case.name}: the search found no order that is faster than the named ones")
    name, named_s = order.named.name, order.named.predicted.step_s
    yield Entrant(name, named_s, case, named, name)
    file = searched / "order.csv"
    file.write_text(order.csv)
    asked = case.but(settings=tuple(settings(order, job, file)))
    yield Entrant("order found", order.step_s, asked, searched, order.job.schedule.name)


@dataclass(frozen=True)
class Figures:
    """An order and what it did; None: it was not run."""

    order: str
    simulated_s: float
    outcome: Outcome | None


def run_row(case: Case, repetitions: int, seconds: float) -> tuple[Figures, ...]:
    """Both orders in turns, again and again; without repetitions they are only simulated."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder = Path(place)
        case.write(folder)
        with Lab(cluster_of(folder), case.ranks) as lab:
            both = tuple(entrants(case, folder, lab, seconds))
            runs: list[list[Outcome]] = [[] for _ in both]
            for number in range(repetitions):
                for entrant, entrant_runs in zip(both, runs, strict=True):
                    outcome = entrant.run(lab)
                    entrant_runs.append(outcome)
                    did = outcome.failure or f"{outcome.step_s:.3f} s"
                    say(f"{case.name}, {number + 1} of {repetitions}: {entrant.name} {did}")
    return tuple(
        Figures(entrant.name, entrant.simulated_s, together(outcomes) if outcomes else None)
        for entrant, outcomes in zip(both, runs, strict=True)
    )


def lines(case: Case, raced: tuple[Figures, ...]) -> Iterator[str]:
    """The row for people."""
    split = " + ".join(map(str, case.layers_of_stages))
    yield f"{case.name}: layers {split}, {case.micro_batches} micro-batches, {case.link}"
    yield (
        f"  {'order':26s}{'simulated':>10s}{'calibrated':>11s}{'measured':>10s}  "
        f"{'least - most':15s}{'others':>7s}"
    )
    yield from map(_line, raced)
    named, searched = raced
    gain = f"  gain {_gain(named.simulated_s, searched.simulated_s)} simulated"
    before, after = named.outcome, searched.outcome
    if before is None or after is None or not (before.ended and after.ended):
        yield gain
        return
    same = "the same" if before.losses == after.losses else "DIFFERENT"
    yield (
        f"{gain}, {_gain(before.predicted_s, after.predicted_s)} calibrated, "
        f"{_gain(before.step_s, after.step_s)} measured; losses {same}"
    )


def _line(figures: Figures) -> str:
    start, outcome = f"  {figures.order:26s}{figures.simulated_s:9.3f}s", figures.outcome
    if outcome is None or outcome.failure:
        return f"{start}  {'not run' if outcome is None else outcome.failure}"
    spread = f"{min(outcome.steps_s):.3f} - {max(outcome.steps_s):.3f}"
    return (
        f"{start}{outcome.predicted_s:10.3f}s{outcome.step_s:9.3f}s  {spread:15s}"
        f"{outcome.others_part:7.0%}"
    )


def _gain(before_s: float, after_s: float) -> str:
    return f"{1 - after_s / before_s:.1%}"


def main() -> None:
    names = [case.name for case in ROWS]
    asked = parser_of(__doc__, names)
    asked.add_argument("--seconds", type=float, default=30.0, help="of a search")
    asked.add_argument("--simulate", action="store_true", help="train nothing")
    chosen = asked.parse_args()
    if chosen.list:
        print("\n".join(names))
        return
    done: dict[str, object] = {}
    for case in ROWS:
        if case.name in chosen.row:
            raced = run_row(case, 0 if chosen.simulate else chosen.repetitions, chosen.seconds)
            done[case.name] = [asdict(figures) for figures in raced]
            print("\n".join(lines(case, raced)), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(done, indent=1))


if __name__ == "__main__":
    main()
