"""Small changes of an order, most of them where the critical path says that one may help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ratrain.plan.order_clock import Order, OrderClock, Orders, Timed
from ratrain.program.kind import Kind
from ratrain.program.plain import Step


@dataclass(frozen=True)
class Critical:
    """A piece of compute on the critical path. `held_up`: it began when the piece before it on its
    rank ended, so that it may have been able to begin earlier."""

    place: int
    piece: Step
    held_up: bool


def critical_pieces(clock: OrderClock, timed: Timed) -> list[Critical]:
    """The pieces that end the last step of a run, back to where the step begins."""
    run, n = timed.run, len(clock)
    begin, node = (run.steps - 1) * n, clock.last_node(run)
    pieces: list[Critical] = []
    while node >= begin:
        here = clock.piece_of_node.get(node - begin)
        cause = int(run.cause[node])
        before = clock.piece_of_node.get(cause - begin) if cause >= begin else None
        if here is not None and here != before:
            held_up = before is not None and before[0] == here[0]
            pieces.append(Critical(clock.place_of[here[0]], here[1], held_up))
        node = cause
    return pieces


class Moves:
    """Draws changes of an order, at random by a seed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def changed(self, orders: Orders, critical: Sequence[Critical]) -> Orders | None:
        """The order with one change; None where the change drawn cannot be made."""
        rng, draw = self._rng, self._rng.random()
        held_up = [piece for piece in critical if piece.held_up]
        if draw < 0.45 and held_up:
            chosen = rng.choice(held_up)
            return _with(orders, chosen.place, self._moved(orders[chosen.place], chosen.piece, -1))
        if draw < 0.6 and critical:
            chosen = rng.choice(critical)
            return _with(orders, chosen.place, self._moved(orders[chosen.place], chosen.piece, 1))
        if draw < 0.85:
            place = rng.choice(critical).place if critical else rng.randrange(len(orders))
            return _with(orders, place, self._run_moved(orders[place]))
        place = rng.randrange(len(orders))
        piece = rng.choice(orders[place])
        return _with(orders, place, self._moved(orders[place], piece, rng.choice((-1, 1))))

    def _moved(self, order: Order, piece: Step, way: int) -> Order | None:
        """One piece some turns earlier (-1) or later (1)."""
        turns = min(1 + int(self._rng.expovariate(0.5)), len(order))
        steps = list(order)
        return tuple(steps) if _shift(steps, steps.index(piece), way, turns) else None

    def _run_moved(self, order: Order) -> Order | None:
        """A stage's pieces of one kind, over some micro-batches, one turn earlier or later each."""
        rng = self._rng
        kind, stage, first = rng.choice(order)
        last = first + 1 + int(rng.expovariate(0.15))
        run = [p for p in order if p[0] is kind and p[1] == stage and first <= p[2] <= last]
        way = rng.choice((-1, 1))
        steps = list(order)
        moved = False
        for piece in run if way < 0 else reversed(run):
            moved |= _shift(steps, steps.index(piece), way, 1)
        return tuple(steps) if moved else None


def _shift(steps: list[Step], at: int, way: int, turns: int) -> bool:
    """Moves a piece past at most this many others, as far as its stage's order allows."""
    piece, to = steps[at], at
    for _ in range(turns):
        beside = to + way
        if not 0 <= beside < len(steps) or _in_order(steps[beside], piece):
            break
        to = beside
    if to == at:
        return False
    steps.insert(to, steps.pop(at))
    return True


def _in_order(step: Step, other: Step) -> bool:
    """Whether two pieces must keep their order: those of a stage that are of one kind (gradients
    add up from micro-batch 0 on) or of one micro-batch."""
    return step[1] == other[1] and (step[0] is other[0] or step[2] == other[2])


def _with(orders: Orders, place: int, order: Order | None) -> Orders | None:
    return None if order is None else (*orders[:place], order, *orders[place + 1 :])


def forwards_ahead(order: Order) -> int:
    """Forwards that a rank computes before its first backward."""
    return next((turn for turn, step in enumerate(order) if step[0] is not Kind.F), len(order))
