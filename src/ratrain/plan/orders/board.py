"""One strategy's passes and layout, on which compute orders are tried: timed, and proved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from ratrain.plan.case.case import Case
from ratrain.plan.orders.clock import PARTS, ClockedOrder, Order, OrderClock, Orders
from ratrain.plan.orders.seeds import Pipeline, order_of, policies
from ratrain.plan.price.trial import only_over_budget
from ratrain.program.kind import Kind, Lane
from ratrain.program.passes.turns import transfers_in_turn
from ratrain.program.pipelining.csv import write_csv
from ratrain.program.plain import UnitStep, plain_program
from ratrain.program.program import Program
from ratrain.program.replicas import Member, Unit
from ratrain.program.setup import Setup
from ratrain.program.skeletons import SKELETONS, Place, Skeleton, Written
from ratrain.program.strategies import with_passes
from ratrain.program.text.order_csv import write_order, write_orders
from ratrain.program.verify import Verdict, verify
from ratrain.simulate.step_bound import step_bound


@dataclass(frozen=True)
class TriedOrder:
    """An order on a board, and its step on the clock."""

    board: Board
    orders: Orders
    timed: ClockedOrder

    @property
    def step_s(self) -> float:
        return self.timed.step_s


class Board:
    """Tries orders of one case. `split`: backward as input gradient and weight gradient apart.
    Where each rank holds the whole model, pieces are units'; otherwise stages'. Replicas of a plan
    that differ have orders `apart`, each in its own pipeline."""

    def __init__(self, case: Case, *, split: bool) -> None:
        self.case, self.split = case, split
        self.evaluations = 0
        replicas, members = case.setup.replicas, case.setup.members
        self.by_unit = len(replicas) == len(replicas[0].stages) == len(members) == 1
        self.apart = case.apart
        known = self._clock(case.program)
        self.places, self._place_of = known.places, known.place_of
        compute = known.orders[: self.places]
        self.first: Orders = tuple(self._parted(order) for order in compute)
        program, verdict = self._built(self.first)
        self.clock = self._clock(program)
        self.pipelines = list(self._pipelines(program.setup))
        bound = step_bound(self.clock.table, self.clock.op_costs, self.clock.rates)
        self.least_s = 0.0 if bound is None else bound.time_s  # no order of these ops takes less
        self._keep_room(verdict, self.first)

    def tried(self, orders: Orders, before: Orders | None = None) -> TriedOrder | None:
        """An order on the clock; None where it holds too much or never ends. `before`: one that
        holds little enough."""
        for place, order in enumerate(orders[: self.places]):
            changed = before is None or order is not before[place]
            if changed and not self._has_room(place, order):
                return None
        self.evaluations += 1
        timed = self.clock.timed(orders)
        return None if timed is None else TriedOrder(self, orders, timed)

    def proved(self, orders: Orders) -> TriedOrder | None:
        """The order with its program built and proved; None where the proof fails. If it needs too
        much memory, orders that hold as much are not tried again."""
        compute = orders[: self.places]
        if not all(self._has_room(place, order) for place, order in enumerate(compute)):
            return None
        program, verdict = self._built(orders)
        if not verdict.sound:
            if only_over_budget(verdict):
                self._keep_room(verdict, orders)
            return None
        self.clock = self._clock(program)
        return self.tried((*compute, *self.clock.orders[self.places :]), orders)

    def held_bytes(self, orders: Orders) -> int:
        """The most that any place holds of what waits for backward."""
        return max(self._peak_bytes(place, orders[place]) for place in range(self.places))

    def csv(self, orders: Orders) -> str:
        """The order as a file that a job takes: PyTorch's CSV, and where it says more than stages'
        turns, with units and transfers."""
        program, _ = self._built(orders)
        turned = self.turned(orders)
        if self.apart:
            return write_orders(write_csv(program, replica=r) for r in range(len(self.pipelines)))
        if not self.by_unit and not turned:
            return write_csv(program)
        written = Written({0: self._of_units(orders[0])} if self.by_unit else {}, turned)
        return write_order(written, dict(enumerate(orders[: self.places])))

    def seeds(self) -> Iterator[Orders]:
        """Orders to begin with: the case's own, those with a name, and what policies lead to."""
        yield self.first
        if self.by_unit:
            yield from self._layer_orders()
        for skeleton in SKELETONS.values():
            if skeleton.fixed is None and not self.by_unit and self._takes(skeleton):
                yield tuple(
                    self._parted(tuple(skeleton.order(place)))
                    for pipeline in self.pipelines
                    for place in pipeline.each_place
                )
        of_pipelines = [list(policies(pipeline)) for pipeline in self.pipelines]
        for number in range(max(map(len, of_pipelines))):
            yield tuple(
                order
                for pipeline, known in zip(self.pipelines, of_pipelines, strict=True)
                for order in order_of(pipeline, known[number % len(known)])
            )

    def _takes(self, skeleton: Skeleton) -> bool:
        """Whether an order exists for every pipeline."""
        return all(
            skeleton.takes(pipeline.micro_batches, pipeline.places, pipeline.chunks)
            and (skeleton.chunks or pipeline.chunks == 1)
            for pipeline in self.pipelines
        )

    def _layer_orders(self) -> Iterator[Orders]:
        """Orders with a name, unit by unit, where each rank holds the whole model."""
        (pipeline,) = self.pipelines
        for skeleton in SKELETONS.values():
            if skeleton.fixed is None and skeleton.takes(pipeline.micro_batches, 1, 1):
                steps = skeleton.order(Place(0, 1, 1, pipeline.micro_batches))
                setup = replace(self.case.setup, together=skeleton.together)
                lane = plain_program(setup, {0: steps}, "searched").lanes[0, Lane.COMPUTE]
                units = [(a.kind, a.unit, a.micro_batch) for a in lane if a.kind in PARTS]
                yield (self._parted(tuple(units)),)

    def _of_units(self, order: Order) -> list[UnitStep]:
        """A rank's order by units as its only stage's."""
        return [(kind, 0, unit, micro_batch) for kind, unit, micro_batch in order]

    def turned(self, orders: Orders) -> dict[tuple[int, Lane], Order]:
        """The lanes of transfers whose turns are not those that follow from what ranks compute."""
        asked = dict(zip(self.clock.transfers, orders[self.places :], strict=False))
        if not asked:
            return {}
        program, _ = self._built(orders[: self.places])
        known = self._clock(program)
        usual = dict(zip(known.transfers, known.orders[self.places :], strict=True))
        return {lane: order for lane, order in asked.items() if usual.get(lane) != order}

    def _clock(self, program: Program) -> OrderClock:
        return OrderClock(program, self.case.costs, by_unit=self.by_unit, apart=self.apart)

    def _pipelines(self, setup: Setup) -> Iterator[Pipeline]:
        """The pipeline of all replicas, or where they differ of each."""
        every = range(len(setup.replicas))
        for replicas in ([number] for number in every) if self.apart else [every]:
            yield _pipeline(self.clock, setup, replicas, split=self.split, by_unit=self.by_unit)

    def _at(self, place: int) -> tuple[int, int]:
        """The number of the pipeline that a place is in, and where it stands there."""
        number = 0
        while place >= self.pipelines[number].places:
            place -= self.pipelines[number].places
            number += 1
        return number, place

    def _peak_bytes(self, place: int, order: Order) -> int:
        return self.pipelines[self._at(place)[0]].peak_bytes(order)

    def _has_room(self, place: int, order: Order) -> bool:
        number, there = self._at(place)
        return self._peak_bytes(place, order) <= self.pipelines[number].room_bytes[there]

    def _parted(self, order: Order) -> Order:
        """An order with backward whole or split, as it is on this board."""
        return _divided(order) if self.split else _whole(order)

    def _built(self, orders: Orders) -> tuple[Program, Verdict]:
        case = self.case
        setup = replace(
            case.setup,
            split_backward=self.split,
            arrival_places=not self.split,
            together=1,
            sharding=0,
        )
        ranks = dict(enumerate(self._place_of))
        compute = {rank: orders[place] for rank, place in ranks.items()}
        if self.by_unit:
            by_unit = {rank: self._of_units(order) for rank, order in compute.items()}
            plain = plain_program(setup, dict.fromkeys(ranks, ()), "searched", by_unit)
        else:
            plain = plain_program(setup, compute, "searched")
        program = with_passes(plain, case.strategy, case.choices)
        if len(orders) > self.places:
            turns = zip(self.clock.transfers, orders[self.places :], strict=True)
            program = transfers_in_turn(program, dict(turns))
        return program, verify(program)

    def _keep_room(self, verdict: Verdict, orders: Orders) -> None:
        """Lets each place hold no more than what its budget leaves beside all else."""
        setup = self.case.setup
        room = [list(pipeline.room_bytes) for pipeline in self.pipelines]
        for bound in verdict.bounds:
            budget = setup.budget_of(bound.rank)
            if budget is not None:
                place = self.clock.place_of[bound.rank]
                number, there = self._at(place)
                left = self._peak_bytes(place, orders[place]) + budget - bound.total_bytes
                room[number][there] = min(room[number][there], left)
        self.pipelines = [
            replace(pipeline, room_bytes=left)
            for pipeline, left in zip(self.pipelines, room, strict=True)
        ]


