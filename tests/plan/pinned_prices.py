"""Prices of drawn configurations as they were when they were last looked at: a change of a formula
shows here, whatever it is of.

    python tests/plan/pinned_prices.py        # after a change that is meant: writes the JSON

What prices should be, tests/plan/test_prices_by_hand.py and its like say; this says that nothing
else became of them. A figure weighs each of its numbers by its place, so that no two cancel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from drawn_clusters import drawn
from member_drafts import member_drafts
from random_jobs import job

from ratrain.cost.measured import Unmeasured
from ratrain.describe.device import Driving
from ratrain.describe.job import JobSpec
from ratrain.describe.train import TrainSpec
from ratrain.plan.draft.space import Space
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import Group, groups_of
from ratrain.plan.layout.plan import plan_of_row
from ratrain.plan.price.bill import bill_of
from ratrain.plan.price.estimate import estimate
from ratrain.plan.price.fitted import codes_of, fitted
from ratrain.plan.price.kind_speed import kind_speed, least_step_s, parts_of_cluster
from ratrain.plan.price.places import costs_of
from ratrain.plan.price.trial import least_step_s as least_time_s
from ratrain.plan.price.what_if import computing_faster, sending_faster
from ratrain.plan.search.beam import seeds
from ratrain.plan.search.drafts import DraftSearch
from ratrain.plan.search.limits import effort_of
from ratrain.plan.search.moves import changed

FILE = Path(__file__).with_suffix(".json")
ROWS = 12
"""Of a job, drawn."""


def asked(spec: JobSpec, **schedule: Any) -> JobSpec:
    return replace(spec, schedule=replace(spec.schedule, **schedule))


def trained(spec: JobSpec, **train: Any) -> JobSpec:
    return replace(spec, train=TrainSpec(**train))


def driving(spec: JobSpec) -> JobSpec:
    """The job on devices whose own processors move bytes."""
    cluster, moves = spec.cluster.spec, Driving(2e-4, 4e-10, 2.0)
    devices = tuple(replace(kind, driving=moves) for kind in cluster.device)
    return replace(spec, cluster=replace(spec.cluster, spec=replace(cluster, device=devices)))


JOBS: dict[str, Callable[[], JobSpec]] = {
    "one kind": lambda: job("small-llama", "mt3000", 8, 16),
    "kernels": lambda: job("gpt-1.7b", "a100-80g-dgx", 16, 32, 1024),
    "stored scores": lambda: asked(
        job("gpt-3.6b", "a100-80g-dgx", 8, 16, 1024), attention="stored"
    ),
    "selective": lambda: asked(
        job("gpt-3.6b", "a100-80g-dgx", 8, 16, 1024), attention="stored", recovery="selective"
    ),
    "ours": lambda: job("llama-2-7b", "a100-80g-dgx", 16, 32, 1024, backend="torch"),
    "zb-h1": lambda: asked(
        job("llama-2-7b", "h100-dgx", 16, 32, backend="torch"), skeleton="zb-h1"
    ),
    "gpipe": lambda: asked(job("small-llama", "mt3000", 8, 16), skeleton="gpipe"),
    "chunks": lambda: asked(job("llama-2-7b", "mt3000", 8, 32), skeleton="interleaved"),
    "layers together": lambda: asked(
        job("small-llama", "cpu-lab", 4, 64, 64, backend="torch"), skeleton="layer-major-4"
    ),
    "lumps": lambda: job("small-llama", "mt3000", 8, 16, schedule="baseline-1f1b"),
    "backward checkpoint": lambda: job(
        "small-llama", "mt3000", 8, 16, schedule="backward-checkpoint"
    ),
    "without prefetch": lambda: asked(
        job("small-llama", "mt3000", 8, 16), without=("update-prefetch",)
    ),
    "little memory": lambda: job("llama-2-7b", "mt3000", 32, 64, 1024, 16 * 10**9),
    "two kinds": lambda: job("small-llama", "mixed-sites", 8, 16),
    "measured": lambda: asked(job("gpt-neo-2.7b", "gh200-deepspeed", 8, 16, 2048), dtype="fp32"),
    "deepspeed": lambda: job("gpt-1.7b", "a100-deepspeed", 8, 16, 1024),
    "hierarchical": lambda: asked(
        job("gpt-1.7b", "a100-80g-dgx", 16, 32), collective="hierarchical"
    ),
    "ring": lambda: asked(job("gpt-1.7b", "mt3000", 16, 32), collective="ring"),
    "fastest": lambda: asked(job("gpt-1.7b", "a100-80g-dgx", 16, 32), collective="auto"),
    "clipped": lambda: trained(
        job("small-llama", "cpu-lab", 4, 16, 64, backend="torch"), clip_norm=1.0
    ),
    "fp16": lambda: asked(
        job("small-llama", "mixed-sites", 8, 16, backend="torch"),
        dtype="fp16",
        gradient_wire="fp16",
        boundary_wire="fp16",
    ),
    "error feedback": lambda: asked(
        job("small-llama", "cpu-lab", 4, 16, 64, backend="torch"),
        dtype="fp32",
        gradient_wire="bf16",
        error_feedback=True,
    ),
    "averages": lambda: asked(
        job("small-llama", "mixed-sites", 8, 16, backend="torch"), average_every=4, dtype="bf16"
    ),
    "buckets": lambda: asked(
        job("llama-2-7b", "mt3000", 8, 16, backend="torch"),
        gradient_bucket_bytes=25_000_000,
        gradient_accumulation="sharded",
    ),
    "tied": lambda: job("small-qwen", "cpu-lab", 4, 16, 64, backend="torch"),
    "experts at one rate": lambda: job("qwen3-30b-a3b", "h100-dgx", 8, 32),
    "driving": lambda: driving(job("small-llama", "mixed-sites", 8, 16, backend="torch")),
    "experts": lambda: job("qwen3-30b-a3b", "a100-80g-dgx", 8, 32, 1024, backend="torch"),
}


def weighed(numbers: Any) -> float:
    """One number of many."""
    flat = np.asarray(numbers, dtype=np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    return float(finite @ np.cos(np.arange(1, len(finite) + 1) % 97) + 3 * len(finite))


def chosen_groups(spec: JobSpec) -> list[Group]:
    """Some of a job's groups, of various degrees."""
    every = list(islice(groups_of(spec), 120))
    dice = Random(7)
    return dice.sample(every, min(ROWS, len(every)))


