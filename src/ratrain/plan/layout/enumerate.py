"""Every configuration worth a look, as groups of rows that numpy works on at once.

A group shares all that is one number: degrees, micro-batch, devices. Its rows differ in what
is in arrays: layers per stage, state mode, recovery buffer. Recovery is not an axis here:
what a stage can keep follows from its memory (`bill`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from ratrain.cost.balance import spread
from ratrain.cost.blocks import Block, blocks
from ratrain.cost.compute import BlockTimes
from ratrain.cost.measured import Unmeasured
from ratrain.describe.cluster import Device
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.model import ModelSpec
from ratrain.errors import Infeasible, RatrainError, SpecError
from ratrain.plan.layout.jobs import (
    fault,
    in_order,
    layer_orders,
    require_shards,
    require_tieable,
    strategy_of,
)
from ratrain.plan.layout.placement import Placement, devices_of_sites, placed_on
from ratrain.plan.layout.sizes import (
    layers_of_stages,
    parameter_balanced_layers,
    passed_bytes,
    stores_scores,
    trains_tied,
    unit_of,
)
from ratrain.plan.layout.tiers import require_bucketable, require_tier
from ratrain.plan.layout.times import times_in_layout
from ratrain.program.replicas import Unit
from ratrain.program.setup import Accumulation
from ratrain.program.skeletons import SKELETONS, Skeleton
from ratrain.program.strategies import Strategy
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

    @property
    def accumulation(self) -> Accumulation:
        return Accumulation.SHARDED if self.sharded_gradients else Accumulation.LOCAL


STATE_MODES = tuple(
    StateMode(level, sharded)
    for level in range(4)
    for sharded in (False, True)
    if level >= 2 or not sharded
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
    def idle_key(self) -> object:
        """Which devices are left idle, as what tells groups apart; None where none is."""
        if self.layout.devices == self.job.cluster.devices:
            return None
        return tuple(device.index for device in self.placement.devices)

    @cached_property
    def sharding(self) -> Ints:
        return np.array([mode.sharding for mode in self.modes])[self.mode]

    @cached_property
    def sharded_gradients(self) -> Bools:
        return np.array([mode.sharded_gradients for mode in self.modes])[self.mode]

    @cached_property
    def budgets(self) -> Ints:
        """The memory budget of each pipeline rank: of its smallest device over all replicas."""
        kinds = zip(*(alike.kinds for alike in self.placement.classes), strict=True)
        budgets = [
            min(self.job.budget_of(self.placement.kind(n)) for n in names) for names in kinds
        ]
        return np.array(budgets, dtype=np.int64)

    @cached_property
    def units(self) -> tuple[Unit, Unit, Unit]:
        """An embedding, a layer and a head of this group: their bytes on one rank."""
        boundary = passed_bytes(self.job, self.layout)
        embedding, layer, head = (
            unit_of(self.job, self.layout, block, boundary) for block in kinds_of_block(self.job)
        )
        return embedding, layer, head

    def as_kind(self, kind: DeviceKind) -> Group:
        """The group as if all of its devices were of a kind: in the dtype that it computes in."""
        return replace(self, job=self.job.of_kind(kind))

    def in_order(self, skeleton: str) -> Group:
        """The group in a compute order that was chosen for it."""
        strategy = replace(self.strategy, skeleton=skeleton)
        return replace(self, job=in_order(self.job, skeleton), strategy=strategy)

    def only(self, rows: Ints) -> Group:
        """The group with some of its rows."""
        return replace(
            self, layers=self.layers[rows], mode=self.mode[rows], buffer=self.buffer[rows]
        )


def groups_of(job: JobSpec, devices: Sequence[Device] | None = None) -> Iterator[Group]:
    """Every group of a job on these of its devices, all of them unless said otherwise. Each is
    used; a tensor group stays in a host.

    Where a device's layers were measured, degrees in which they were not are left out; where that
    leaves nothing, the error says what to measure.
    """
    chosen = strategy_of(job)
    require_shards(job, job.schedule.sharding)
    require_tieable(job)
    require_bucketable(job, chosen)
    require_tier(job)
    used = job.cluster.members() if devices is None else tuple(devices)
    if devices is None:
        _require_dividable(job)
    priced, missing = False, list[Unmeasured]()
    for members, turned in _orders(used):
        on_all = Placement(job.cluster.spec, LayoutSpec(1), members)
        for tensor in _tensor_degrees(job, used):
            rest = len(used) // tensor
            for pipeline in divisors_of(rest):
                data = rest // pipeline
                if job.batch.sequences % data or pipeline > job.model.spec.layers:
                    continue
                if job.sites and (data % len(job.sites) or not _sites_alike(job, used)):
                    continue  # a replica stands at one site
                base = placed_on(job, LayoutSpec(pipeline, data, tensor), members)
                base = base if job.sites else on_all
                for divided in divisions_of(job, [tensor]):
                    layout = LayoutSpec(pipeline, data, tensor, sequence_parallel=divided)
                    try:
                        for group in _groups(job, chosen, base, turned, layout):
                            priced = True
                            yield group
                    except Unmeasured as error:
                        missing.append(error)
    if missing and not priced:
        raise missing[0]


def group_of_layout(
    job: JobSpec, strategy: Strategy, placement: Placement, sharded_gradients: bool
) -> Group:
    """The group of one row that a layout is."""
    layers = layers_of_stages(job, placement.layout)
    return Group(
        job,
        placement.layout,
        placement,
        strategy,
        False,
        np.array([layers], dtype=np.int64),
        (StateMode(strategy.sharding, sharded_gradients),),
        np.zeros(1, dtype=np.int64),
        np.array([job.schedule.recovery_buffer], dtype=np.int64),
        times_by_kind(job, placement),
    )


def _groups(
    job: JobSpec,
    chosen: Strategy,
    base: Placement,
    turned: bool,
    degrees: LayoutSpec,
) -> Iterator[Group]:
    pipeline, data = degrees.pipeline, degrees.data
    skeleton = SKELETONS[chosen.skeleton]
    modes = modes_of(job, chosen, data, pipeline)
    placement: Placement | None = None
    for virtual in _virtual(skeleton, pipeline):
        if pipeline * virtual > job.model.spec.layers:
            continue
        layout = replace(degrees, virtual=virtual)
        if placement is None or placement.layout != layout:
            placement = replace(base, layout=layout)
        for size in divisors_of(job.batch.sequences // data):
            count = job.batch.sequences // (data * size)
            if size > MICRO_BATCHES or not skeleton.takes(count, pipeline, virtual):
                continue
            variant = replace(job, batch=replace(job.batch, micro_batch=size), layout=layout)
            times = times_by_kind(variant, placement)
            splits = _splits(variant, layout, placement, times)
            forward = chosen.recovery.value == "forward"
            buffers = sorted({min(b, job.model.spec.layers) for b in BUFFERS}) if forward else [2]
            rows = list(product(splits, range(len(modes)), buffers))
            group = Group(
                variant,
                layout,
                placement,
                chosen,
                turned,
                np.array([row[0] for row in rows], dtype=np.int64),
                modes,
                np.array([row[1] for row in rows], dtype=np.int64),
                np.array([row[2] for row in rows], dtype=np.int64),
                times,
            )
            yield group
            whole_model = pipeline == virtual == 1 < data
            named = layer_orders(variant, chosen, [count], whole_model=whole_model)
            yield from map(group.in_order, named)


def _virtual(skeleton: Skeleton, pipeline: int) -> tuple[int, ...]:
    """Stages per rank that are tried with a compute order."""
    if skeleton.fixed is not None:
        return (skeleton.fixed.chunks,)
    return VIRTUAL if skeleton.chunks and pipeline > 1 else (1,)


def modes_of(
    job: JobSpec, chosen: Strategy, data: int, pipeline: int | None = None
) -> tuple[StateMode, ...]:
    """The state modes that the job leaves open. Where they come to the same, the first is kept."""
    if data == 1:
        return (StateMode(chosen.sharding, False),)
    asked, gradients = job.schedule.sharding, job.schedule.gradient_accumulation
    if job.train.rule.whole and asked is None:
        asked = 0  # its matrices are not divided
    if job.schedule.average_every is not None and job.peers(data) == 1:
        # Replicas that train independently hold all of their states.
        asked = 0 if job.sites else chosen.sharding
    return tuple(
        mode
        for mode in STATE_MODES
        if (mode.sharding != 2 or mode.sharded_gradients or asked == 2)
        and asked in (None, mode.sharding)
        and not (mode.sharded_gradients and trains_tied(job, pipeline))
        and (gradients == "auto" or (gradients == "sharded") == mode.sharded_gradients)
        and (mode.sharded_gradients or not job.backward_sends)
    )


def _orders(members: tuple[Device, ...]) -> Iterator[tuple[tuple[Device, ...], bool]]:
    """The devices in the cluster's order and, where kinds differ, with the kinds reversed."""
    yield members, False
    if len({device.kind.name for device in members}) > 1:
        yield with_kinds_reversed(members), True


