"""All methods side by side, in one lab for each regime: layouts, links, models, recovery.

    python benchmarks/runtime/sweep.py --quick --emulate     # about six minutes
    python benchmarks/runtime/sweep.py                       # everything, real arithmetic
    python benchmarks/runtime/sweep.py --layout 2x2 --link "200 Mbit/s" --json out.json

Needs root (labs). Within a repetition the methods take turns; a figure is the median of the
repetitions' medians. `others` is the part of the machine that was not the benchmark's: with real
arithmetic, rows where it is high say little.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bound import Bound, bound_of
from cases import LINKS, LOW_RANK, NARROW, Case, Emulation
from field import field_of
from ours import OURS, SHARDED
from outcomes import Outcome, together

PIPELINES = ("pp", "pp-interleaved", "pp-bfs", "pp-zero-bubble")
"""Peers of layouts without replicas."""
REPLICAS = ("ddp", "fsdp2", "fsdp2-kept")
"""Peers of layouts without a pipeline."""
LAYOUTS = {
    "pipeline 2": ({"pipeline": 2, "data": 1, "cpus": 1.0}, PIPELINES),
    "pipeline 4": ({"pipeline": 4, "data": 1, "cpus": 0.5}, PIPELINES),
    "data 2": ({"pipeline": 1, "data": 2, "cpus": 1.0}, REPLICAS),
    "data 3": ({"pipeline": 1, "data": 3, "cpus": 0.5}, REPLICAS),
    "data 4": ({"pipeline": 1, "data": 4, "cpus": 0.5}, REPLICAS),
    "2x2": (
        {"pipeline": 2, "data": 2, "cpus": 0.5},
        ("pp+ddp", "pp+fsdp2", "pp+hooks", "deepspeed"),
    ),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "balanced": {},
    "recovery": {"recovery": True},
    "vocabulary": {"model": "vocabulary"},
    "published": {"model": "vocabulary", "recovery": True},
    "long": {"sequences": 64},
    "published-long": {"model": "vocabulary", "recovery": True, "sequences": 64},
    "wide": {"model": "wide"},
    "middle": {"model": "middle", "sequence_length": 96},
    "thin": {"model": "thin", "sequence_length": 64},
}
"""Of the regimes. `published`: recovery needed and a vocabulary-heavy last stage, as in the paper's
evaluation; `long`: 32 micro-batches a replica in place of 8 (the paper has 256), so that filling
the pipeline hardly counts. `wide`: for replicas alone; `middle`: for 2x2; `thin`: for pipelines."""
OF_A_REPLICA = {"wide": 4, "middle": 12, "thin": 32}
"""Micro-batches of a replica in one step; in other regimes a step has so many sequences in all."""
NARROW_PEERS = {
    "ddp": (f"ddp{NARROW}", f"ddp{LOW_RANK}"),
    "pp+ddp": (f"pp+ddp{NARROW}",),
}
WITHOUT_CHECKPOINTS = ("ratrain", "breadth-first", "tuned", "baseline-1f1b", *SHARDED)
"""Where nothing is recovered, backward-checkpoint is `tuned`."""
SLEEPS = {"balanced": Emulation(0.012, 0.009), "vocabulary": Emulation(0.012, 0.072)}


@dataclass(frozen=True)
class Row:
    """A case, what every method did in it, and what no order of the same work can beat."""

    case: Case
    peers: tuple[Outcome, ...]
    ours: tuple[Outcome, ...]
    bound: Bound

    @property
    def best_peer(self) -> Outcome | None:
        """The fastest that ended, of those that send what they compute."""
        lossy = (NARROW, LOW_RANK)
        ended = [peer for peer in self.peers if peer.ended and not peer.method.endswith(lossy)]
        return min(ended, key=lambda peer: peer.step_s, default=None)


def cases(chosen: argparse.Namespace) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """The regimes asked for, each with the peers of its layout."""
    for variant, layout, link in product(chosen.variant, chosen.layout, chosen.link):
        shape, peers = LAYOUTS[layout]
        case = Case(f"{variant}, {layout}, {link}", link=link, **{**shape, **VARIANTS[variant]})
        if variant in OF_A_REPLICA:
            case = case.but(sequences=OF_A_REPLICA[variant] * case.data)
        if chosen.emulate:
            case = case.but(emulation=SLEEPS[case.model], cpus=1.0)
        if chosen.narrow:
            peers = tuple(name for peer in peers for name in (peer, *NARROW_PEERS.get(peer, ())))
        wanted = [peer for peer in peers if peer in (chosen.peers or peers)]
        yield case.but(steps=chosen.steps, settings=tuple(chosen.set)), tuple(wanted)


def row_of(case: Case, peers: Sequence[str], chosen: argparse.Namespace) -> Row:
    """The methods one after the other, again and again."""
    ours = [name for name in chosen.ours if case.recovery or name in WITHOUT_CHECKPOINTS]
    if chosen.narrow:
        ours = [each for name in ours for each in (name, f"{name}{NARROW}")]
    runs: dict[str, list[Outcome]] = {name: [] for name in (*peers, *ours)}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        field_of(case, Path(folder) / "case") as field,
    ):
        for _ in range(chosen.repetitions):
            for name, ended in runs.items():
                if all(run.ended for run in ended):
                    ended.append(field.run(name))
    outcomes = {name: together(ended) for name, ended in runs.items()}
    of_ours = tuple(outcomes[name] for name in ours)
    return Row(case, tuple(outcomes[name] for name in peers), of_ours, bound_of(case, of_ours))


def lines(row: Row) -> Iterator[str]:
    """The row for people, at most 90 columns."""
    case, best = row.case, row.best_peer
    yield f"{case.name}  ({case.micro_batches} micro-batches of {case.micro_batch} a replica)"
    yield f"  {'method':20s} {'step':>8s} {'least - most':>15s} {'speed':>6s} {'sent':>9s} " + (
        f"{'memory':>8s} {'others':>6s} {'predicted':>9s}"
    )
    for outcome in (*row.peers, *row.ours):
        yield _line(outcome, best)
    yield f"  {row.bound.words}"
    for outcome in row.ours[:1]:
        if outcome.ended:
            yield f"  {outcome.method} reaches {row.bound.time_s / outcome.step_s:.0%} of it"
            if outcome.least_s:
                part = outcome.least_s / outcome.step_s
                yield f"  no order of its work takes less than {outcome.least_s:.2f} s: {part:.0%}"
    yield ""


def _line(outcome: Outcome, best: Outcome | None) -> str:
    if outcome.failure:
        return f"  {outcome.method:20s} {outcome.failure[:68]}"
    ratio = f"{best.step_s / outcome.step_s:.2f}x" if best else ""
    spread = f"{min(outcome.steps_s):.2f} - {max(outcome.steps_s):.2f} s"
    return (
        f"  {outcome.method:20s} {outcome.step_s:6.2f} s {spread:>15s} {ratio:>6s} "
        f"{outcome.sent_bytes / 1e6:6.1f} MB {outcome.peak_bytes / 1e6:5.0f} MB "
        f"{outcome.others_part:6.0%}"
        + (f" {outcome.predicted_s:7.2f} s" if outcome.predicted_s else "")
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    asked.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    asked.add_argument("--link", nargs="+", choices=LINKS, default=list(LINKS))
    asked.add_argument("--variant", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    asked.add_argument("--ours", nargs="*", choices=(*OURS, *SHARDED), default=list(OURS))
    asked.add_argument("--peers", nargs="*", help="of a layout's peers, only these")
    asked.add_argument("--repetitions", type=int, default=3)
    asked.add_argument("--steps", type=int, default=5, help="timed in each run")
    asked.add_argument("--emulate", action="store_true", help="compute replaced by sleeps")
    asked.add_argument("--set", nargs="+", default=[], help="KEY=VALUE of our own jobs")
    asked.add_argument(
        "--narrow", action="store_true", help="each of ours, and DDP, with bf16 on the wire too"
    )
    asked.add_argument("--quick", action="store_true", help="2x2, two links, one repetition")
    asked.add_argument("--json", type=Path, help="write all figures there")
    chosen = asked.parse_args()
    if chosen.quick:
        chosen.layout, chosen.variant, chosen.repetitions = ["2x2"], ["balanced"], 1
        chosen.link, chosen.ours = ["1 Gbit/s", "200 Mbit/s"], ["ratrain", "baseline-1f1b"]
    rows: list[Row] = []
    for case, peers in cases(chosen):
        rows.append(row_of(case, peers, chosen))
        print("\n".join(lines(rows[-1])), flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Help text keeps its lines."""


if __name__ == "__main__":
    main()
