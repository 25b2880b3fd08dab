"""A program as columns: one row an op, one row a use. What the verifier and the executors read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from ratrain.errors import ProgramError
from ratrain.program.actions import LANE_OF, MESSAGES, NONE, Action, Kind, Lane, format_action
from ratrain.program.binding import Binding, Uses
from ratrain.program.edges import Edges, derive_edges
from ratrain.program.rules import RULES
from ratrain.program.setup import Setup
from ratrain.program.states import States, number_states
from ratrain.program.units import Ints


@dataclass(frozen=True)
class Table:
    """One step of a program in columns. Ops are numbered rank by rank, lane by lane, in order."""

    setup: Setup
    states: States
    kind: Ints
    rank: Ints
    lane: Ints
    unit: Ints  # over all replicas: the `g` of the rules
    micro_batch: Ints
    uses: Uses

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def edges(self) -> Edges:
        """Who waits for whom, in one step and from one step to the next."""
        return derive_edges(self.uses, self.states, self.rank * len(Lane) + self.lane)

    @cached_property
    def group(self) -> Ints:
        """Ops that must happen together share a number: a send and its receive, a collective of
        replicas that are simulated apart, the TieSyncs of a replica, the ClipNorms of all ranks.
        -1: alone."""
        return _groups(self)

    def action(self, op: int) -> Action:
        """The action of an op."""
        g = int(self.unit[op])
        units = self.states.units
        return Action(
            Kind(int(self.kind[op])),
            int(units.stage_in_replica[g]),
            int(units.unit_in_stage[g]),
            int(self.micro_batch[op]),
        )

    def word(self, op: int) -> str:
        """How people write an op."""
        units = self.states.units
        g = int(self.unit[op])
        return format_action(
            self.action(op), int(units.last_of_stage[g] - units.first_of_stage[g]) + 1
        )


def bind(setup: Setup, lanes: Mapping[tuple[int, Lane], tuple[Action, ...]]) -> Table:
    """The columns of a program. A `ProgramError` names an action that its header does not allow."""
    keys = sorted(key for key in lanes if lanes[key])
    counts = [len(lanes[key]) for key in keys]
    flat = np.fromiter(
        chain.from_iterable(chain.from_iterable(lanes[key] for key in keys)),
        dtype=np.int64,
        count=4 * sum(counts),
    ).reshape(-1, 4)
    kind, stage, unit, micro_batch = (np.ascontiguousarray(column) for column in flat.T)
    rank = np.repeat(np.array([rank for rank, _ in keys], dtype=np.int64), counts)
    lane = np.repeat(np.array([lane for _, lane in keys], dtype=np.int64), counts)
    states = number_states(setup)
    g = _unit_numbers(setup, states, kind, rank, lane, stage, unit, micro_batch)
    binding = Binding(setup, states, kind, g, micro_batch)
    for word in Kind:
        ops = np.flatnonzero(kind == word)
        if len(ops):
            RULES[word](binding, ops, g[ops], micro_batch[ops])
    return Table(setup, states, kind, rank, lane, g, micro_batch, binding.uses())


_NEEDS_MICRO_BATCH = frozenset(
    {
        *(Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, *MESSAGES, Kind.Gather_F, Kind.Gather_B),
        *(Kind.AllReduce_F, Kind.AllReduce_R, Kind.AllReduce_B),
    }
)


def _unit_numbers(
    setup: Setup,
    states: States,
    kind: Ints,
    rank: Ints,
    lane: Ints,
    stage: Ints,
    unit: Ints,
    micro_batch: Ints,
) -> Ints:
    """The `g` of every op, after checking that each op may stand where it stands."""
    units = states.units
    if len(rank) and int(rank.max()) >= setup.ranks:
        raise ProgramError(f"rank {rank.max()} is not one of the setup's {setup.ranks}")
    replica_of_rank = np.array([setup.replica_of(r) for r in range(setup.ranks)], dtype=np.int64)
    stages = np.array([len(replica.stages) for replica in setup.replicas], dtype=np.int64)
    first_stage = np.cumsum(stages) - stages
    replica = replica_of_rank[rank]
    known = stage < stages[replica]
    number = np.where(known, first_stage[replica] + stage, 0)
    first_unit = np.flatnonzero(units.unit_in_stage == 0)
    g = first_unit[number] + unit
    known &= first_unit[number] + unit <= units.last_of_stage[first_unit[number]]
    g = np.where(known, g, first_unit[number])

    per_micro_batch = np.isin(kind, list(_NEEDS_MICRO_BATCH)) | (
        setup.per_micro_batch & np.isin(kind, [Kind.GradSync, Kind.AllBackward])
    )
    in_range = (micro_batch >= 0) & (micro_batch < units.micro_batches[g])
    lane_of = np.array([LANE_OF[word] for word in Kind], dtype=np.int64)
    for wrong, what in (
        (~known, "names a stage or unit that the setup does not have"),
        (units.rank[g] != rank, "stands on a rank that does not hold its stage"),
        (lane_of[kind] != lane, "stands on the wrong lane"),
        (per_micro_batch & ~in_range, "names a micro-batch that the setup does not have"),
        (~per_micro_batch & (micro_batch != NONE), "belongs to no micro-batch"),
        ((kind == Kind.TieSync) & (units.tied_to[g] < 0), "names a unit that is tied to none"),
    ):
        if wrong.any():
            op = int(np.flatnonzero(wrong)[0])
            action = Action(
                Kind(int(kind[op])), int(stage[op]), int(unit[op]), int(micro_batch[op])
            )
            place = f"rank {rank[op]} {Lane(int(lane[op])).word}"
            raise ProgramError(f"{format_action(action, 2)} {what}", place=place)
    return g


def _groups(table: Table) -> Ints:
    units = table.states.units
    group = np.full(len(table), -1, dtype=np.int64)
    cells = int(units.micro_batches.max()) + 1
    stage = units.stage[table.unit]
    for send, receive, back in ((Kind.SEND_F, Kind.RECV_F, 1), (Kind.SEND_B, Kind.RECV_B, -1)):
        for word, sender in ((send, stage), (receive, stage - back)):
            ops = table.kind == word
            key = (sender * cells + table.micro_batch) * 2 + (back > 0)
            group[ops] = key[ops]
    if len(table.setup.replicas) > 1:
        per_replica = np.bincount(units.replica)[0]
        shared = np.isin(table.kind, [Kind.GradSync, Kind.PrefetchW, Kind.Gather_F, Kind.Gather_B])
        key = (table.unit % per_replica * len(Kind) + table.kind) * cells + table.micro_batch + 1
        group[shared] = (key + (int(stage.max()) + 2) * cells * 2)[shared]
    group[table.kind == Kind.ClipNorm] = group.max(initial=-1) + 1
    ties = np.flatnonzero(table.kind == Kind.TieSync)
    apart = units.rank[table.unit[ties]] != units.rank[units.tied_to[table.unit[ties]]]
    group[ties[apart]] = group.max(initial=-1) + 1 + units.replica[table.unit[ties[apart]]]
    return group
