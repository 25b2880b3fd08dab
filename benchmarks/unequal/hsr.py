"""Unequal devices, simulated: the heterogeneous speedup ratio of a described mix, and unequal
stages against the best symmetric plan.

    python benchmarks/unequal/hsr.py                # both, a minute of one core
    python benchmarks/unequal/hsr.py --json hsr.json

First a mix whose kinds are better together, planned with the large memory first and with it last.
Then HexiScale's case of 3 + 3 + 2 GPUs: what `plan` writes against plans that cut the layers
equally, over all of the devices or over any hosts of them, each in 1F1B and in ZB-H1, whichever is
faster. Nothing is measured: all steps are simulated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from planning import of_any

from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.describe.ranges import STAGES, write_list
from ratrain.describe.units import format_time
from ratrain.errors import RatrainError
from ratrain.plan.layout.enumerate import Group, groups_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.layout.plan import SPLIT, Plan, plan_of_row
from ratrain.plan.price.trial import step_s_of
from ratrain.plan.search.every_plan import every_plan
from ratrain.plan.search.layouts import check
from ratrain.plan.search.other_devices import DEFINITION, Speedup, only_kinds, speedup_of
from ratrain.plan.search.tried import Tried
from ratrain.program.units import Bools

DESCRIBED = Path(__file__).parent / "described"
TRIED = 24
"""Plans simulated, the best by closed formulas."""
WANTED_HSR, WANTED_GAIN = 1.16, (1.4, 1.8)


@dataclass(frozen=True)
class Found:
    """The best plan of some sort, simulated and proved to fit."""

    name: str
    step_s: float
    words: str


Rows = Callable[[Group], Bools]
"""Which rows of a group are of the sort that is looked for."""


def best(job: JobSpec, name: str, rows: Rows) -> Found | None:
    """The fastest plan of a sort; None where none fits."""
    ranked: list[tuple[float, int, Plan]] = []
    for group in groups_of(job):
        checked = check(group)
        for row in np.flatnonzero(checked.fits & rows(group)).tolist():
            plan = plan_of_row(group, row, checked.recovery[row])
            ranked.append((float(checked.step_s[row]), len(ranked), plan))
    ranked.sort(key=lambda entry: entry[:2])
    plans: list[tuple[float, Plan]] = []
    for _, _, plan in ranked[:TRIED]:
        for ordered in (plan, *SPLIT.plans(plan)):
            step_s = step_s_of(ordered)
            if step_s is not None:
                plans.append((step_s, ordered))
    if not plans:
        return None
    step_s, plan = min(plans, key=lambda entry: entry[0])
    return Found(name, step_s, words_of(plan))


def words_of(plan: Plan) -> str:
    """Degrees, layers, recovery and order of a plan."""
    layout = plan.layout
    degrees = f"pipeline {layout.pipeline} x data {layout.data} x tensor {layout.tensor}"
    modes = write_list([mode.value for mode in plan.alike.recovery], STAGES)
    layers = f"layers per stage {write_list(plan.alike.layers, STAGES)}"
    return f"{degrees}; {layers}; recovery {modes}; {plan.strategy.skeleton}"


def equal_layers(group: Group) -> Bools:
    """Rows whose stages have equally many layers; where that does not divide, one more on some."""
    return group.layers.max(axis=1) - group.layers.min(axis=1) <= 1


def in_order(reverse: bool) -> Rows:
    """Rows with the cluster's kinds as listed, or reversed."""

    def rows(group: Group) -> Bools:
        return np.full(len(group), group.reversed_kinds == reverse)

    return rows


# ---- a mix that is more than its parts -------------------------------------------------


@dataclass(frozen=True)
class Mix:
    """A mix planned with its kinds in either order, beside each kind alone."""

    orders: tuple[Found, ...]
    speedups: tuple[Speedup, ...]


