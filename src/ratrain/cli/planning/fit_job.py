"""The job that `ratrain fit` asks about: a model on devices with so much of each memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ratrain.cli.planning.models import model_of
from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.device import DeviceKind, Tier
from ratrain.describe.job import Batch, ClusterChoice, JobSpec, ModelChoice, ScheduleSpec
from ratrain.describe.optimizers import optimizer_named
from ratrain.describe.presets import cluster_preset, load_cluster
from ratrain.describe.train import TrainSpec
from ratrain.describe.units import parse_bytes, parse_bytes_rate
from ratrain.errors import SpecError
from ratrain.program.tiers import DISK, HOST

T = TypeVar("T", int, float)


def job_to_fit(
    model: str, asked: dict[str, Any], usual: dict[str, str]
) -> tuple[JobSpec, list[str]]:
    """The job, without a layout; and what was assumed of it, in sentences. `asked`: the verb's
    options by their names. `usual`: rates of tiers whose rate nobody said."""
    spec, file = _cluster(asked["cluster"])
    if asked["cluster_is_default"]:  # its rates; what is below the device's memory is asked for
        alone = (replace(kind, tiers=kind.tiers[:1]) for kind in spec.device)
        spec = replace(spec, device=tuple(alone))
    sizes = {name: _read(parse_bytes, asked, name) for name in ("memory", HOST, DISK)}
    rates = {name: _read(parse_bytes_rate, asked, f"{name}_rate") for name in (HOST, DISK)}
    assumed: list[str] = []
    for name in (HOST, DISK):
        described = any(tier.name == name for kind in spec.device for tier in kind.tiers[1:])
        if rates[name] is not None and sizes[name] is None and not described:
            raise SpecError(
                f"a rate of {name} memory, and none is there"
                if name == HOST
                else "a rate of a disk, and none is there",
                place=f"--{name}-rate",
                fix=f"add --{name} SIZE",
            )
        if sizes[name] is not None and rates[name] is None and not described:
            assumed.append(
                f"assumed: {usual[name]} between device and {name}; --{name}-rate says otherwise"
            )
    kinds = tuple(_kind(kind, sizes, rates, usual) for kind in spec.device)
    if asked["cluster_is_default"]:
        assumed.append(
            f"assumed: it computes like an {kinds[0].name} of {spec.name}; --cluster says otherwise"
        )
    chosen = model_of(model)
    length = asked["sequence"] or min(2048, chosen.max_positions)
    if length > chosen.max_positions:
        raise SpecError(
            f"{chosen.name} has {chosen.max_positions:,} positions",
            place="--sequence",
            fix=f"use {chosen.max_positions} or less",
        )
    job = JobSpec(
        ModelChoice(chosen, length),
        ClusterChoice(replace(spec, device=kinds), asked["devices"], file),
        Batch(asked["batch"]),
        None,
        ScheduleSpec(dtype=asked["dtype"], gradient_dtype=asked["gradient_dtype"]),
        train=TrainSpec(optimizer=optimizer_named(asked["optimizer"]).name),
    )
    return job, assumed


def _cluster(name: str) -> tuple[ClusterSpec, Path | None]:
    if name.endswith(".toml"):
        return load_cluster(Path(name)), Path(name)
    return cluster_preset(name), None


def _read(parse: Callable[[str], T], asked: dict[str, Any], name: str) -> T | None:
    text = asked[name]
    if text is None:
        return None
    place = f"--{name.replace('_', '-')}"
    try:
        value = parse(text)
    except SpecError as error:
        raise SpecError(error.what, place=place, fix=error.fix) from None
    if value <= 0:
        raise SpecError(f"{text} is not more than nothing", place=place, fix="leave it out")
    return value


def _kind(
    kind: DeviceKind,
    sizes: dict[str, int | None],
    rates: dict[str, float | None],
    usual: dict[str, str],
) -> DeviceKind:
    """A kind of device with these sizes of memory in place of its own."""
    memory = kind.memory
    if sizes["memory"] is not None:
        memory = replace(memory, capacity_bytes=sizes["memory"])
    below = {tier.name: tier for tier in kind.tiers[1:]}
    for name in (HOST, DISK):
        if sizes[name] is not None:
            described = below[name].bandwidth_bytes_per_s if name in below else None
            rate = rates[name] or described or parse_bytes_rate(usual[name])
            below[name] = Tier(name, int(sizes[name] or 0), rate, "ratrain fit")
        elif name in below and rates[name] is not None:
            below[name] = replace(below[name], bandwidth_bytes_per_s=rates[name] or 0.0)
    return replace(kind, tiers=(memory, *below.values()))
