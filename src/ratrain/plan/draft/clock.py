"""How long a draft's step takes, simulated at the grain of stages.

The program has few ops, is made of columns alone and runs on the simulator's own clock (`engine`):
a stage's forward or backward of a micro-batch is one op (`search.frames`). Only the first forward
and the last backward of a stage are cut into its units, whose gradients are reduced and whose
weights are updated and gathered one by one, as in the whole program (`search.replicas`). Links are
those between pools, as in the closed form. The time ranks drafts; what is printed is proved and
simulated whole.

Left out: sums of a tensor group as transfers (their time is the stage's), the sum of tied matrices,
checkpoints. Drafts of level 3 or of sharded gradients, whose views or gradients travel with every
micro-batch, and split backward have no such program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from ratrain.cost.collectives import NOTHING, Transfer, tree_all_reduce
from ratrain.cost.compute import reduced_bytes_per_param
from ratrain.describe.cluster import Device
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import Part
from ratrain.plan.draft.pools import Post
from ratrain.plan.draft.stage_ops import INTO, OUT, ReplicaOps, kept_of, replica_ops
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.links import Geometry, half_among
from ratrain.plan.layout.sizes import gathered_bytes_per_param
from ratrain.plan.price.durations import NORM_BYTES
from ratrain.plan.price.reductions import reduction
from ratrain.program.graph import Pairs
from ratrain.program.skeletons import SKELETONS
from ratrain.program.units import Ints
from ratrain.simulate.costs import NO_LINK, Floats, OpCosts
from ratrain.simulate.engine import Nodes, run_nodes

STEPS = 3
"""Steps that the clock runs: the last one counts."""
MOST_OPS = 100_000
"""Ops of a step above which a program is not simulated."""
FURTHER = 8
"""Micro-batches of a replica by itself that say how long a further one takes."""
ALONE = StateMode(0, False)
KEPT_REPLICAS = 4_096
"""Priced replicas kept: drafts that are near each other share theirs."""

Holders = tuple[tuple[Post, int], ...]
"""The posts that hold a unit, and how many replicas have it on such a post."""


@dataclass(frozen=True)
class UnitSums:
    """What a unit's reduction and its gather send, and the number of the link."""

    reduction: Transfer
    gather: Transfer
    link: int


