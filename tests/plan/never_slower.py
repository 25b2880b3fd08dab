"""What may never make a plan slower, asked of drawn jobs: more memory, more or faster devices, and
a space that leaves more open.

    python tests/plan/never_slower.py --count 20 [--families mixed sites] [--claims memory]

prints every counterexample, with both steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from random import Random

import numpy as np
from drawn_clusters import FAMILIES, drawn

from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.errors import Infeasible, RatrainError
from ratrain.plan.case.case import case_of
from ratrain.plan.layout.enumerate import groups_of
from ratrain.plan.layout.jobs import WORTH_MEMORY, WORTH_SPLIT
from ratrain.plan.layout.plan import plan_of_row
from ratrain.plan.price.trial import STEPS
from ratrain.plan.search.every_plan import every_plan
from ratrain.simulate.long import simulate_proved

SAME = 1e-9
"""Part of a step up to which two are the same."""
AXES: dict[str, tuple[object, ...]] = {
    "sequence_parallel": (False, True),
    "sharding": (0, 1, 2),
    "recovery": ("keep-all", "selective", "everywhere"),
    "gradient_accumulation": ("local", "sharded"),
    "skeleton": ("1f1b", "gpipe", "zb-h1", "layer-major-2"),
    "replicas": ("identical",),
}
"""What a job can fix that the planner chooses otherwise."""


@dataclass(frozen=True)
class Compared:
    """Two jobs, of which the second can never have the slower plan."""

    words: str
    poorer: JobSpec
    richer: JobSpec
    worth: float = 0.0
    """Part of a step that what the poorer one fixes must save before the planner chooses it"""

    def loss(self, poorer_s: float, richer_s: float) -> float:
        """How much slower the richer one's plan is, beyond what is not worth a choice; negative
        where it is not."""
        if poorer_s == inf:
            return -1.0
        return richer_s / (poorer_s / (1 - self.worth)) - 1

    @property
    def steps_s(self) -> tuple[float, float] | None:
        """Of both plans; None where there is no such job."""
        try:
            return step_s(self.poorer), step_s(self.richer)
        except RatrainError:
            return None


@lru_cache(maxsize=64)
def step_s(job: JobSpec) -> float:
    """Of the plan that is chosen, or of the job's layout; infinite where nothing fits."""
    try:
        if job.layout is None:
            return every_plan(job).chosen.step_s
        case = case_of(job)
        if not case.proved.verdict.sound:
            return inf
        return simulate_proved(case.proved, case.costs, steps=STEPS).step_time_s
    except Infeasible:
        return inf


def with_schedule(job: JobSpec, **fields: object) -> JobSpec:
    """The job with other wishes."""
    return replace(job, schedule=replace(job.schedule, **fields))  # type: ignore[arg-type]


def memory(job: JobSpec, dice: Random) -> Iterator[Compared]:
    """The budget and a little more, from what the ample plan takes downwards."""
    try:
        chosen = every_plan(job).chosen
    except Infeasible:
        return
    whole = chosen.bound_bytes or min(job.budgets)
    parts = sorted(dice.uniform(0.3, 1.1) for _ in range(2))
    low, high = (with_schedule(job, memory_budget_bytes=int(part * whole)) for part in parts)
    words = f"a budget of {parts[0]:.2f} and {parts[1]:.2f} of what its plan takes"
    yield Compared(words, low, high)


def narrower(job: JobSpec, dice: Random) -> Iterator[Compared]:
    """One axis fixed, and open."""
    for axis, values in AXES.items():
        value = dice.choice(values)
        yield Compared(
            f"{axis} = {value!r} and open",
            with_schedule(job, **{axis: value}),
            with_schedule(job, **{axis: None if axis in OPEN else "auto"}),
            WORTH.get(str(value), 0.0),
        )


WORTH = {"zb-h1": WORTH_SPLIT, "layer-major-2": WORTH_MEMORY}
OPEN = ("sequence_parallel", "sharding", "skeleton", "replicas")
"""Axes that are open where they are None; the others say "auto"."""


def faster(job: JobSpec, dice: Random) -> Iterator[Compared]:
    """A kind of device as it is, and 1.3 times as fast."""
    spec = job.cluster.spec
    chosen = dice.choice(spec.device)
    kinds = tuple(_faster(kind) if kind is chosen else kind for kind in spec.device)
    richer = replace(job.cluster, spec=replace(spec, device=kinds))
    yield Compared(f"{chosen.name} 1.3 times as fast", job, replace(job, cluster=richer))


def _faster(kind: DeviceKind) -> DeviceKind:
    rates = tuple(
        replace(rate, peak_flops=1.3 * rate.peak_flops, gemm_flops=1.3 * rate.gemm_flops)
        for rate in kind.rates
    )
    return replace(kind, rates=rates)


def more_devices(job: JobSpec, dice: Random) -> Iterator[Compared]:
    """A host more."""
    spec = job.cluster.spec
    if any(host.count == "any" for host in spec.host):
        return  # on kinds that are alike all devices are used, as a job asks
    place = dice.randrange(len(spec.host))
    hosts = list(spec.host)
    count = hosts[place].count
    assert isinstance(count, int)
    hosts[place] = replace(hosts[place], count=count + 1)
    larger = replace(spec, host=tuple(hosts))
    assert larger.size is not None
    richer = replace(job.cluster, spec=larger, devices=larger.size)
    yield Compared(f"a host more of {hosts[place].name}", job, replace(job, cluster=richer))


def layouts(job: JobSpec, dice: Random) -> Iterator[Compared]:
    """A layout of identical replicas, drawn from all that there are, and none."""
    groups = list(groups_of(job))
    for _ in range(4 if groups else 0):
        group = dice.choice(groups)
        plan = plan_of_row(group, dice.randrange(len(group)), np.zeros(group.layout.stages, int))
        batch = replace(job.batch, micro_batch=plan.alike.micro_batch)
        words = f"pipeline {plan.layout.pipeline}, data {plan.layout.data}, tensor "
        words += f"{plan.layout.tensor} in micro-batches of {batch.micro_batch}, and any layout"
        yield Compared(words, replace(job, layout=plan.layout, batch=batch), job)


CLAIMS: dict[str, Callable[[JobSpec, Random], Iterator[Compared]]] = {
    of.__name__: of for of in (memory, narrower, layouts, faster, more_devices)
}


def compared(family: str, number: int, claim: str) -> Iterator[Compared]:
    """What a claim says of a drawn job."""
    return CLAIMS[claim](drawn(family, number), Random(f"{claim}-{family}-{number}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--claims", nargs="*", default=list(CLAIMS))
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    began, asked, worst, broken = time.monotonic(), 0, 0.0, 0
    for number in range(options.first, options.first + options.count):
        for family in options.families:
            for claim in options.claims:
                if time.monotonic() - began > 60 * options.minutes:
                    break
                for pair in compared(family, number, claim):
                    steps_s = pair.steps_s
                    if steps_s is None:
                        continue
                    asked += 1
                    loss = pair.loss(*steps_s)
                    worst = max(worst, loss)
                    if loss > SAME:
                        broken += 1
                        print(
                            f"{family} {number}: {pair.words}: {steps_s[0]:.6f} s and "
                            f"{steps_s[1]:.6f} s, {loss:.4%} slower",
                            flush=True,
                        )
    print(f"{broken} of {asked} counterexamples, the worst {worst:.4%} slower")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