def _whole(order: Order) -> Order:
    """An order with backward in one piece."""
    return tuple(
        (Kind.B if kind is Kind.I else kind, stage, m)
        for kind, stage, m in order
        if kind is not Kind.W
    )


def _divided(order: Order) -> Order:
    """An order with backward in two pieces, side by side where it was in one."""
    return tuple(
        piece
        for kind, stage, m in order
        for piece in (
            ((Kind.I, stage, m), (Kind.W, stage, m)) if kind is Kind.B else ((kind, stage, m),)
        )
    )


def _pipeline(
    clock: OrderClock, setup: Setup, replicas: Sequence[int], *, split: bool, by_unit: bool
) -> Pipeline:
    """What a policy needs to know of these replicas; of several sorts, the slowest figures."""
    compute_s: dict[tuple[Kind, int], float] = {}
    alike = [setup.replicas[number] for number in replicas]
    ranks = {
        setup.first_rank[number] + rank
        for number in replicas
        for rank in range(setup.replicas[number].ranks)
    }
    for rank in ranks:
        for (kind, stage, micro_batch), of_piece in clock.rows[rank].items():
            if micro_batch == 0:
                time_s = float(clock.op_costs.fixed_s[of_piece].sum())
                compute_s[kind, stage] = max(time_s, compute_s.get((kind, stage), 0.0))
    replica = alike[0]
    backward = Kind.I if split else Kind.B
    if by_unit:
        (member,) = replica.stages[0].members
        held_bytes = [_held_bytes(member, unit) for unit in member.units]
    else:
        held_bytes = [
            max(sum(_held_bytes(m, unit) for unit in m.units) for s in same for m in s.members)
            for same in zip(*(each.stages for each in alike), strict=True)
        ]
    return Pipeline(
        places=replica.ranks,
        stages=len(held_bytes),
        micro_batches=replica.micro_batches,
        backward=backward,
        compute_s=compute_s,
        message_s=_messages(clock, backward, sorted(ranks)),
        held_bytes=held_bytes,
        room_bytes=[inf] * replica.ranks,
    )


