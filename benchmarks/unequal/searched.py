"""Compute orders found by search, trained in a lab beside the best named order.

    python benchmarks/unequal/searched.py [--repetitions 3] [--case NAME ...]

Needs root (labs). The job is examples/unequal.toml as one pipeline of its four unequal machines;
the cases differ in links and micro-batches. The search sees only the rates in the cluster file.
Within a repetition the orders take turns; a figure is the median of the repetitions' medians, and
`predicted` the simulator's with op times measured as the run begins.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
RATRAIN = [sys.executable, "-c", "from ratrain.cli.main import main; main()"]
STEPS = 16


@dataclass(frozen=True)
class Case:
    """The example's job with other values, on links of another rate."""

    name: str
    link: str
    settings: tuple[str, ...]


CASES = (
    Case("100 Mbit/s, 8 micro-batches", "100Mbit/s", ()),
    Case("60 Mbit/s, 16 micro-batches", "60Mbit/s", ("batch.micro_batch=2",)),
    Case("100 Mbit/s, 4 micro-batches", "100Mbit/s", ("batch.sequences=16",)),
)
COMMON = ("layout.pipeline=4", f"train.steps={STEPS}", "checkpoint.every=1000")


@dataclass(frozen=True)
class Order:
    """One compute order: what `--set` must say, and the step by the cluster file's rates."""

    name: str
    settings: tuple[str, ...]
    simulated_s: float


def ratrain(folder: Path, *words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = subprocess.run(
        [*RATRAIN, *words, "--json"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}:\n{done.stderr}")
    return json.loads(done.stdout)


def orders_of(folder: Path, case: Case, seconds: float) -> list[Order]:
    """The fastest named order that fits, plain 1F1B, and the one found by search."""
    words = ("schedules", "unequal.toml", *_set((*COMMON, *case.settings)))
    body = ratrain(folder, *words, "--search", "--seconds", str(seconds), "--save", "mine.csv")
    if not body["search"]["faster"]:
        raise SystemExit(f"{case.name}: no order found that is faster than the named ones")
    simulated = {row["schedule"]: row["step_time_s"] for row in body["schedules"] if row["fits"]}
    best = min(simulated, key=lambda name: simulated[name])
    searched = body["search"]["order"]
    named = [Order(n, (f"schedule.name={n}",), simulated[n]) for n in dict.fromkeys((best, "1f1b"))]
    return [*named, Order("found", tuple(searched["settings"]), searched["step_time_s"])]


def trained(folder: Path, case: Case, order: Order, repetition: int) -> dict[str, Any]:
    """One run in a lab, and its figures."""
    run = f"{order.name}-{repetition}"
    settings = _set((*COMMON, *case.settings, *order.settings))
    body = ratrain(folder, "train", "unequal.toml", "--lab", "--run", run, *settings)
    shutil.rmtree(folder / run)
    return body


def _set(values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def race(case: Case, repetitions: int, seconds: float) -> None:
    """Prints the case's table."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "examples"
        shutil.copytree(EXAMPLES, folder)
        cluster = folder / "clusters" / "four-machines.toml"
        cluster.write_text(cluster.read_text().replace("100Mbit/s", case.link))
        ratrain(folder, "data", "--sample-text", "quickstart-text.jsonl")
        orders = orders_of(folder, case, seconds)
        runs: dict[str, list[dict[str, Any]]] = {order.name: [] for order in orders}
        for repetition in range(repetitions):
            for order in orders:
                runs[order.name].append(trained(folder, case, order, repetition))
    print(f"{case.name}")
    print(f"  {'order':16}{'by rates':>10}{'predicted':>11}{'measured':>10}   least - most")
    for order in orders:
        steps_s = [run["step_time_s"]["measured"] for run in runs[order.name]]
        predicted_s = median(run["step_time_s"]["predicted"] for run in runs[order.name])
        print(
            f"  {order.name:16}{order.simulated_s:8.3f} s{predicted_s:9.3f} s"
            f"{median(steps_s):8.3f} s   {min(steps_s):.3f} - {max(steps_s):.3f}"
        )
    best, searched = orders[0], orders[-1]
    gain = 1 - _measured_s(runs, searched) / _measured_s(runs, best)
    print(
        f"  found against {best.name}: {1 - searched.simulated_s / best.simulated_s:.1%} less by "
        f"rates, {gain:.1%} less measured",
        flush=True,
    )


def _measured_s(runs: dict[str, list[dict[str, Any]]], order: Order) -> float:
    return median(run["step_time_s"]["measured"] for run in runs[order.name])


def main() -> None:
    names = [case.name for case in CASES]
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--repetitions", type=int, default=3)
    asked.add_argument("--seconds", type=float, default=30.0, help="of each search")
    asked.add_argument("--case", nargs="+", choices=names, default=names, metavar="NAME")
    chosen = asked.parse_args()
    for case in CASES:
        if case.name in chosen.case:
            race(case, chosen.repetitions, chosen.seconds)


if __name__ == "__main__":
    main()
