"""Jobs without a layout, drawn by number: what the planner is compared and held to its word on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ratrain.describe.cluster import ClusterSpec, HostKind, Link
from ratrain.describe.device import DeviceKind, Rate, Tier
from ratrain.describe.job import Batch, ClusterChoice, JobSpec, ModelChoice, ScheduleSpec
from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.describe.strict import FrozenMap

HOST = Link(5e-6, 8e9)
RATES = (5, 10, 15, 20, 30, 40, 60)  # GFLOP/s
MB = 10**6


def kind(name: str, gflops: float, capacity_bytes: int = 4 * 10**9) -> DeviceKind:
    """A device of one rate."""
    flops = gflops * 1e9
    tier = Tier("RAM", capacity_bytes, gflops / 5 * 1e9)
    return DeviceKind(name, (tier,), 1e-5, 0.8, rates=(Rate("fp32", flops, flops),))


def llama(layers: int, hidden: int = 256) -> ModelSpec:
    """A small model."""
    return ModelSpec(
        "drawn", "llama", hidden, layers, hidden // 64, hidden // 64, 64, 2 * hidden, 2048, 512,
        source="drawn",
    )  # fmt: skip


def cluster(
    dice: Random, devices: int, kinds: int, *, hosts: float = 0.4, sites: bool = False
) -> ClusterSpec:
    """So many devices of so many rates; `hosts`: how often those of a rate stand in one host."""
    counts = [1] * kinds
    for _ in range(devices - kinds):
        counts[dice.randrange(kinds)] += 1
    made = [kind(f"{rate}-gflops", rate) for rate in dice.sample(RATES, kinds)]
    room = Link(2e-4, dice.choice([25 * MB, 125 * MB, 1250 * MB]), shared_by="host")
    places = [
        HostKind(
            of.name, of.name, *((count, 1) if dice.random() < hosts else (1, count)),
            site=f"site-{number % 2}" if sites else "site",
        )
        for number, (of, count) in enumerate(zip(made, counts, strict=True))
    ]  # fmt: skip
    links = {"host": HOST, "room": room}
    if sites:
        links["world"] = Link(5e-3, dice.choice([12 * MB, 125 * MB]), shared_by="host")
    return ClusterSpec("drawn", tuple(made), tuple(places), FrozenMap(links))


def job(spec: ClusterSpec, model: ModelSpec, sequences: int, **schedule: object) -> JobSpec:
    """A job on all devices of a cluster."""
    assert spec.size is not None
    asked = replace(ScheduleSpec(dtype="fp32", skeleton="1f1b"), **schedule)  # type: ignore[arg-type]
    choice = ClusterChoice(spec, spec.size)
    return JobSpec(ModelChoice(model, 128), choice, Batch(sequences), None, asked)


def identical(dice: Random) -> JobSpec:
    """Devices of one kind, of a preset."""
    spec = cluster_preset(dice.choice(["a100-80g-dgx", "mt3000", "h100-dgx"]))
    model = model_preset(dice.choice(["gpt-3.6b", "llama-2-7b", "small-llama"]))
    budget = dice.choice([None, None, 16 * 10**9])
    devices = dice.choice([4, 6, 8, 16, 32])
    return JobSpec(
        ModelChoice(model, dice.choice([512, 2048]) if model.max_positions >= 2048 else 512),
        ClusterChoice(spec, devices),
        Batch(dice.choice([16, 32, 64])),
        None,
        ScheduleSpec(backend="described", memory_budget_bytes=budget),
    )


def mixed(dice: Random) -> JobSpec:
    """Hosts of one device each, of two to four rates."""
    kinds = dice.choice([2, 2, 3, 4])
    spec = cluster(dice, dice.randint(max(3, kinds), 8), kinds, hosts=0.2)
    order = dice.choice([None, "1f1b"])
    return job(spec, llama(dice.choice([6, 12, 24])), dice.choice([8, 16, 64]), skeleton=order)


def pools(dice: Random) -> JobSpec:
    """Hosts of several devices."""
    spec = cluster(dice, dice.randint(5, 8), dice.choice([2, 3]), hosts=1.0)
    return job(spec, llama(dice.choice([4, 8, 16])), dice.choice([8, 24, 32]))


def budgets(dice: Random) -> JobSpec:
    """Little memory."""
    spec = cluster(dice, dice.randint(4, 8), dice.choice([2, 3]))
    budget = dice.choice([30, 45, 60, 90]) * MB
    return job(
        spec, llama(dice.choice([8, 16])), dice.choice([8, 16, 32]), memory_budget_bytes=budget
    )


def tensor_groups(dice: Random) -> JobSpec:
    """Hosts of two and four devices, and large layers."""
    spec = cluster(dice, dice.choice([4, 6, 8]), 2, hosts=1.0)
    open_to = dice.choice([None, None, False])
    return job(
        spec, llama(dice.choice([4, 6]), 1024), dice.choice([2, 4, 8]), sequence_parallel=open_to
    )


def sites(dice: Random) -> JobSpec:
    """Two sites with little between them."""
    spec = cluster(dice, dice.randint(4, 8), dice.choice([2, 3]), sites=True)
    order = dice.choice([None, "1f1b"])
    return job(spec, llama(dice.choice([6, 12])), dice.choice([8, 32]), skeleton=order)


def kernel_models(dice: Random) -> JobSpec:
    """GPUs priced kernel by kernel, beside slower ones of the same sort or of one rate."""
    preset = cluster_preset("a100-80g-dgx")
    fast = preset.device[0]
    slower = dice.choice([0.3, 0.5, 0.7])
    rates = tuple(
        replace(rate, peak_flops=rate.peak_flops * slower, gemm_flops=rate.gemm_flops * slower)
        for rate in fast.rates
    )
    slow = replace(fast, name="slower", rates=rates, kernels=dice.choice([fast.kernels, None]))
    places = (
        HostKind("fast", fast.name, dice.choice([1, 2, 4]), 1),
        HostKind("slow", "slower", dice.choice([1, 2, 4]), dice.choice([1, 2])),
    )
    spec = ClusterSpec("drawn", (fast, slow), places, FrozenMap(preset.links))
    assert spec.size is not None
    return JobSpec(
        ModelChoice(model_preset("gpt-1.7b"), 1024),
        ClusterChoice(spec, spec.size),
        Batch(dice.choice([8, 16, 32])),
        None,
        ScheduleSpec(backend="described", skeleton="1f1b"),
    )


def many(dice: Random) -> JobSpec:
    """Nine to sixteen devices."""
    spec = cluster(dice, dice.randint(9, 16), dice.choice([2, 3]), hosts=0.6)
    return job(spec, llama(dice.choice([12, 24])), dice.choice([16, 48]))


FAMILIES: dict[str, Callable[[Random], JobSpec]] = {
    of.__name__: of
    for of in (identical, mixed, pools, budgets, tensor_groups, sites, kernel_models, many)
}


def drawn(family: str, number: int) -> JobSpec:
    """The job of a number, of a family; the same in every run."""
    return FAMILIES[family](Random(f"{family}-{number}"))