def with_kinds_reversed(members: Sequence[Device]) -> tuple[Device, ...]:
    """Devices with those of the last kind first."""
    kinds = list(dict.fromkeys(device.kind.name for device in members))
    place = {name: number for number, name in enumerate(reversed(kinds))}
    return tuple(sorted(members, key=lambda device: place[device.kind.name]))


def _tensor_degrees(job: JobSpec, devices: Sequence[Device]) -> list[int]:
    """Degrees that divide the model and every host's devices, so that no group leaves its host."""
    hosts = Counter(device.host for device in devices).values()
    return degrees_up_to(job, min(hosts), hosts)


def degrees_up_to(job: JobSpec, most: int, counts: Iterable[int] = ()) -> list[int]:
    """Tensor degrees that divide heads and these `counts`; where the backend divides everything,
    MLP and vocabulary too. Units that decide by themselves whether to update are whole, and so are
    those of an optimizer that needs whole matrices."""
    if job.train.overflow == "unit" or job.train.rule.whole:
        return [1]
    model = job.model.spec
    divided = {*counts, model.heads, model.kv_heads}
    if job.backend.divides_everything:
        divided |= set(model.divided.values())
    return [t for t in range(1, most + 1) if all(count % t == 0 for count in divided)]


def divisions_of(job: JobSpec, degrees: Collection[int]) -> tuple[bool, ...]:
    """Whether tensor groups of these degrees divide sequences: no, yes, or either."""
    asked, several = job.schedule.sequence_parallel, set(degrees) - {1}
    dividable = all(job.model.sequence_length % tensor == 0 for tensor in several)
    if not several or not dividable or not job.backend.divides_sequences:
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
    """The model's embedding, one of its layers (where they are not alike: the one of which the most
    is trained), and its head."""
    return _kinds_of_block(job.model.spec)


