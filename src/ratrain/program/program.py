"""A program: for each rank and lane an ordered list of actions, under a setup.

Order between lanes comes only from states (`rules`). A program is one step; it repeats, and
states that outlive a step (views, optimizer shards) carry its order into the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ratrain.program.actions import NONE, Action, Kind, Lane
from ratrain.program.setup import Setup, Stage
from ratrain.program.table import Table, bind

Lanes = Mapping[tuple[int, Lane], tuple[Action, ...]]
Order = Iterable[tuple[Kind, int, int]]
"""The compute order of one rank: (kind, stage, micro-batch), before stages are cut into units."""


@dataclass(frozen=True)
class Program:
    """One training step of every rank. `passes` names what made it, in order."""

    setup: Setup
    lanes: Lanes
    passes: tuple[str, ...] = ()

    @cached_property
    def table(self) -> Table:
        """The same program as columns; made once, used by the verifier and both executors."""
        return bind(self.setup, self.lanes)

    def lane(self, rank: int, lane: Lane) -> tuple[Action, ...]:
        """The actions of one lane; empty where the rank has no such lane."""
        return self.lanes.get((rank, lane), ())

    def stages_of(self, rank: int) -> list[tuple[int, Stage]]:
        """(number, stage) of the stages on a rank, in model order."""
        index = self.setup.replica_of(rank)
        local = rank - self.setup.first_rank[index]
        stages = self.setup.replicas[index].stages
        return [(number, stage) for number, stage in enumerate(stages) if stage.rank == local]

    def micro_batches(self, rank: int) -> int:
        return self.setup.replicas[self.setup.replica_of(rank)].micro_batches

    def edit(self, name: str, *lanes: Lane, by: Edit, setup: Setup | None = None) -> Program:
        """The program a pass returns: `by(rank, lane, actions)` applied to the lanes named."""
        edited = dict(self.lanes)
        for rank in range(self.setup.ranks):
            for lane in lanes:
                actions = tuple(by(rank, lane, self.lane(rank, lane)))
                if actions:
                    edited[rank, lane] = actions
                else:
                    edited.pop((rank, lane), None)
        return Program(setup or self.setup, edited, (*self.passes, name))

    def with_setup(self, setup: Setup) -> Program:
        """The same lanes under another header."""
        return replace(self, setup=setup)


Edit = Callable[[int, Lane, tuple[Action, ...]], Iterable[Action]]


def plain_program(setup: Setup, orders: Mapping[int, Order], name: str) -> Program:
    """The plain program of a compute order: messages where stages meet, all state work at the end.

    At the step's end every rank waits for its last backward, reduces every gradient, then
    updates everything, then starts the next step: what a trainer without further passes does.
    """
    lanes: dict[tuple[int, Lane], tuple[Action, ...]] = {}
    for rank, order in orders.items():
        stages = _stages(setup, rank)
        compute = [action for step in order for action in _spread(stages, *step)]
        last = [stage for stage in sorted(stages) for _ in stages[stage].units]
        units = [unit for stage in sorted(stages) for unit in range(len(stages[stage].units))]
        forward = list(zip(last, units, strict=True))
        first = min(stages)
        lanes[rank, Lane.COMPUTE] = (*compute, Action(Kind.AllReady, first, 0, NONE))
        lanes[rank, Lane.UPDATE] = (
            Action(Kind.AllSynced, first, 0, NONE),
            *(Action(Kind.UpdateShard, s, u, NONE) for s, u in forward),
        )
        if setup.reduces:
            lanes[rank, Lane.REDUCE] = (
                Action(Kind.AllBackward, first, 0, NONE),
                *(Action(Kind.GradSync, s, u, NONE) for s, u in reversed(forward)),
            )
    lanes.update(_messages(setup, lanes))
    return Program(setup, lanes, (name,))


def _stages(setup: Setup, rank: int) -> dict[int, Stage]:
    index = setup.replica_of(rank)
    local = rank - setup.first_rank[index]
    stages = setup.replicas[index].stages
    return {number: stage for number, stage in enumerate(stages) if stage.rank == local}


def _spread(stages: Mapping[int, Stage], kind: Kind, stage: int, micro_batch: int) -> list[Action]:
    """A stage's op as ops of its units: forward in model order, backward against it."""
    units = range(len(stages[stage].units))
    ordered = units if kind is Kind.F else reversed(units)
    return [Action(kind, stage, unit, micro_batch) for unit in ordered]


def _messages(setup: Setup, lanes: Lanes) -> dict[tuple[int, Lane], tuple[Action, ...]]:
    """Sends in the order in which compute makes the tensors, receives in the senders' order."""
    found: dict[tuple[int, Lane], list[Action]] = {}
    for index, replica in enumerate(setup.replicas):
        base = setup.first_rank[index]
        rank_of = [base + stage.rank for stage in replica.stages]
        last_unit = [len(stage.units) - 1 for stage in replica.stages]
        for rank in range(base, base + replica.ranks):
            for kind, stage, unit, micro_batch in lanes[rank, Lane.COMPUTE]:
                if kind is Kind.F and unit == last_unit[stage]:
                    other, send, receive = stage + 1, Kind.SEND_F, Kind.RECV_F
                elif kind in (Kind.B, Kind.I) and unit == 0:
                    other, send, receive = stage - 1, Kind.SEND_B, Kind.RECV_B
                else:
                    continue
                if not 0 <= other < len(rank_of) or rank_of[other] == rank:
                    continue
                out, into = Lane[send.name], Lane[receive.name]
                found.setdefault((rank, out), []).append(Action(send, stage, 0, micro_batch))
                found.setdefault((rank_of[other], into), []).append(
                    Action(receive, other, 0, micro_batch)
                )
    return {key: tuple(actions) for key, actions in found.items()}
