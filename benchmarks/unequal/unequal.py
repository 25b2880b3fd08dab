"""Unequal devices in a lab: our planner's layouts against equal ones, and against torch.

    python benchmarks/unequal/unequal.py                      # every row, three repetitions
    python benchmarks/unequal/unequal.py --row "split, 1 Gbit/s" straggler --json out.json
    python benchmarks/unequal/unequal.py --list

Needs root (labs). Within a repetition the methods take turns; a figure is the median of the
repetitions' medians. Model, tokens and initial weights are the same for all, and so are losses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from command import parser_of, say
from race import EQUAL, OURS, Figures, Found, run_row
from rows import ROWS
from split import best_split, ideal_gain

METHODS = sorted({shape.method for row in ROWS for shape in row.peers})
REACHED, PREDICTED = 0.9, 0.05
"""Targets: the part of the ideal gain that is reached, and how far predictions may be off."""


def lines(raced: Found) -> Iterator[str]:
    """The row for people, at most 100 columns."""
    row, best = raced.row, raced.best_peer or raced.of(OURS)
    devices = " + ".join(f"{share:g}" for share in row.shares)
    yield f"{row.name}: {devices} processors, {row.link}, {row.case.sequences} sequences per step"
    yield (
        f"  {'method':22s} {'step':>8s} {'least - most':>15s} {'speed':>6s} {'sent':>9s} "
        f"{'others':>6s} {'planned':>8s} {'calibrated':>10s}"
    )
    for figures in raced.figures:
        yield _line(figures, best)
        yield f"    {figures.words}"
    yield from _split_words(raced)
    yield from _peer_words(raced)
    yield from _fewer_words(raced)
    yield f"  losses differ by {raced.loss_difference:.1e} at most"
    yield ""


def _line(figures: Figures, best: Figures | None) -> str:
    outcome = figures.outcome
    if outcome.failure:
        return f"  {outcome.method:22s} {outcome.failure[:76]}"
    spread = f"{min(outcome.steps_s):.2f} - {max(outcome.steps_s):.2f} s"
    ratio = f"{best.outcome.step_s / outcome.step_s:.2f}x" if best else ""
    text = (
        f"  {outcome.method:22s} {outcome.step_s:6.2f} s {spread:>15s} {ratio:>6s} "
        f"{outcome.sent_bytes / 1e6:6.1f} MB {outcome.others_part:6.0%}"
    )
    if figures.ours:
        text += f" {figures.planned_s:6.2f} s {outcome.predicted_s:8.2f} s"
    return text


def _split_words(raced: Found) -> Iterator[str]:
    """What the planned layers gain over equal ones, beside what they can gain at most."""
    ours, equal = raced.of(OURS), raced.of(EQUAL)
    if ours is None or equal is None:
        return
    costs, layers, count = raced.costs, sum(ours.layers), ours.micro_batches
    ideal = ideal_gain(costs, layers, ours.shares, count)
    gain = equal.outcome.step_s / ours.outcome.step_s
    yield (
        f"  a layer takes {costs.layer_s * 1e3:.2f} ms of a whole processor, the head "
        f"{costs.head_s / costs.layer_s:.2f} layers, the embedding "
        f"{costs.embedding_s / costs.layer_s:.2f}"
    )
    ideal_layers = " + ".join(map(str, best_split(costs, layers, ours.shares, count)))
    yield (
        f"  gain {gain:.2f}x, ideal {ideal:.2f}x ({ideal_layers} layers): {gain / ideal:.0%} of it "
        f"(wanted: {REACHED:.0%})"
    )
    for figures in (ours, equal):
        outcome = figures.outcome
        yield (
            f"  {outcome.method}: predicted {outcome.predicted_s / outcome.step_s - 1:+.1%} "
            f"calibrated, {figures.planned_s / outcome.step_s - 1:+.1%} by the plan "
            f"(wanted: {PREDICTED:.0%})"
        )


def _peer_words(raced: Found) -> Iterator[str]:
    ours, peer = raced.of(OURS), raced.best_peer
    if ours is not None and peer is not None:
        speed = peer.outcome.step_s / ours.outcome.step_s
        yield f"  {OURS} is {speed:.2f} times as fast as the best peer, {peer.outcome.method}"


def _fewer_words(raced: Found) -> Iterator[str]:
    """Whether devices that are left out would be missed."""
    fewer = raced.row.fewer
    ours, without = raced.of(OURS), raced.of(f"{OURS}, {fewer} devices")
    if fewer is None or ours is None or without is None:
        return
    if ours.words == without.words:
        yield "  the plan of all leaves the rest idle, too"
        return
    slower = ours.outcome.step_s > without.outcome.step_s
    expected = ours.planned_s > without.planned_s
    yield (
        f"  the first {fewer} devices alone: {ours.outcome.step_s / without.outcome.step_s:.2f} "
        f"times as fast as the plan of all, "
        f"by the plans {ours.planned_s / without.planned_s:.2f} times"
    )
    yield f"  so the rest is {'a burden' if slower else 'a help'}" + (
        "" if slower == expected else ", and the plans say the opposite"
    )


def main() -> None:
    names = [row.name for row in ROWS]
    asked = parser_of(__doc__, names)
    asked.add_argument(
        "--peer", nargs="+", choices=METHODS, metavar="METHOD", help=f"only of {' '.join(METHODS)}"
    )
    chosen = asked.parse_args()
    if chosen.list:
        print("\n".join(names))
        return
    rows: list[Found] = []
    for row in ROWS:
        if row.name in chosen.row:
            peers = tuple(s for s in row.peers if chosen.peer is None or s.method in chosen.peer)
            rows.append(run_row(replace(row, peers=peers), chosen.repetitions, say))
            print("\n".join(lines(rows[-1])), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps([asdict(raced) for raced in rows], indent=1))


if __name__ == "__main__":
    main()
