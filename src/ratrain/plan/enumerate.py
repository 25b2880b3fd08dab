"""Every configuration worth a look, as groups of rows that numpy works on at once.

A group shares all that is one number: degrees, micro-batch, devices. Its rows differ in what
stands in arrays: layers per stage, state mode, recovery buffer. Recovery is not an axis here:
what a stage can keep follows from its memory (`bill`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import mul

import numpy as np

from ratrain.cost.blocks import Block, blocks
from ratrain.cost.compute import BlockTimes, block_times
from ratrain.cost.gpu_layer import Execution
from ratrain.describe.cluster import Device
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.plan.placement import Placement
from ratrain.plan.sizes import (
    boundary_bytes,
    layers_of_stages,
    parameter_balanced_layers,
    passed_bytes,
    stores_scores,
    trains_tied,
    unit_of,
)
from ratrain.plan.transfers import tensor_sums_s
from ratrain.program.setup import Unit
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Strategy, strategy
from ratrain.program.units import Bools, Ints

BUFFERS = (1, 2, 4)
MICRO_BATCHES = 64
"""Largest micro-batch tried."""
VIRTUAL = (1, 2, 4, 8)


Times = Mapping[str, tuple[BlockTimes, BlockTimes, BlockTimes, BlockTimes]]
"""Times of (embedding, layer, head, layer in selective recovery) by a device kind's name."""


@dataclass(frozen=True)
class StateMode:
    """Who owns what: a sharding level, and where gradients add up."""

    sharding: int
    sharded_gradients: bool


STATE_MODES = (
    StateMode(0, False),
    StateMode(1, False),
    StateMode(2, False),
    StateMode(2, True),
    StateMode(3, False),
    StateMode(3, True),
)


@dataclass(frozen=True)
class Group:
    """Rows that share degrees, micro-batch and devices."""

    job: JobSpec  # with this group's micro-batch
    layout: LayoutSpec  # its layers are of no meaning here
    placement: Placement
    strategy: Strategy
    reversed_kinds: bool
    layers: Ints  # rows x stages
    modes: tuple[StateMode, ...]
    mode: Ints  # rows: index into modes
    buffer: Ints  # rows
    times: Times

    def __len__(self) -> int:
        return len(self.mode)

    @property
    def micro_batches(self) -> int:
        return self.job.batch.sequences // (self.layout.data * self.job.batch.micro_batch)

    @cached_property
    def sharding(self) -> Ints:
        return np.array([mode.sharding for mode in self.modes])[self.mode]

    @cached_property
    def sharded_gradients(self) -> Bools:
        return np.array([mode.sharded_gradients for mode in self.modes])[self.mode]

    @cached_property
    def units(self) -> tuple[Unit, Unit, Unit]:
        """An embedding, a layer and a head of this group: their bytes on one rank."""
        boundary = passed_bytes(self.job, self.layout)
        one, two, three = (
            unit_of(self.job, self.layout, block, boundary) for block in kinds_of_block(self.job)
        )
        return one, two, three

    def only(self, rows: Ints) -> Group:
        """The group with some of its rows."""
        return replace(
            self, layers=self.layers[rows], mode=self.mode[rows], buffer=self.buffer[rows]
        )


def groups_of(job: JobSpec) -> Iterator[Group]:
    """Every group of a job. All devices of the job are used; a tensor group stays in a host."""
    found = strategy_of(job)
    level = job.schedule.sharding
    if level is not None and level < 2 and job.schedule.gradient_accumulation == "sharded":
        raise no_shards(job, level)
    require_tieable(job)
    _require_dividable(job)
    job = replace(job, schedule=replace(job.schedule, memory_budget_bytes=job.budget_bytes))
    for members, turned in _orders(job):
        base = Placement(job.cluster.spec, LayoutSpec(1), members)
        for tensor in _tensor_degrees(job):
            rest = job.cluster.devices // tensor
            for pipeline in _divisors(rest):
                data = rest // pipeline
                if job.batch.sequences % data or pipeline > job.model.spec.layers:
                    continue
                for divided in _divisions(job, tensor):
                    layout = LayoutSpec(pipeline, data, tensor, sequence_parallel=divided)
                    yield from _groups(job, found, base, turned, layout)


def strategy_of(job: JobSpec) -> Strategy:
    """The strategy that a job names, with the options that the job sets."""
    found = strategy(job.schedule.name, job.schedule.without, file=str(job.path or "job"))
    if job.schedule.sharding is not None:
        found = replace(found, sharding=job.schedule.sharding)
    if job.schedule.recover_heads is not None:
        found = replace(found, recovers_heads=job.schedule.recover_heads)
    return found