def of_groups(spec: JobSpec) -> Iterator[tuple[str, float]]:
    """What closed forms say of identical replicas, in every recovery mode."""
    for number, group in enumerate(chosen_groups(spec)):
        codes = [fitted(group)[0]]
        codes += [np.full_like(codes[0], code) for code in codes_of(spec, group.strategy)]
        for mode, recovery in enumerate(codes):
            known = estimate(group, recovery)
            for field in fields(known):
                yield f"{number}.{mode} {field.name}", weighed(getattr(known, field.name))
            for item, size in bill_of(group, recovery).items.items():
                yield f"{number}.{mode} {item}", weighed(size)


def of_plans(spec: JobSpec) -> Iterator[tuple[str, float]]:
    """What ops of whole programs cost, and the least that steps take."""
    for number, group in enumerate(chosen_groups(spec)[:4]):
        recovery = fitted(group)[0]
        plan = plan_of_row(group, Random(number).randrange(len(group)), recovery[0])
        setup, costs = plan.setup, costs_of(plan, plan.setup)
        yield f"{number} rates", weighed(np.sort(costs.link_rate_bytes_per_s))
        faster = computing_faster(costs, setup, [0], 2.0), sending_faster(costs, setup, [0], 2.0)
        for which, each in enumerate((costs, *faster)):
            for kind, work in each.work.items():
                rates = np.append(each.link_rate_bytes_per_s, 0.0)[work.link]
                parts = (work.fixed_s, work.volume_bytes, work.interrupt_s, rates)
                yield (
                    f"{number}.{which} {kind.name}",
                    sum((n + 1) * weighed(part) for n, part in enumerate(parts)),
                )
        yield f"{number} least", least_time_s(plan.strategy, setup, plan.choices, costs)
    devices = spec.cluster.members()
    yield "least", least_step_s(spec, devices)
    for kind in spec.cluster.kinds:
        speed = kind_speed(spec, kind, 4)
        yield f"speed {kind.name}", weighed([speed.embedding_s, speed.layer_s, speed.head_s])
    yield "parts", weighed([len(part) for part in parts_of_cluster(spec)])


def of_drafts(spec: JobSpec) -> Iterator[tuple[str, float]]:
    """What a search's closed form and its clocks say of drafts, of stages with members too."""
    seeker = DraftSearch(spec, None, effort_of(spec.cluster.devices))
    space, dice = seeker.space, Random(3)
    assert isinstance(space, Space) and isinstance(space.stages, Stages)
    for state in space.states[:3]:
        plain = list(islice(seeds(space, False, state), 40))
        for number, draft in enumerate(dice.sample(plain, min(6, len(plain)))):
            near = [draft, *islice(changed(space, draft), 30)]
            name = f"{state.sharding}{state.sharded_gradients:d} {number}"
            yield f"{name} estimates", weighed([each.estimate_s for each in near])
            yield f"{name} alone", weighed([each.alone_s for each in near])
            yield f"{name} ops", weighed([space.clock.ops(each) for each in near])
            clocks = [space.clock.step_s(each) for each in near[:3]]
            yield f"{name} clocks", weighed([each or 0.0 for each in clocks])
    several = member_drafts(space, space.states[0])[:60]
    yield "members", weighed([draft.estimate_s for draft in several])
    yield (
        "0 clocks of members",
        weighed([space.clock.step_s(draft) or 0.0 for draft in several[:20]]),
    )


def priced(name: str) -> dict[str, float]:
    """Every figure of a job."""
    spec = JOBS[name]()
    return {**dict(of_groups(spec)), **dict(of_plans(spec))}


def drafted(name: str) -> dict[str, float]:
    """Every figure of a drawn cluster's drafts."""
    family, number, *moves = name.split()
    spec = drawn(family, int(number))
    return dict(of_drafts(driving(spec) if moves else spec))


DRAWN = ("mixed 1", "tensor_groups 2", "budgets 1", "sites 6", "kernel_models 7", "pools 2 driving")


@cache
def known() -> dict[str, dict[str, float]]:
    """As they were."""
    return json.loads(FILE.read_text())


def figures(name: str) -> dict[str, float]:
    return drafted(name) if name in DRAWN else priced(name)


def condensed(made: dict[str, float]) -> dict[str, float]:
    """Figures added up by what they are of, each by its place: a file that people can look at."""
    sums: dict[str, float] = {}
    for place, (name, value) in enumerate(made.items()):
        key = name.split(" ", 1)[-1]
        sums[key] = sums.get(key, 0.0) + value * (1 + place % 89 / 89)
    return sums


def main() -> None:
    made: dict[str, dict[str, float]] = {}
    for name in (*JOBS, *DRAWN):
        try:
            made[name] = condensed(figures(name))
        except Unmeasured as error:
            raise SystemExit(f"{name}: {error}") from error
    FILE.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