@lru_cache(maxsize=16)
def _kinds_of_block(model: ModelSpec) -> tuple[Block, Block, Block]:
    embedding, *layers, head = blocks(model)
    return embedding, max(layers, key=lambda layer: layer.trained_share()), head


def times_by_kind(job: JobSpec, placement: Placement) -> Times:
    """The times of (embedding, layer, head) on each device kind of a placement."""

    stage_of = {
        name: stage for alike in placement.classes for stage, name in enumerate(alike.kinds)
    }
    scores = stores_scores(job)

    def time(name: str, block: Block, selective: bool) -> BlockTimes:
        device, link = placement.kind(name), placement.inside(stage_of[name])
        return times_in_layout(job, placement.layout, block, device, link, selective=selective)

    def times(name: str) -> tuple[BlockTimes, BlockTimes, BlockTimes, BlockTimes]:
        embedding, layer, head = (time(name, block, False) for block in kinds_of_block(job))
        return embedding, layer, head, time(name, kinds_of_block(job)[1], True) if scores else layer

    return {name: times(name) for name in stage_of}


def time_balanced(job: JobSpec, placement: Placement, times: Times, again: bool) -> tuple[int, ...]:
    """Layers such that the slowest stage is as fast as can be, at least one each. A stage is as
    slow as the slowest of its replicas' devices. `again`: a layer's forward happens twice."""
    pipeline = placement.layout.pipeline
    each, load = [0.0] * pipeline, [0.0] * pipeline
    for alike in placement.classes:
        for stage, name in enumerate(alike.kinds):
            layer = times[name][1]
            forward_s = layer.forward_s * (2 if again else 1)
            each[stage] = max(each[stage], forward_s + layer.backward_s)
        for stage, block in ((0, 0), (pipeline - 1, 2)):
            block_time = times[alike.kinds[stage]][block]
            load[stage] = max(load[stage], block_time.forward_s + block_time.backward_s)
    return spread(job.model.spec.layers, load, each)


def divisors_of(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _sites_alike(job: JobSpec, devices: Sequence[Device]) -> bool:
    """Whether as many of these devices stand at each site that averages weights."""
    return len({len(of_site) for of_site in devices_of_sites(job, devices)}) <= 1


def no_group(job: JobSpec) -> RatrainError:
    """The error of a job that no degrees divide."""
    if not _sites_alike(job, job.cluster.members()):
        return Infeasible(
            f"{', '.join(job.sites)} have other numbers of devices, on which no replicas stand "
            "that are all alike",
            place=f"{job.path or 'job'} [schedule] average_between",
            fix='leave replicas = "identical" out, or use as many devices of each site',
        )
    devices, sequences = job.cluster.devices, job.batch.sequences
    return SpecError(
        f"no layout fits {devices} devices and {sequences} sequences: pipeline x data x tensor "
        f"must equal the number of devices, data must divide the sequences, and pipeline is at "
        f"most {job.model.spec.layers}, the number of layers",
        place=f"{job.path or 'job'} [batch] sequences",
        fix=f"use sequences = {devices * max(1, round(sequences / devices))}",
    )


def _require_dividable(job: JobSpec) -> None:
    """Refuses a job that requests sequence parallelism where none of its layouts can have any."""
    if not job.schedule.sequence_parallel or any(
        True in divisions_of(job, [tensor])
        for tensor in _tensor_degrees(job, job.cluster.members())
    ):
        return
    what = f"no tensor degree above 1 divides every host's devices, {job.model.spec.name}'s "
    what += f"heads and {job.model.sequence_length} tokens, so there is no sequence parallelism"
    if not job.backend.divides_sequences:
        what = f"the backend {job.backend.name} has no sequence parallelism"
    raise fault(job, "[schedule] sequence_parallel", what, "leave it out")
