"""What stages of unequal sizes and stages of several members bring, measured in a lab.

    python benchmarks/unequal/capabilities.py                    # every row, three repetitions
    python benchmarks/unequal/capabilities.py --row "sizes, two devices" --repetitions 5
    python benchmarks/unequal/capabilities.py --list
    python benchmarks/unequal/capabilities.py --plans            # plans only, nothing is trained

Each row runs the fastest plan that the planner has with the capability, and the fastest that it has
without, in turns on the same devices; needs root (labs). A figure is the median of the repetitions'
medians. Memory is short on some devices: where all have plenty, the planner has other ways.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from blocks import Blocks, measured_blocks
from cases import Case, cluster_of
from command import parser_of, say
from field import Field
from ours import write_job
from outcomes import Outcome, together
from planning import Planned, WrittenPlan, of_any

from ratrain.describe.job import JobSpec
from ratrain.lab import Lab
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.plan import Plan
from ratrain.plan.search.layouts import search_layouts
from ratrain.plan.search.unequal import unequal_search

OURS = "ratrain"
STARTS = 4
"""Plans of identical replicas with which the search for others begins, as `plan` does."""


@dataclass(frozen=True)
class Row:
    """A capability, and devices on which the planner needs it."""

    name: str
    has: Callable[[Plan], bool]
    case: Case


def has_sizes(plan: Plan) -> bool:
    """Whether stages compute different numbers of micro-batches at once."""
    return any(len(set(replica.joined)) > 1 for replica in plan.replicas)


def has_members(plan: Plan) -> bool:
    """Whether a stage has several members."""
    return any(len(shares) > 1 for replica in plan.replicas for shares in replica.serving)


BASE = Case("", fits_itself=True, steps=8, warm_up=2)


def _on(base: Case, link: str, shares: tuple[float, ...], megabytes: tuple[int, ...]) -> Case:
    """A case on devices with these processors and memories; a plan says how they are used."""
    memories = tuple(size * 1_000_000 for size in megabytes)
    return base.but(pipeline=1, data=len(shares), shares=shares, memories=memories, link=link)


ROWS = (
    Row(
        "sizes, two devices",
        has_sizes,
        _on(
            BASE.but(model="balanced", sequence_length=32, sequences=48),
            "50 Mbit/s",
            (0.5, 1.0),
            (78, 78),
        ),
    ),
    Row(
        "sizes, three devices",
        has_sizes,
        _on(
            BASE.but(model="balanced", sequences=66, steps=4),
            "100 Mbit/s",
            (0.5, 0.5, 0.8),
            (95, 95, 60),
        ),
    ),
    Row(
        "members, three devices",
        has_members,
        _on(
            BASE.but(model="short", sequences=24),
            "10 Gbit/s",
            (0.6, 0.4, 0.4),
            (62, 48, 48),
        ),
    ),
    Row(
        "members, five devices",
        has_members,
        _on(
            BASE.but(model="shortest", sequences=10, steps=16),
            "1 Gbit/s",
            (0.4, 0.4, 0.3, 0.3, 0.3),
            (50, 50, 50, 50, 50),
        ),
    ),
)


@dataclass(frozen=True)
class NamedPlan:
    """A plan of a row: "with" the capability, or "without"."""

    name: str
    written: WrittenPlan


@dataclass(frozen=True)
class Figures:
    """A plan and what it did; its outcome's steps are the medians of its repetitions."""

    plan: NamedPlan
    outcome: Outcome


def plans_of(row: Row, job: JobSpec) -> tuple[NamedPlan, NamedPlan | None]:
    """The fastest plan without the capability, and the fastest with it."""
    job = replace(job, layout=None)
    alike = search_layouts(job)
    alike_s = alike.best.step_s if alike.tried else inf
    starts = [tried.plan for tried in alike.tried[:STARTS]]
    others = unequal_search(job, starts, alike_s).trainable
    without = [plan for plan in others if not row.has(plan.plan)]
    having = [plan for plan in others if row.has(plan.plan)]
    best = of_any(without[0]) if without else Planned(alike.best.plan, alike_s).written
    return NamedPlan("without", best), NamedPlan("with", of_any(having[0])) if having else None


@dataclass(frozen=True)
class Raced:
    """A row and its figures: of the plan without the capability, and of the one with it."""

    row: Row
    figures: tuple[Figures, ...]

    def of(self, name: str) -> Figures | None:
        """Those of a plan that ended."""
        ended = (figures for figures in self.figures if figures.outcome.ended)
        return next((figures for figures in ended if figures.plan.name == name), None)


