"""One strategy's passes and layout, on which compute orders are tried: timed, and proved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from ratrain.plan.case import Case
from ratrain.plan.order_clock import Order, OrderClock, Orders, Timed
from ratrain.plan.order_seeds import Pipeline, order_of, policies
from ratrain.plan.trial import only_over_budget
from ratrain.program.csv import write_csv
from ratrain.program.kind import Kind
from ratrain.program.plain import plain_program
from ratrain.program.program import Program
from ratrain.program.setup import Setup
from ratrain.program.skeletons import SKELETONS, Place
from ratrain.program.strategies import with_passes
from ratrain.program.verify import Verdict, verify
from ratrain.simulate.step_bound import step_bound


@dataclass(frozen=True)
class Tried:
    """An order and its step on the clock."""

    orders: Orders
    timed: Timed

    @property
    def step_s(self) -> float:
        return self.timed.step_s


class Board:
    """Tries orders of one case. `split`: backward as input gradient and weight gradient apart."""

    def __init__(self, case: Case, *, split: bool) -> None:
        self.case, self.split = case, split
        self.evaluations = 0
        known = OrderClock(case.program, case.costs).orders
        self.first = tuple(self._parted(order) for order in known)
        program, verdict = self._built(self.first)
        self.clock = OrderClock(program, case.costs)
        self.pipeline = _pipeline(self.clock, program.setup, self.first, split=split)
        self.least_s = _least_s(self.clock)
        self._keep_room(verdict, self.first)

    def tried(self, orders: Orders, before: Orders | None = None) -> Tried | None:
        """An order on the clock; None where it holds too much or never ends. `before`: one that
        holds little enough."""
        for place, order in enumerate(orders):
            changed = before is None or order is not before[place]
            if changed and not self._has_room(place, order):
                return None
        self.evaluations += 1
        timed = self.clock.timed(orders)
        return None if timed is None else Tried(orders, timed)

    def proved(self, orders: Orders) -> Tried | None:
        """The order with its program built and proved; None where the proof fails. If it needs too
        much memory, orders that hold as much are not tried again."""
        if not all(self._has_room(place, order) for place, order in enumerate(orders)):
            return None
        program, verdict = self._built(orders)
        if not verdict.sound:
            if only_over_budget(verdict):
                self._keep_room(verdict, orders)
            return None
        self.clock = OrderClock(program, self.case.costs)
        return self.tried(orders, orders)

    def held_bytes(self, orders: Orders) -> int:
        """The most that any place holds of what waits for backward."""
        return max(self.pipeline.peak_bytes(order) for order in orders)

    def csv(self, orders: Orders) -> str:
        """The order in PyTorch's CSV."""
        return write_csv(self._built(orders)[0])

    def seeds(self) -> Iterator[Orders]:
        """Orders to begin with: the case's own, those with a name, and what policies lead to."""
        yield self.first
        pipeline = self.pipeline
        degrees = pipeline.micro_batches, pipeline.places, pipeline.chunks
        for skeleton in SKELETONS.values():
            if skeleton.fixed is not None:
                continue
            if skeleton.takes(*degrees) and (skeleton.chunks or pipeline.chunks == 1):
                places = (
                    Place(place, pipeline.places, pipeline.chunks, pipeline.micro_batches)
                    for place in range(pipeline.places)
                )
                yield tuple(self._parted(tuple(skeleton.order(place))) for place in places)
        for policy in policies(self.pipeline):
            yield order_of(self.pipeline, policy)

    def _has_room(self, place: int, order: Order) -> bool:
        return self.pipeline.peak_bytes(order) <= self.pipeline.room_bytes[place]

    def _parted(self, order: Order) -> Order:
        """An order with backward whole or split, as it is on this board."""
        return _divided(order) if self.split else _whole(order)

    def _built(self, orders: Orders) -> tuple[Program, Verdict]:
        case = self.case
        setup = replace(
            case.setup, split_backward=self.split, arrival_places=not self.split, sharding=0
        )
        of_ranks = {
            first + place: order for first in setup.first_rank for place, order in enumerate(orders)
        }
        plain = plain_program(setup, of_ranks, "searched")
        program = with_passes(plain, case.strategy, case.choices)
        return program, verify(program)

    def _keep_room(self, verdict: Verdict, orders: Orders) -> None:
        """Lets each place hold no more than what its budget leaves beside all else."""
        pipeline, setup = self.pipeline, self.case.setup
        room = list(pipeline.room_bytes)
        for bound in verdict.bounds:
            budget = setup.budget_of(bound.rank)
            if budget is not None:
                place = self.clock.place_of[bound.rank]
                held = pipeline.peak_bytes(orders[place])
                room[place] = min(room[place], held + budget - bound.total_bytes)
        self.pipeline = replace(pipeline, room_bytes=room)


def _least_s(clock: OrderClock) -> float:
    """What no order of the same ops can go below."""
    bound = step_bound(clock.table, clock.op_costs, clock.rates)
    return 0.0 if bound is None else bound.time_s


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


def _pipeline(clock: OrderClock, setup: Setup, orders: Orders, *, split: bool) -> Pipeline:
    """What a policy needs to know; of several sorts of replicas, the slowest figures."""
    compute_s: dict[tuple[Kind, int], float] = {}
    for rows in clock.rows:
        for (kind, stage, micro_batch), of_piece in rows.items():
            if micro_batch == 0:
                time_s = float(clock.op_costs.fixed_s[of_piece].sum())
                compute_s[kind, stage] = max(time_s, compute_s.get((kind, stage), 0.0))
    replica = setup.replicas[0]
    backward = Kind.I if split else Kind.B
    return Pipeline(
        places=len(orders),
        stages=len(replica.stages),
        micro_batches=replica.micro_batches,
        backward=backward,
        compute_s=compute_s,
        message_s=_messages(clock, backward),
        held_bytes=[_held_bytes(setup, stage) for stage in range(len(replica.stages))],
        room_bytes=[inf] * len(orders),
    )


def _messages(clock: OrderClock, backward: Kind) -> dict[tuple[Kind, int], tuple[float, float]]:
    """For what a stage makes, the seconds on its link and the latency."""
    table, costs, rates = clock.table, clock.op_costs, clock.rates
    message_s: dict[tuple[Kind, int], tuple[float, float]] = {}
    for sent, made in ((Kind.SEND_F, Kind.F), (Kind.SEND_B, backward)):
        for row in range(len(table)):
            if table.kind[row] != sent or table.micro_batch[row] != 0:
                continue
            stage = int(table.states.units.stage_in_replica[table.unit[row]])
            links = [link for link in (costs.link[row], costs.peer_link[row]) if link >= 0]
            slowest = min((float(rates[link]) for link in links), default=inf)
            time_s = float(costs.volume_bytes[row]) / slowest, float(costs.fixed_s[row])
            message_s[made, stage] = max(time_s, message_s.get((made, stage), (0.0, 0.0)))
    return message_s


def _held_bytes(setup: Setup, stage: int) -> int:
    """What a stage holds of a micro-batch from its forward on."""
    return max(
        sum(
            unit.input_bytes
            + (0 if member.recovery.again and unit.recoverable else unit.saved_bytes)
            for unit in member.units
        )
        for replica in setup.replicas
        for member in replica.stages[stage].members
    )
