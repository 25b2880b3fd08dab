"""Random plans whose stages and replicas differ."""

from __future__ import annotations

from random import Random
from typing import Any

from ratrain.describe.ranges import write_ranges

SCHEDULES = {
    "ratrain": ("1f1b", True),
    "full-save": ("1f1b", True),
    "baseline-1f1b": ("1f1b", False),
    "megatron": ("1f1b", False),
    "zb-h1": ("zb-h1", False),
    "gpipe": ("gpipe", False),
    "interleaved": ("interleaved", False),
    "breadth-first": ("breadth-first", True),
    "zero3-heavy": ("1f1b", True),
    "pe-zero": ("breadth-first", True),
}
LAYERS = {"tiny-llama": 4, "small-llama": 8}


def random_plan(rng: Random) -> dict[str, Any]:
    """A plan of 1 to 3 entries on two kinds of device: most are sound, some contradict
    themselves."""
    model = rng.choice(list(LAYERS))
    free = {"dgx": list(range(8)), "nodes": list(range(8, 24))}
    sharding = rng.choice([0, 1, 1, 2, 2, 2, 3])
    schedule = rng.choice(list(SCHEDULES))
    skeleton, prefetch = SCHEDULES[schedule]
    recoveries = ["none", "none", "backward", "forward"]
    replicas = [
        entry
        for _ in range(rng.randint(1, 3))
        if (entry := _entry(rng, free, LAYERS[model], sharding, skeleton, recoveries))
    ]
    total = sum(
        r["count"] * r["micro_batches"] * min(stage["micro_batch"] for stage in r["stages"])
        for r in replicas
    )
    sharded = sharding >= 2 and rng.random() < 0.3
    plan: dict[str, Any] = {
        "format": "ratrain plan 1",
        "model": {"name": model, "sequence_length": rng.choice([64, 256])},
        "cluster": {"name": "mixed-sites", "devices": 24},
        "sequences": total + (rng.random() < 0.03),
        "dtype": "fp16",
        "backend": rng.choice(["described", "torch"]),
        "schedule": schedule,
        "skeleton": skeleton,
        "without": [],
        "accumulation": "sharded" if sharded else "local",
        "recovery_buffer": rng.randint(1, 3),
        "prefetch": prefetch,
        "collective": rng.choice(["ring", "ring", "auto", "hierarchical"]),
        "replicas": replicas,
    }
    if rng.random() < 0.1:
        plan["sequence_parallel"] = True
    if rng.random() < 0.2:
        plan["clip_norm"] = 1.0
    return split(plan)


def split(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with backward split, in one of four in 1F1B: such plans the planner writes. A choice
    of its own, so that all else is as it would be without."""
    if plan["skeleton"] == "1f1b" and Random(repr(plan["replicas"])).random() < 0.25:
        plan["skeleton"] = "zb-h1"
    return plan


def _entry(
    rng: Random,
    free: dict[str, list[int]],
    layers: int,
    sharding: int,
    skeleton: str,
    recoveries: list[str],
) -> dict[str, Any] | None:
    """An entry on devices that are still free, mostly of one kind; None where none are left."""
    count, size = rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2])
    depth = rng.randint(1, min(4, layers))
    stages: list[dict[str, Any]] = []
    for _ in range(depth):
        kinds = [kind for kind in free if free[kind]]
        if not kinds:
            break
        kind = rng.choice(kinds) if rng.random() < 0.2 else kinds[0]
        degrees = [1, 1, 2] if layers == LAYERS["tiny-llama"] else [1, 2, 4]
        tensor = rng.choice(degrees) if rng.random() < 0.99 else 3
        if len(free[kind]) < tensor * count:
            continue
        taken = free[kind][: tensor * count]
        if rng.random() > 0.02:
            del free[kind][: tensor * count]
        stages.append({
            "devices": write_ranges(taken), "tensor": tensor, "layers": 0,
            "micro_batch": size if rng.random() < 0.99 else size + 1,
            "recovery": rng.choice(recoveries), "sharding": sharding,
        })  # fmt: skip
    if not stages:
        return None
    if skeleton in ("interleaved", "breadth-first") and rng.random() < 0.5:
        stages += [dict(stage) for stage in stages]
    if len(stages) > layers:
        del stages[1:]
    cuts = sorted(rng.sample(range(1, layers), len(stages) - 1))
    for stage, begin, end in zip(stages, [0, *cuts], [*cuts, layers], strict=True):
        stage["layers"] = end - begin
    joined = _join(stages)
    multiple = len(stages) if skeleton == "interleaved" and rng.random() < 0.9 else 1
    micro_batches = multiple * joined * rng.randint(1, 5)
    return {"count": count, "micro_batches": micro_batches, "stages": stages}


def _join(stages: list[dict[str, Any]]) -> int:
    """Lets stages of one entry in four compute several micro-batches at once: so many at most. A
    choice of its own, so that all else is as it would be without."""
    rng = Random(repr(stages))
    if rng.random() > 0.25:
        return 1
    joined = [rng.choice([1, 1, 2, 4]) for _ in stages]
    for stage, times in zip(stages, joined, strict=True):
        stage["micro_batch"] *= times
    return 1 if rng.random() < 0.02 else max(joined)