def run_row(row: Row, repetitions: int) -> Raced:
    """The two plans in turns, again and again; without repetitions they are only made."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder = Path(place)
        row.case.write(folder)
        with Lab(cluster_of(folder), row.case.ranks) as lab:
            length = row.case.sequence_length
            blocks = measured_blocks(folder / "config.json", length, lab)
            job = _written(row.case, folder / "plans", blocks)
            plans = [plan for plan in plans_of(row, load_job(job)) if plan is not None]
            runs: dict[str, list[Outcome]] = {plan.name: [] for plan in plans}
            for number in range(repetitions):
                for plan in plans:
                    outcome = _run(
                        row.case, folder / plan.name, blocks, lab, plan.written, job.parent
                    )
                    runs[plan.name].append(outcome)
                    did = outcome.failure or f"{outcome.step_s:.3f} s"
                    say(f"{row.name}, {number + 1} of {repetitions}: {plan.name} {did}")
    return Raced(
        row,
        tuple(
            Figures(plan, replace(together(runs[plan.name]), method=plan.name))
            if repetitions
            else Figures(plan, Outcome(plan.name, failure="not run"))
            for plan in plans
        ),
    )


def _written(case: Case, folder: Path, blocks: Blocks) -> Path:
    """The job file of a case, with what its devices' blocks cost."""
    case.write(folder, {share: blocks.toml(share) for share in case.shares})
    return write_job(case, folder)


def _run(
    case: Case, folder: Path, blocks: Blocks, lab: Lab, plan: WrittenPlan, planned_in: Path
) -> Outcome:
    """A plan on the devices of a run, in place of those for which it was planned."""
    _written(case, folder, blocks)
    path = folder / "plan.json"
    path.write_text(plan.text.replace(str(planned_in), str(folder)))
    return Field(case, folder, lab).run(OURS, path)


def lines(raced: Raced) -> Iterator[str]:
    """The row for people, at most 100 columns but for plans."""
    case = raced.row.case
    devices = " + ".join(f"{share:g}" for share in case.shares)
    memory = " + ".join(f"{size / 1e6:.0f}" for size in case.memories)
    yield f"{raced.row.name}: {devices} processors with {memory} MB, {case.link},"
    yield f"  {case.sequences} sequences of {case.sequence_length} tokens per step"
    yield (
        f"  {'plan':8s} {'step':>9s} {'least - most':>15s} {'others':>6s} {'planned':>9s} "
        f"{'calibrated':>10s}  planned and calibrated off by"
    )
    for figures in raced.figures:
        yield _line(figures)
        yield f"    {figures.plan.written.words}"
    yield from _gain_words(raced)
    yield ""


def _line(figures: Figures) -> str:
    name, plan, outcome = figures.plan.name, figures.plan.written, figures.outcome
    if outcome.failure:
        return f"  {name:8s} {outcome.failure[:60]}; planned {plan.step_s:.3f} s"
    spread = f"{min(outcome.steps_s):.3f} - {max(outcome.steps_s):.3f} s"
    return (
        f"  {name:8s} {outcome.step_s:7.3f} s {spread:>15s} {outcome.others_part:6.0%} "
        f"{plan.step_s:7.3f} s {outcome.predicted_s:8.3f} s  "
        f"{plan.step_s / outcome.step_s - 1:+.0%}, {outcome.predicted_s / outcome.step_s - 1:+.0%}"
    )


def _gain_words(raced: Raced) -> Iterator[str]:
    if len(raced.figures) < 2:
        yield "  the planner has no faster plan with the capability here"
        return
    without, having = (figures.plan.written for figures in raced.figures)
    text = f"  gain: {without.step_s / having.step_s:.2f}x planned"
    before, after = raced.of("without"), raced.of("with")
    if before is None or after is None:
        yield text
        return
    ours, theirs = after.outcome, before.outcome
    yield (
        f"{text}, {theirs.predicted_s / ours.predicted_s:.2f}x calibrated, "
        f"{theirs.step_s / ours.step_s:.2f}x measured"
    )
    pairs = zip(ours.losses, theirs.losses, strict=False)
    yield f"  losses differ by {max(abs(a - b) for a, b in pairs):.1e} at most"


def main() -> None:
    names = [row.name for row in ROWS]
    asked = parser_of(__doc__, names)
    asked.add_argument("--plans", action="store_true", help="print the plans, and train nothing")
    chosen = asked.parse_args()
    if chosen.list:
        print("\n".join(names))
        return
    raced: dict[str, list[object]] = {}
    for row in ROWS:
        if row.name in chosen.row:
            repetitions = 0 if chosen.plans else chosen.repetitions
            result = run_row(row, repetitions)
            raced[row.name] = [asdict(figures) for figures in result.figures]
            print("\n".join(lines(result)), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(raced, indent=1))


if __name__ == "__main__":
    main()
