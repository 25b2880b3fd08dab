"""Small changes of an order, most of them where the critical path says that one may help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ratrain.plan.orders.clock import Order, OrderClock, Orders, Timed
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
    begin, node = (run.periods - 1) * n, clock.last_node(run)
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


TRANSFERS = 0.1
"""The part of changes that give a reduction or a gather another turn, where turns are free."""


class Moves:
    """Draws changes of an order, at random by a seed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def changed(
        self, orders: Orders, critical: Sequence[Critical], places: int | None = None
    ) -> Orders | None:
        """The order with one change; None where the change drawn cannot be made. `places`: how many
        of the orders are of compute; the others are of transfers."""
        rng, draw = self._rng, self._rng.random()
        places = len(orders) if places is None else places
        if places < len(orders) and rng.random() < TRANSFERS:
            lane = rng.randrange(places, len(orders))
            return _with(orders, lane, self._turned(orders[lane]))
        held_up = [piece for piece in critical if piece.held_up]
        if draw < 0.45 and held_up:
            chosen = rng.choice(held_up)
            return _with(orders, chosen.place, self._moved(orders[chosen.place], chosen.piece, -1))
        if draw < 0.6 and critical:
            chosen = rng.choice(critical)
            return _with(orders, chosen.place, self._moved(orders[chosen.place], chosen.piece, 1))
        if draw < 0.7 and len({number for _, number, _ in orders[0]}) > 1:
            place = rng.randrange(places)
            return _with(orders, place, self._sorted(orders[place]))
        if draw < 0.85:
            place = rng.choice(critical).place if critical else rng.randrange(places)
            return _with(orders, place, self._run_moved(orders[place]))
        place = rng.randrange(places)
        piece = rng.choice(orders[place])
        return _with(orders, place, self._moved(orders[place], piece, rng.choice((-1, 1))))

    def _turned(self, lane: Order) -> Order:
        """A lane of transfers with one of them elsewhere, two swapped, or some the other way
        round."""
        rng, steps = self._rng, list(lane)
        first, last = sorted(rng.sample(range(len(steps)), 2))
        draw = rng.random()
        if draw < 0.4:
            steps.insert(first, steps.pop(last))
        elif draw < 0.8:
            steps.insert(last, steps.pop(first))
        elif draw < 0.9:
            steps[first], steps[last] = steps[last], steps[first]
        else:
            steps[first : last + 1] = reversed(steps[first : last + 1])
        return tuple(steps)

    def _moved(self, order: Order, piece: Step, way: int) -> Order | None:
        """One piece some turns earlier (-1) or later (1)."""
        turns = min(1 + int(self._rng.expovariate(0.5)), len(order))
        steps = list(order)
        return tuple(steps) if _shift(steps, steps.index(piece), way, turns) else None

    def _sorted(self, order: Order) -> Order | None:
        """Some turns in which a rank's stages, or its units, take all micro-batches before the next
        one does; or each micro-batch goes through all of them before the next one does."""
        rng = self._rng
        kind = rng.choice(order)[0]
        first = rng.randrange(len(order))
        last = first + 2 + int(rng.expovariate(0.05))
        turns = [turn for turn in range(first, min(last, len(order))) if order[turn][0] is kind]
        way, by_micro_batch = (1 if kind is Kind.F else -1), rng.random() < 0.5

        def key(piece: Step) -> tuple[int, int]:
            number, micro_batch = way * piece[1], piece[2]
            return (micro_batch, number) if by_micro_batch else (number, micro_batch)

        steps = list(order)
        for turn, piece in zip(
            turns, sorted((order[turn] for turn in turns), key=key), strict=True
        ):
            steps[turn] = piece
        changed = tuple(steps) != order and _keeps_order(steps, [steps[turn] for turn in turns])
        return tuple(steps) if changed else None

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
    """Whether two pieces must keep their order: those of a stage, or unit, that are of one kind
    (gradients add up from micro-batch 0 on) or of one micro-batch; and of one micro-batch and kind
    those of neighbours on the same rank, one of which makes what the other takes."""
    if step[1] == other[1]:
        return step[0] is other[0] or step[2] == other[2]
    beside = abs(step[1] - other[1]) == 1 and step[2] == other[2]
    return beside and step[0] is other[0] and step[0] is not Kind.W


def _keeps_order(steps: Sequence[Step], moved: Sequence[Step]) -> bool:
    """Whether pieces that moved still come behind what they wait for, and ahead of what waits for
    them, on their own rank."""
    turn = {step: at for at, step in enumerate(steps)}
    for kind, number, micro_batch in moved:
        at, way = turn[kind, number, micro_batch], 1 if kind is Kind.F else -1
        before = [(kind, number - way, micro_batch), (kind, number, micro_batch - 1)]
        after = [(kind, number + way, micro_batch), (kind, number, micro_batch + 1)]
        if kind is Kind.W:
            before, after = before[1:], after[1:]
        for other in _ORDER:
            beside = before if _ORDER[other] < _ORDER[kind] else after
            if other is not kind:
                beside.append((other, number, micro_batch))
        if any(turn.get(step, -1) > at for step in before):
            return False
        if any(turn.get(step, at) < at for step in after):
            return False
    return True


_ORDER = {Kind.F: 0, Kind.B: 1, Kind.I: 1, Kind.W: 2}
"""What comes before what, of a stage's or unit's pieces of one micro-batch."""


def _with(orders: Orders, place: int, order: Order | None) -> Orders | None:
    return None if order is None else (*orders[:place], order, *orders[place + 1 :])


def forwards_ahead(order: Order) -> int:
    """Forwards that a rank computes before its first backward."""
    return next((turn for turn, step in enumerate(order) if step[0] is not Kind.F), len(order))
