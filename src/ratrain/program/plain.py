"""The plain program of a compute order: messages where stages meet, all state work at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from ratrain.errors import ProgramError
from ratrain.program.actions import NONE, Action
from ratrain.program.columns import (
    KIND,
    MICRO_BATCH,
    STAGE,
    UNIT,
    ColumnLanes,
    LaneOps,
    Rows,
    made_rows,
)
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Member, Replica
from ratrain.program.setup import Setup

Step = tuple[Kind, int, int]
Order = Iterable[Step]
"""The compute order of one rank: (kind, stage, micro-batch), before stages are cut into units."""
UnitStep = tuple[Kind, int, int, int]
"""(kind, stage, unit, micro-batch)."""
Transfer = tuple[Kind, int, int]
"""A reduction or a gather: (kind, stage, unit)."""


def plain_program(
    setup: Setup,
    orders: Mapping[int, Order],
    name: str,
    by_unit: Mapping[int, Sequence[UnitStep]] | None = None,
) -> Program:
    """The plain program of a compute order: what a trainer without further passes does.

    At the step's end every rank waits for its last backward, reduces every gradient, then
    updates everything, then starts the next step. As many of the first micro-batches' forwards and
    of the last ones' backwards as the setup says go through a stage layer by layer.
    """
    lanes: dict[tuple[int, Lane], LaneOps] = {}
    skeleton = Program(setup, {})
    steps = {rank: list(order) for rank, order in orders.items()}
    for rank, order in steps.items():
        held = dict(skeleton.held_by(rank))
        forward = [
            (stage, unit) for stage in sorted(held) for unit in range(len(held[stage].units))
        ]
        first = min(held)
        ready = made_rows([Kind.AllReady], [first], [0], [NONE])
        computed = _spread(held, order)
        if by_unit is not None and rank in by_unit:
            computed = _of_units(held, by_unit[rank], name)
        elif setup.together > 1:
            last = setup.replicas[setup.replica_of(rank)].micro_batches - setup.together
            computed = _by_layer(computed, setup.together, last)
        lanes[rank, Lane.COMPUTE] = np.concatenate([computed, ready])
        lanes[rank, Lane.UPDATE] = (
            Action(Kind.AllSynced, first, 0, NONE),
            *(
                Action(Kind.UpdateShard, s, u, NONE)
                for s, u in forward
                if not held[s].units[u].frozen
            ),
        )
        reduced = [(s, u) for s, u in forward if setup.is_reduced(held[s].units[u].name)]
        if reduced:
            lanes[rank, Lane.REDUCE] = (
                Action(Kind.AllBackward, first, 0, NONE),
                *(Action(Kind.GradSync, s, u, NONE) for s, u in reversed(reduced)),
            )
    lanes.update(_messages(setup, steps))
    return Program(setup, ColumnLanes(lanes), (name,))


def _spread(held: Mapping[int, Member], order: list[Step]) -> Rows:
    """Ops of stages as ops of their units: forward in model order, backward against it."""
    kind, stage, micro_batch = _columns(order)
    sizes = {number: len(member.units) for number, member in held.items()}
    counts = np.array([sizes[number] for _, number, _ in order], dtype=np.int64)
    step = np.repeat(np.arange(len(order)), counts)
    turn = np.arange(len(step)) - (np.cumsum(counts) - counts)[step]
    unit = np.where(kind[step] == Kind.F, turn, counts[step] - 1 - turn)
    return made_rows(kind[step], stage[step], unit, micro_batch[step])


def _of_units(held: Mapping[int, Member], steps: Sequence[UnitStep], name: str) -> Rows:
    """Ops of units as they are given."""
    kind, stage, unit, micro_batch = zip(*steps, strict=True)
    for number, member in held.items():
        named = 1 + max((u for s, u in zip(stage, unit, strict=True) if s == number), default=-1)
        if named != len(member.units):
            raise ProgramError(
                f"{name} names {named} units of stage {number}, which has {len(member.units)}",
                place="[schedule] skeleton",
                fix="use the order with the model and the layout that it was made for",
            )
    return made_rows(kind, stage, unit, micro_batch)


def _by_layer(rows: Rows, first: int, last: int) -> Rows:
    """Ops of units, with the forwards of micro-batches before `first` and the backwards of those
    from `last` on layer by layer: each unit computes all of them, where they follow each other,
    before the next unit does. Micro-batches stay in ascending order, so gradients have the same
    bits; they are the same on every rank, so that ranks of all stages reduce in one order."""
    kind, stage, unit, micro_batch = (rows[:, at] for at in (KIND, STAGE, UNIT, MICRO_BATCH))
    forward = kind == Kind.F
    together = np.where(forward, micro_batch < first, micro_batch >= last)
    alone = np.where(together, NONE, micro_batch)
    keys = (kind, stage, alone)
    run = np.cumsum(np.any([np.diff(key, prepend=key[:1]) != 0 for key in keys], axis=0))
    return rows[np.lexsort((micro_batch, np.where(forward, unit, -unit), run))]


def _columns(order: list[Step]) -> npt.NDArray[np.int32]:
    numbers = chain.from_iterable(order)
    return np.fromiter(numbers, dtype=np.int32, count=3 * len(order)).reshape(-1, 3).T


def _messages(
    setup: Setup, orders: Mapping[int, list[Step]]
) -> dict[tuple[int, Lane], tuple[Action, ...]]:
    """Sends in the order in which compute makes the tensors. Receives in their sender's order; of
    several senders, in the order in which the receiver computes what it was sent."""
    sent: dict[tuple[int, Lane], list[Action]] = {}
    received: dict[tuple[int, Lane], dict[int, list[Action]]] = {}
    for index, replica in enumerate(setup.replicas):
        base = setup.first_rank[index]
        rank_of = _rank_of(replica, base)
        joined = [stage.members[0].joined for stage in replica.stages]
        for rank in range(base, base + replica.ranks):
            for kind, stage, micro_batch in orders.get(rank, ()):
                if kind is Kind.F:
                    other, send, receive = stage + 1, Kind.SEND_F, Kind.RECV_F
                elif kind in (Kind.B, Kind.I):
                    other, send, receive = stage - 1, Kind.SEND_B, Kind.RECV_B
                else:
                    continue
                if not 0 <= other < len(joined):
                    continue
                several = range(micro_batch, micro_batch + joined[stage])
                for first in several[:: min(joined[stage], joined[other])]:
                    target = rank_of.get((other, first), rank)
                    if target == rank:
                        continue
                    sent.setdefault((rank, send.lane), []).append(Action(send, stage, 0, first))
                    received.setdefault((target, receive.lane), {}).setdefault(rank, []).append(
                        Action(receive, other, 0, first)
                    )
    messages = {key: tuple(actions) for key, actions in sent.items()}
    for (rank, lane), by_sender in received.items():
        held = dict(Program(setup, {}).held_by(rank))
        messages[rank, lane] = tuple(_merged(by_sender, orders[rank], held))
    return messages


def _rank_of(replica: Replica, base: int) -> dict[tuple[int, int], int]:
    """The program rank that computes each (stage, micro-batch)."""
    return {
        (number, micro_batch): base + member.rank
        for number, stage in enumerate(replica.stages)
        for member in stage.members
        for micro_batch in replica.serves(member)
    }


def _merged(
    by_sender: Mapping[int, list[Action]], order: list[Step], held: Mapping[int, Member]
) -> list[Action]:
    """One rank's receives of one direction, from all who send to it."""
    received = [action for actions in by_sender.values() for action in actions]
    if len(by_sender) == 1:
        return received
    forward = received[0].kind is Kind.RECV_F
    turn: dict[tuple[int, int], int] = {}
    for place, (kind, stage, micro_batch) in enumerate(order):
        if (kind is Kind.F) == forward:
            turn.setdefault((stage, micro_batch), place)

    def taken(action: Action) -> tuple[int, int]:
        first = held[action.stage].first_of(action.micro_batch)
        return turn[action.stage, first], action.micro_batch

    return sorted(received, key=taken)