class StageClock:
    """Times the drafts of a job."""

    def __init__(self, stages: Stages) -> None:
        self._stages, job = stages, stages.job
        self._block_of = [0, *(1,) * job.model.spec.layers, 2]
        devices = job.cluster.members()
        self._geometry = Geometry(job.cluster.spec, devices)
        self._number = {device.index: place for place, device in enumerate(devices)}
        self._meets = job.updates_wait
        self._replica = lru_cache(maxsize=KEPT_REPLICAS)(self._replica_of)
        self._further_s = lru_cache(maxsize=KEPT_REPLICAS)(self._further)
        self.collectives = cache(self._collectives_of)

    def step_s(self, draft: Draft, *, compiled: bool = True) -> float | None:
        """Seconds of a draft's step; None where it has no such program. Where stages have members a
        short step and a long one may alternate."""
        skeleton = SKELETONS[self._stages.strategy.skeleton]
        if skeleton.split_backward or draft.exchanges_more:
            return None
        sides = Counter(zip(draft.parts, draft.shares, strict=True))
        if not all(skeleton.takes(share, len(part.members), 1) for part, share in sides):
            return None
        data = len(draft.parts)
        replicas = [self._replica(part, share, data, draft.state) for part, share in sides]
        if sum(map(len, replicas)) > MOST_OPS:
            return None
        program = StageProgram(replicas, self._stages.links.rates_bytes_per_s)
        if draft.shares_states:
            self._reduce(program, draft, sides)
        if self._meets:
            program.meet(self._norm_s(draft))
        ends_s = self._ends_s(program, compiled=compiled)
        last_s = ends_s[-1] - ends_s[-2]
        return max(last_s, ends_s[-2] - ends_s[-3]) if draft.has_members else last_s

    def _ends_s(self, program: StageProgram, *, compiled: bool) -> list[float]:
        return program.ends_s(STEPS, compiled=compiled)

    def ops(self, draft: Draft) -> int:
        """About as many ops as a step of its program has."""
        skeleton, units = self._stages.strategy.skeleton, len(self._block_of)
        return sum(
            4 * len(part.members) * kept_of(skeleton, len(part.members), share) + 5 * units
            for part, share in dict.fromkeys(zip(draft.parts, draft.shares, strict=True))
        )

    def _replica_of(self, part: Part, share: int, data: int, state: StateMode) -> ReplicaOps:
        """A replica's ops; of a long step without its middle."""
        kept, pause_s = kept_of(self._stages.strategy.skeleton, len(part.members), share), 0.0
        if kept < share:
            further_s = part.slot_s if part.has_members else self._further_s(part, kept)
            pause_s = (share - kept) * further_s
        return replica_ops(self._stages, part, kept, pause_s, data, state)

    def _further(self, part: Part, micro_batches: int) -> float:
        """Seconds that a further micro-batch takes, of a replica by itself behind so many."""
        ends_s: list[float] = []
        for count in (micro_batches, micro_batches + FURTHER):
            alone = replica_ops(self._stages, part, count, 0.0, 1, ALONE)
            program = StageProgram([alone], self._stages.links.rates_bytes_per_s)
            ends_s.append(program.ends_s(1, compiled=True)[-1])
        return (ends_s[1] - ends_s[0]) / FURTHER

    def _reduce(
        self, program: StageProgram, draft: Draft, sides: Mapping[tuple[Part, int], int]
    ) -> None:
        """What reductions and gathers cost, unit by unit; `sides`: the program's replicas, and how
        many each stands for."""
        stage_of = [replica.stage_of_unit.tolist() for replica in program.replicas]
        used = draft.used(len(self._stages.pools))
        sums: list[UnitSums] = []
        seen: dict[tuple[int, ...], UnitSums] = {}
        for block, *stages in zip(self._block_of, *stage_of, strict=True):
            key = (block, *stages)
            if key not in seen:
                held: Counter[Post] = Counter()
                for ((part, _), count), stage in zip(sides.items(), stages, strict=True):
                    for post in part.posts[int(stage)]:
                        held[post] += count
                holders = tuple(
                    sorted(held.items(), key=lambda held: (held[0].pool, held[0].tensor))
                )
                seen[key] = self.collectives(holders, block, draft.state.sharding > 0, used)
            sums.append(seen[key])
        program.reduce(sums)

    def _collectives_of(
        self, holders: Holders, block: int, sharded: bool, used: tuple[int, ...]
    ) -> UnitSums:
        """The `UnitSums` of a unit over the slowest link that they cross; no gather where replicas
        have all states. The smallest tensor group has the largest parts. `used`: how many devices
        of each pool the draft has. Of a pool in one host the others are idle, and leave it its
        links; of more hosts it is not known which are."""
        if sum(count for _, count in holders) == 1:
            return UnitSums(NOTHING, NOTHING, NO_LINK)
        degree = min(post.tensor for post, _ in holders)
        busy = [
            device
            for pool, count in zip(self._stages.pools, used, strict=True)
            for device in pool.devices[: count if pool.on_host == len(pool.devices) else None]
        ]
        return self._sums_of(holders, block, self._members(holders), busy, degree, sharded)

    def _sums_of(
        self,
        holders: Holders,
        block: int,
        members: Sequence[Device],
        used: Sequence[Device],
        degree: int,
        sharded: bool,
    ) -> UnitSums:
        """The same over given devices, in parts of a tensor degree; `used`: the devices that share
        hosts' links with them."""
        job, pools = self._stages.job, self._stages.pools
        ring = np.array([[[self._number[device.index] for device in members]]])
        link = self._geometry.rings(ring)[0]
        number = self._stages.links.number(link)
        half = half_among(job.collective, job.cluster.spec, members, link, used)
        params = self._stages.trained[block] / degree
        kind = pools[holders[0][0].pool].kind
        each_bytes = reduced_bytes_per_param(kind, job.schedule.dtype, job.schedule.gradient_wire)
        kinds = {pools[post.pool].kind for post, _ in holders}
        slowest = min(kinds, key=lambda kind: kind.memory.bandwidth_bytes_per_s)
        owners = sum(count for _, count in holders) if sharded else None
        sent = reduction(job, half, params, each_bytes * params, slowest, owners=owners)
        if not sharded:
            return UnitSums(sent, NOTHING, number)
        weight_bytes = gathered_bytes_per_param(job, kinds)
        return UnitSums(sent, half(weight_bytes * params), number)

    def _members(self, holders: Holders) -> list[Device]:
        """Devices that may hold a unit, spread over each pool."""
        members: list[Device] = []
        for post, count in holders:
            devices = self._stages.pools[post.pool].devices
            stride = max(1, len(devices) // count)
            members += [devices[place * stride % len(devices)] for place in range(count)]
        return members

    def _norm_s(self, draft: Draft) -> float:
        """The global norm over the devices of all posts."""
        posts = list(draft.all_posts)
        devices = sum(post.tensor for post in posts)
        if devices == 1:
            return 0.0
        link = self._stages.links.slowest(frozenset(post.pool for post in posts))
        return tree_all_reduce(NORM_BYTES, devices, link).alone_s(link.bandwidth_bytes_per_s)


class StageProgram:
    """The ops of all replicas in one numbering: those of the first, then those of the second."""

    def __init__(self, replicas: Sequence[ReplicaOps], link_rates: Sequence[float]) -> None:
        self.replicas, self._link_rates = replicas, link_rates
        ranks = [each.ranks for each in replicas]
        self._first_op: list[int] = np.cumsum([0, *map(len, replicas)]).tolist()
        self._first_rank: list[int] = np.cumsum([0, *ranks]).tolist()
        first_port = np.cumsum([0, *(len(each.known) for each in replicas)]).tolist()
        self._times: Floats = np.concatenate([each.times for each in replicas], axis=1)
        self._ports: Ints = np.concatenate(
            [
                np.where(each.ports >= 0, each.ports + first, each.ports)
                for each, first in zip(replicas, first_port, strict=False)
            ],
            axis=1,
        )
        self._rank: Ints = np.concatenate(
            [each.rank + first for each, first in zip(replicas, self._first_rank, strict=False)]
        )
        self._group: Ints = np.full(self._first_op[-1], -1, dtype=np.int64)
        self._link_of_port = [link for each in replicas for _, _, link in each.known]
        self._known = [
            {port: first + number for port, number in each.known.items()}
            for each, first in zip(replicas, first_port, strict=False)
        ]
        self._met_s: float | None = None

    def reduce(self, sums: Sequence[UnitSums]) -> None:
        """Prices the reductions and gathers of units; those of one unit happen together."""
        columns = [
            np.array(
                [
                    (t.latency_s, t.volume_bytes, t.driving_s, t.messages, t.moved_bytes)
                    for t in sort
                ]
            ).T
            for sort in ([s.reduction for s in sums], [s.gather for s in sums])
        ]
        links: Ints = np.array([each.link for each in sums])
        held = sum(np.bincount(each.unit, minlength=len(sums)) for each in self.replicas)
        alone = (np.array(held) == 1) | (links == NO_LINK)
        for number, replica in enumerate(self.replicas):
            unit = replica.unit
            ports = self._ports_of(number, links[unit].tolist())
            for turn, section in enumerate((replica.reduction, replica.gather)):
                fixed_s, volume_bytes, driving_s, messages, moved_bytes = columns[turn][:, unit]
                per_message_s, per_byte_s = replica.losses[:, turn].T
                lost_s = driving_s + per_message_s * messages + per_byte_s * moved_bytes
                first = self._first_op[number] + section
                ops = slice(first, first + len(unit))
                self._times[:, ops] = fixed_s, volume_bytes, lost_s
                self._ports[:, ops] = ports
                self._group[ops] = np.where(alone[unit], -1, turn * len(sums) + unit)

    def _ports_of(self, number: int, links: Sequence[int]) -> Ints:
        """The ports of each unit's rank to a link."""
        known = self._known[number]
        columns: list[list[int]] = []
        for rank, link in zip(self.replicas[number].rank_of_unit.tolist(), links, strict=True):
            if link == NO_LINK:
                columns.append([NO_LINK, NO_LINK])
                continue
            for way in (OUT, INTO):
                if (rank, way, link) not in known:
                    known[rank, way, link] = len(self._link_of_port)
                    self._link_of_port.append(link)
            columns.append([known[rank, OUT, link], known[rank, INTO, link]])
        return np.array(columns).T

    def meet(self, seconds: float) -> None:
        """Lets all ranks' updates wait for all reductions, and for an op of so many seconds."""
        self._met_s = seconds

    def part_links(self) -> None:
        """Gives every transfer a link of its own, so that none waits for another."""
        rates = self._rates
        sent = self._ports[0] >= 0
        self._times[0, sent] += self._times[1, sent] / rates[self._ports[0, sent]]
        self._times[1:] = 0.0
        self._ports[:] = NO_LINK

    @property
    def _rates(self) -> Floats:
        """Of each port; a cluster may say whole numbers, and the compiled clock reads none."""
        rates = [self._link_rates[link] for link in self._link_of_port]
        return np.array(rates or [1.0], dtype=np.float64)

    def ends_s(self, steps: int, *, compiled: bool) -> list[float]:
        """When the last backward of each step ends."""
        replicas, n = self.replicas, self._first_op[-1]
        inside = [
            each.inside + first for each, first in zip(replicas, self._first_op, strict=False)
        ]
        across = [
            each.across + first for each, first in zip(replicas, self._first_op, strict=False)
        ]
        times, ports, rank, group = self._times, self._ports, self._rank, self._group
        computes = np.concatenate([each.computes for each in replicas])
        if self._met_s is not None:
            inside += self._meeting(n)
            times = np.append(times, [[self._met_s], [0.0], [0.0]], axis=1)
            ports = np.append(ports, [[-1], [-1]], axis=1)
            rank, group, computes = np.append(rank, 0), np.append(group, -1), np.append(computes, 0)
        sources, targets = np.concatenate(inside, axis=1)
        over = np.concatenate(across, axis=1)
        none: Ints = np.zeros(len(rank), dtype=np.int64)
        standing: Ints = np.zeros(self._first_rank[-1], dtype=np.int64)
        nodes = Nodes(
            Pairs(sources, targets),
            Pairs(over[0], over[1]),
            group,
            np.bincount(group[group >= 0]).astype(np.int64),
            np.where(computes > 0, rank, -1).astype(np.int32),
            rank.astype(np.int32),
            none,
            none,
            standing,
        )
        links = ports.astype(np.int32)
        rates = self._rates
        costs = OpCosts(times[0], times[1], times[2], links[0], links[1])
        ran = run_nodes(nodes, costs, rates, steps, compiled=compiled)
        ends = np.concatenate(
            [
                first + np.arange(each.backward, each.reduction)
                for each, first in zip(replicas, self._first_op, strict=False)
            ]
        )
        return ran.end_s.reshape(steps, -1)[:, ends].max(axis=1).tolist()

    def _meeting(self, node: int) -> list[Ints]:
        """Edges from every reduction to the op at which ranks meet, and from there to updates."""
        edges: list[Ints] = []
        for each, first in zip(self.replicas, self._first_op, strict=False):
            units: Ints = np.arange(len(each.unit))
            meeting: Ints = np.full(len(units), node)
            edges.append(np.stack([first + each.reduction + units, meeting]))
            edges.append(np.stack([meeting, first + each.update + units]))
        return edges