def _messages(
    clock: OrderClock, backward: Kind, ranks: Sequence[int]
) -> dict[tuple[Kind, int], tuple[float, float]]:
    """For what a stage makes on these ranks, the seconds on its link and the latency."""
    table, costs, rates = clock.table, clock.op_costs, clock.rates
    message_s: dict[tuple[Kind, int], tuple[float, float]] = {}
    first = (table.micro_batch == 0) & np.isin(table.rank, ranks)
    for sent, made in ((Kind.SEND_F, Kind.F), (Kind.SEND_B, backward)):
        for row in np.flatnonzero(first & (table.kind == sent)).tolist():
            stage = int(table.states.units.stage_in_replica[table.unit[row]])
            links = [link for link in (costs.link[row], costs.peer_link[row]) if link >= 0]
            slowest = min((float(rates[link]) for link in links), default=inf)
            time_s = float(costs.volume_bytes[row]) / slowest, float(costs.fixed_s[row])
            message_s[made, stage] = max(time_s, message_s.get((made, stage), (0.0, 0.0)))
    return message_s


def _held_bytes(member: Member, unit: Unit) -> int:
    """What a unit holds of a micro-batch from its forward on."""
    recovered = member.recovery.again and unit.recoverable
    return unit.input_bytes + (0 if recovered else unit.saved_bytes)