def _groups(
    job: JobSpec,
    found: Strategy,
    base: Placement,
    turned: bool,
    degrees: LayoutSpec,
) -> Iterator[Group]:
    pipeline, data = degrees.pipeline, degrees.data
    chunked = SKELETONS[found.skeleton].chunks
    modes = _modes(job, found, data)
    placement: Placement | None = None
    for virtual in VIRTUAL if chunked and pipeline > 1 else (1,):
        if pipeline * virtual > job.model.spec.layers:
            continue
        layout = replace(degrees, virtual=virtual)
        if placement is None or placement.layout != layout:
            placement = replace(base, layout=layout)
        for size in _divisors(job.batch.sequences // data):
            count = job.batch.sequences // (data * size)
            if size > MICRO_BATCHES or (chunked and count % pipeline):
                continue
            own = replace(job, batch=replace(job.batch, micro_batch=size), layout=layout)
            times = times_by_kind(own, placement)
            splits = _splits(own, layout, placement, times)
            forward = found.recovery.value == "forward"
            buffers = sorted({min(b, job.model.spec.layers) for b in BUFFERS}) if forward else [2]
            rows = [(s, m, b) for s in splits for m in range(len(modes)) for b in buffers]
            yield Group(
                own,
                layout,
                placement,
                found,
                turned,
                np.array([row[0] for row in rows], dtype=np.int64),
                modes,
                np.array([row[1] for row in rows], dtype=np.int64),
                np.array([row[2] for row in rows], dtype=np.int64),
                times,
            )


def _modes(job: JobSpec, found: Strategy, data: int) -> tuple[StateMode, ...]:
    """The state modes that the job leaves open. Where they come to the same, the first is kept."""
    if data == 1:
        return (StateMode(found.sharding, False),)
    asked, gradients = job.schedule.sharding, job.schedule.gradient_accumulation
    return tuple(
        mode
        for mode in STATE_MODES
        if (mode.sharding != 2 or mode.sharded_gradients or asked == 2)
        and asked in (None, mode.sharding)
        and not (mode.sharded_gradients and trains_tied(job))
        and (gradients == "auto" or (gradients == "sharded") == mode.sharded_gradients)
    )


def _orders(job: JobSpec) -> Iterator[tuple[tuple[Device, ...], bool]]:
    """The cluster's devices in its order and, where kinds differ, with the kinds reversed."""
    members = job.cluster.members()
    yield members, False
    kinds = list(dict.fromkeys(device.kind.name for device in members))
    if len(kinds) > 1:
        place = {name: number for number, name in enumerate(reversed(kinds))}
        yield tuple(sorted(members, key=lambda device: place[device.kind.name])), True


def _tensor_degrees(job: JobSpec) -> list[int]:
    """Degrees that divide heads and every host's devices, so that no group leaves its host. Where
    there are data to train on, those that runs can divide by: MLP and vocabulary too."""
    hosts: dict[int, int] = {}
    for device in job.cluster.members():
        hosts[device.host] = hosts.get(device.host, 0) + 1
    model = job.model.spec
    counts = {*hosts.values(), model.heads, model.kv_heads}
    if job.data is not None:
        counts |= {model.ffn, model.vocab}
    return [t for t in _divisors(min(hosts.values())) if all(c % t == 0 for c in counts)]


def _divisions(job: JobSpec, tensor: int) -> tuple[bool, ...]:
    """Whether a tensor group divides its sequences: no, yes, or either. The runtime, which trains
    jobs that have data, cannot."""
    asked = job.schedule.sequence_parallel
    if tensor == 1 or job.model.sequence_length % tensor or job.data is not None:
        return () if asked else (False,)
    return (False, True) if asked is None else (asked,)


def _splits(
    job: JobSpec, layout: LayoutSpec, placement: Placement, times: Times
) -> list[tuple[int, ...]]:
    """Layers per stage: equal; parameters balanced; time balanced, without recovery and with."""
    splits = [layers_of_stages(job, layout)]
    if layout.virtual == 1:
        splits.append(parameter_balanced_layers(job, layout))
        splits += [time_balanced(job, placement, times, again) for again in (False, True)]
    return [s for s in dict.fromkeys(splits) if min(s) > 0 or len(s) == 1]


def kinds_of_block(job: JobSpec) -> tuple[Block, Block, Block]:
    """The model's embedding, one of its layers (all are alike), and its head."""
    return _kinds_of_block(job.model.spec)


@lru_cache(maxsize=16)
def _kinds_of_block(model: ModelSpec) -> tuple[Block, Block, Block]:
    embedding, layer, *_, head = blocks(model)
    return embedding, layer, head


def times_by_kind(job: JobSpec, placement: Placement) -> Times:
    """The times of (embedding, layer, head) on each device kind of a placement."""

    stage_of = {
        name: stage for alike in placement.classes for stage, name in enumerate(alike.kinds)
    }
    boundary, layout = boundary_bytes(job), placement.layout
    scores = stores_scores(job)

    def time(name: str, block: Block, selective: bool) -> BlockTimes:
        return block_times(
            block,
            placement.kind(name),
            micro_batch=job.batch.micro_batch,
            sequence=job.model.sequence_length,
            dtype=job.schedule.dtype,
            tensor=layout.tensor,
            execution=Execution(layout.sequence_parallel, selective),
            sums_s=tensor_sums_s(block.kind, boundary, placement, stage_of[name]),
        )

    def times(name: str) -> tuple[BlockTimes, BlockTimes, BlockTimes, BlockTimes]:
        one, two, three = (time(name, block, False) for block in kinds_of_block(job))
        return one, two, three, time(name, kinds_of_block(job)[1], True) if scores else two

    return {name: times(name) for name in stage_of}


def time_balanced(job: JobSpec, placement: Placement, times: Times, again: bool) -> tuple[int, ...]:
    """Layers such that the slowest stage is as fast as can be, at least one each.

    A stage is as slow as the slowest of its replicas' devices. Layers are alike on a stage, so
    giving each next layer to the stage that will be least loaded is exact; a tie goes to the
    later stage, which holds fewer micro-batches. `again`: a layer's forward happens twice.
    """
    pipeline = placement.layout.pipeline
    each, load = [0.0] * pipeline, [0.0] * pipeline
    for alike in placement.classes:
        for stage, name in enumerate(alike.kinds):
            layer = times[name][1]
            forward_s = layer.forward_s * (2 if again else 1)
            each[stage] = max(each[stage], forward_s + layer.backward_s)
    for alike in placement.classes:
        for stage, block in ((0, 0), (pipeline - 1, 2)):
            one = times[alike.kinds[stage]][block]
            load[stage] = max(load[stage], one.forward_s + one.backward_s)
    layers = job.model.spec.layers
    # Level water: no stage that could be cut up at will would have less load than this.
    rates = [1 / one for one in each]
    level = (layers + sum(map(mul, load, rates))) / sum(rates)
    count = [
        max(1, int(0.999999 * (level - own) / one)) for own, one in zip(load, each, strict=True)
    ]
    if sum(count) > layers:
        count = [1] * pipeline
    heap = [(load[s] + (count[s] + 1) * each[s], -s) for s in range(pipeline)]
    heapq.heapify(heap)
    for _ in range(layers - sum(count)):
        place = -heap[0][1]
        count[place] += 1
        heapq.heapreplace(heap, (load[place] + (count[place] + 1) * each[place], -place))
    return tuple(count)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def no_group(job: JobSpec) -> SpecError:
    """The error of a job that no degrees divide."""
    devices, sequences = job.cluster.devices, job.batch.sequences
    return SpecError(
        f"{devices} devices and {sequences} sequences have no common layout: devices = pipeline x "
        f"data x tensor, sequences divide by data, and pipeline is at most "
        f"{job.model.spec.layers} layers",
        place=f"{job.path or 'job'} [batch] sequences",
        fix=f"use sequences = {devices * max(1, round(sequences / devices))}",
    )


def require_tieable(job: JobSpec) -> None:
    """Refuses sharded gradients where both copies of a tied matrix need whole ones."""
    if trains_tied(job) and job.schedule.gradient_accumulation == "sharded":
        raise SpecError(
            f"{job.model.spec.name} ties its embedding and its head: their gradients add up "
            "whole, and sharded accumulation has no whole gradient",
            place=f"{job.path or 'job'} [schedule] gradient_accumulation",
            fix='set gradient_accumulation = "local"',
        )


def _require_dividable(job: JobSpec) -> None:
    """Refuses a job that asks for sequence parallelism where no layout of it can have any."""
    if not job.schedule.sequence_parallel or any(
        True in _divisions(job, tensor) for tensor in _tensor_degrees(job)
    ):
        return
    length = job.model.sequence_length
    raise SpecError(
        "sequence parallelism cannot be trained yet, it can be planned and simulated"
        if job.data is not None
        else f"no tensor degree above 1 divides every host's devices, {job.model.spec.name}'s "
        f"heads and {length} tokens, so there is no sequence parallelism",
        place=f"{job.path or 'job'} [schedule] sequence_parallel",
        fix="leave it out",
    )


def no_shards(job: JobSpec, level: int) -> SpecError:
    """The error of a job that wants gradients sharded where they are not."""
    return SpecError(
        f"{job.schedule.name} has no sharded gradients to accumulate in (level {level})",
        place=f"{job.path or 'job'} [schedule] gradient_accumulation",
        fix="set sharding to 2 or 3, or leave gradient_accumulation out",
    )