def mix() -> Mix:
    job = load_job(DESCRIBED / "large-and-small.toml")
    first, last = (kind.name for kind in job.cluster.kinds)
    tokens = job.batch.sequences * job.model.sequence_length
    orders = [
        order
        for name, reverse in ((f"{first} first", False), (f"{last} first", True))
        if (order := best(job, name, in_order(reverse))) is not None
    ]
    base = speedup_of(job, 0.0)
    assert base is not None, "the mix has two kinds"
    speedups = [replace(base, tokens_per_s=tokens / order.step_s) for order in orders]
    return Mix(tuple(orders), tuple(speedups))


def mix_lines(described: Mix) -> Iterator[str]:
    yield "large-and-small: llama-2-13b, 512 sequences of 4,096 tokens, 4 + 4 devices"
    for kind_alone in described.speedups[0].alone:
        assert kind_alone.best is not None and kind_alone.tokens_per_s is not None
        yield f"  {kind_alone.kind.name + ' alone':14s} {kind_alone.tokens_per_s:10,.1f} tokens/s"
        yield f"    {words_of(kind_alone.best.plan)}"
    for order, speedup in zip(described.orders, described.speedups, strict=True):
        yield f"  {order.name:14s} {speedup.tokens_per_s:10,.1f} tokens/s, HSR {speedup.hsr:.3f}"
        yield f"    {order.words}"
    first, second = (speedup.hsr or 0.0 for speedup in described.speedups)
    reached = "reached" if first >= WANTED_HSR else "not reached"
    worth = f"the order is worth {first / second:.2f}x"
    yield f"  HSR {first:.3f} (wanted {WANTED_HSR}: {reached}); {worth}"
    yield f"  HSR: {DEFINITION}"


# ---- three, three and two ----------------------------------------------------------------


def plans_of(job: JobSpec) -> Iterator[Found]:
    """Equal layers over every choice of kinds, then what `plan` writes."""
    kinds = job.cluster.kinds
    for count in range(len(kinds), 0, -1):
        for chosen in combinations(kinds, count):
            name = f"equal layers, {_names(chosen)}"
            try:
                chosen_plan = best(only_kinds(job, chosen), name, equal_layers)
            except RatrainError:
                chosen_plan = None  # no layout has all of these devices
            if chosen_plan is not None:
                yield chosen_plan
    yield planned_by_us(job)


def planned_by_us(job: JobSpec) -> Found:
    """The plan that `ratrain plan` writes."""
    chosen = every_plan(job).chosen
    words = words_of(chosen.plan) if isinstance(chosen, Tried) else of_any(chosen).words
    return Found("ratrain plan", chosen.step_s, words)


def _names(kinds: Sequence[DeviceKind]) -> str:
    return " + ".join(kind.name for kind in kinds)


def gain(plans: Sequence[Found]) -> float | None:
    """The best symmetric step over ours; None where there is no symmetric plan."""
    *symmetric, ours = plans
    return min(plan.step_s for plan in symmetric) / ours.step_s if symmetric else None


def case_lines(name: str, plans: Sequence[Found]) -> Iterator[str]:
    yield f"three-three-two, {name}: 80 sequences of 4,096 tokens"
    for plan in plans:
        yield f"  {plan.name:48s} {format_time(plan.step_s):>8s}  {plan.words}"
    reached = gain(plans)
    low, high = WANTED_GAIN
    if reached is None:
        yield "  no plan of equal layers fits"
    else:
        yield f"  gain {reached:.2f}x over the best of equal layers (wanted {low} to {high})"


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--json", type=Path)
    options = asked.parse_args()
    described = mix()
    print("\n".join(mix_lines(described)), flush=True)
    cases: dict[str, list[Found]] = {}
    for name in ("llama-2-7b", "llama-2-13b"):
        job = load_job(DESCRIBED / f"three-three-two-{name.removeprefix('llama-2-')}.toml")
        cases[name] = list(plans_of(job))
        print("\n".join(["", *case_lines(name, cases[name])]), flush=True)
    if options.json:
        orders = [
            {**asdict(order), "hsr": speedup.hsr, "tokens_per_s": speedup.tokens_per_s}
            for order, speedup in zip(described.orders, described.speedups, strict=True)
        ]
        body = {"mix": orders, **{name: list(map(asdict, plans)) for name, plans in cases.items()}}
        options.json.write_text(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
