"""A program as columns: one row an op, one row a use. What the verifier and the executors read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ratrain.errors import ProgramError
from ratrain.program.actions import NONE, Action, format_action
from ratrain.program.binding import Binding
from ratrain.program.columns import as_columns
from ratrain.program.edges import Edges, derive_edges
from ratrain.program.graph import Chains, Waiting, chains_of
from ratrain.program.kind import Kind, Lane, Partners, kinds_where
from ratrain.program.network_turns import in_turn
from ratrain.program.setup import Setup
from ratrain.program.states import States, number_states
from ratrain.program.tiers import WAITING
from ratrain.program.units import Bools, Ints, Units
from ratrain.program.uses import Ops, Uses


@dataclass(frozen=True)
class Table:
    """A program in columns. Ops are numbered rank by rank, lane by lane, in order."""

    setup: Setup
    states: States
    kind: Ints
    rank: Ints
    lane: Ints
    unit: Ints  # over all members: the `g` of the rules
    micro_batch: Ints
    step: Ints  # of the program's period
    uses: Uses

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def edges(self) -> Edges:
        """Who waits for whom, in one period and from one period to the next."""
        edges = derive_edges(self.uses, self.states, self.rank * len(Lane) + self.lane)
        if not self.setup.network_in_turn:
            return edges
        return in_turn(self._waiting(edges), self.kind)

    @cached_property
    def group(self) -> Ints:
        """Ops that must happen together share a number: a send and its receive, a collective of
        members that are spelled out apart, the TieSyncs of a replica, the ClipNorms of all ranks, a
        GradSync and the backward that fills its buckets. -1: alone."""
        return _groups(self)

    @cached_property
    def chains(self) -> Chains:
        """The waiting graph without the ops that only wait for the one before them."""
        return chains_of(self.waiting)

    @property
    def waiting(self) -> Waiting:
        """The ops as a waiting graph is made of them."""
        return self._waiting(self.edges)

    def _waiting(self, edges: Edges) -> Waiting:
        return Waiting(edges, self.group, self.rank, self.lane, self.setup.ranks)

    def where(self, condition: str) -> Bools:
        """Ops whose kind has a property of `Kind`, by the property's name."""
        return kinds_where(condition)[self.kind]

    def is_any(self, *wanted: Kind) -> Bools:
        """Ops of these kinds."""
        return np.isin(self.kind, [int(kind) for kind in wanted])

    def action(self, op: int) -> Action:
        """The action of an op."""
        g = int(self.unit[op])
        units = self.states.units
        return Action(
            Kind(int(self.kind[op])),
            int(units.stage_in_replica[g]),
            int(units.unit_in_stage[g]),
            int(self.micro_batch[op]),
            int(self.step[op]),
        )

    def word(self, op: int) -> str:
        """How people write an op."""
        units = self.states.units
        g = int(self.unit[op])
        return format_action(
            self.action(op), int(units.last_of_part[g] - units.first_of_part[g]) + 1
        )


def bind(setup: Setup, lanes: Mapping[tuple[int, Lane], tuple[Action, ...]]) -> Table:
    """The columns of a program. A `ProgramError` names an action that its header does not allow."""
    rows = as_columns(lanes).rows
    keys = sorted(key for key in rows if len(rows[key]))
    counts = [len(rows[key]) for key in keys]
    if not keys:
        raise ProgramError("the program has no op", fix="write rank lines, e.g. rank 0 compute 0F0")
    flat = np.concatenate([rows[key] for key in keys])
    words = _Words(
        np.repeat(np.array([rank for rank, _ in keys], dtype=np.int64), counts),
        np.repeat(np.array([lane for _, lane in keys], dtype=np.int64), counts),
        *(column.astype(np.int64) for column in flat.T),
    )
    states = number_states(setup)
    g = _unit_numbers(setup, states, words)
    ops = Ops(np.arange(len(g)), g, words.micro_batch, words.step)
    binding = Binding(setup, states, words.kind, ops)
    for kind in Kind:
        chosen = np.flatnonzero(words.kind == kind)
        if len(chosen):
            kind.uses(binding, ops.where(chosen))
    return Table(
        setup,
        states,
        words.kind,
        words.rank,
        words.lane,
        g,
        words.micro_batch,
        words.step,
        binding.uses(),
    )


@dataclass(frozen=True)
class _Words:
    """The words of all lanes as columns, before they are checked."""

    rank: Ints
    lane: Ints
    kind: Ints
    stage: Ints
    unit: Ints
    micro_batch: Ints
    step: Ints


def _unit_numbers(setup: Setup, states: States, words: _Words) -> Ints:
    """The `g` of every op, after checking that each op may be where it is."""
    units, kind, rank = states.units, words.kind, words.rank
    if len(rank) and int(rank.max()) >= setup.ranks:
        raise ProgramError(
            f"rank {rank.max()} is not one of the setup's {setup.ranks}",
            place=f"rank {rank.max()}",
            fix=f"number ranks from 0 to {setup.ranks - 1}, or give its replica more stages",
        )
    replica_of_rank = np.array([setup.replica_of(r) for r in range(setup.ranks)], dtype=np.int64)
    stages = np.array([len(replica.stages) for replica in setup.replicas], dtype=np.int64)
    first_stage = np.cumsum(stages) - stages
    replica = replica_of_rank[rank]
    exists = words.stage < stages[replica]
    number = np.where(exists, first_stage[replica] + words.stage, 0)
    first_unit, held = _first_units(states, number, rank)
    g = first_unit + words.unit
    known = exists & (g <= units.last_of_part[first_unit])
    g = np.where(known, g, first_unit)

    m, step = words.micro_batch, words.step
    reductions = kinds_where("is_reduction")[kind] & setup.per_micro_batch & units.shared[g]
    per_micro_batch = kinds_where("names_micro_batch")[kind] | reductions
    most = max(replica.micro_batches for replica in setup.replicas)
    served = (m >= 0) & (m < most)
    place = units.place(g, np.where(served, m, 0))
    in_range = served & (place >= 0) & (place < units.micro_batches[g])
    if setup.joins:
        in_range &= ~_inside_joined(units, kind, g, m)
    lane_of = np.array([word.lane for word in Kind], dtype=np.int64)
    for wrong, what in (
        (~known, "names a stage or unit that the setup does not have"),
        (~held, "is on a rank that does not hold its stage"),
        (lane_of[kind] != words.lane, "is on the wrong lane"),
        (per_micro_batch & ~in_range, "names a micro-batch that the setup does not have"),
        (~per_micro_batch & (m != NONE), "belongs to no micro-batch"),
        (
            kinds_where("changes_weights")[kind] & ~units.trained[g],
            "is about a unit that is frozen",
        ),
        (kinds_where("is_tie")[kind] & (units.tied_to[g] < 0), "names a unit that is not tied"),
        *_moves_of_nothing(units, kind, g),
        ((step < 0) | (step >= setup.period), "names a step that the program does not have"),
    ):
        if wrong.any():
            op = int(np.flatnonzero(wrong)[0])
            action = Action(
                Kind(int(kind[op])),
                int(words.stage[op]),
                int(words.unit[op]),
                int(m[op]),
                int(step[op]),
            )
            place_of_op = f"rank {rank[op]} {Lane(int(words.lane[op])).word}"
            raise ProgramError(
                f"{format_action(action, 2)} {what}",
                place=place_of_op,
                fix="move the op, or leave it out",
            )
    return g


def _moves_of_nothing(units: Units, kind: Ints, g: Ints) -> Iterator[tuple[Bools, str]]:
    """Ops that move what does not wait in another tier; with what to say of them."""
    moved = np.array([each.moves for each in Kind])[kind]
    for name in WAITING:
        wrong = (moved == name) & ~units.waits(name)[g]
        yield wrong, f"names a unit whose {name} is on the device"


def _inside_joined(units: Units, kind: Ints, g: Ints, m: Ints) -> Bools:
    """Ops that name another micro-batch than the first of those that they are about."""
    is_message = kinds_where("is_message")[kind]
    ahead = np.array([each.partners is Partners.NEXT_STAGE for each in Kind])[kind]
    parts = np.where(ahead, units.output_parts[units.last_of_part[g]], units.input_parts[g])
    return m % np.where(is_message, units.joined[g] // parts, units.joined[g]) != 0


def _first_units(states: States, stage: Ints, rank: Ints) -> tuple[Ints, Bools]:
    """For each op the first unit of its stage on its rank, and whether the rank holds the stage;
    if not, the first of the stage anywhere."""
    units = states.units
    starts = np.flatnonzero(units.unit_in_stage == 0)
    any_of_stage = np.full(int(units.stage.max()) + 1, -1, dtype=np.int64)
    any_of_stage[units.stage[starts][::-1]] = starts[::-1]
    first = any_of_stage[stage]
    held = units.rank[first] == rank
    elsewhere = np.flatnonzero(~held)
    if len(elsewhere):
        ranks = int(units.rank.max()) + 1
        keys = units.stage[starts] * ranks + units.rank[starts]
        order = np.argsort(keys)
        wanted = stage[elsewhere] * ranks + rank[elsewhere]
        place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
        matches = keys[order][place] == wanted
        first[elsewhere[matches]] = starts[order[place[matches]]]
        held[elsewhere[matches]] = True
    return first, held


def _groups(table: Table) -> Ints:
    units, kind = table.states.units, table.kind
    group = np.full(len(table), -1, dtype=np.int64)
    cells = int(max(replica.micro_batches for replica in table.setup.replicas)) + 1
    stage = units.stage[table.unit]
    within = table.step * cells + table.micro_batch
    in_step, cells = cells, cells * table.setup.period
    for receive in (each for each in Kind if each.receives is not None):
        back = 1 if receive.partners is Partners.PREVIOUS_STAGE else -1
        for word, sender in ((receive.receives, stage), (receive, stage - back)):
            ops = kind == word
            key = (sender * cells + within) * 2 + (back > 0)
            group[ops] = key[ops]
    if len(np.unique(units.same)) < len(units.same):
        shared = kinds_where("is_collective")[kind]
        who, count = groups_of_holders(table)
        shared &= count > 1
        place = units.place(table.unit, np.maximum(table.micro_batch, 0))
        turn = table.step * in_step + np.where(table.micro_batch == NONE, NONE, place) + 1
        key = (who * len(Kind) + kind) * (cells + 1) * 2 + turn
        group[shared] = (key + (int(stage.max()) + 2) * cells * 2)[shared]
    everyone = np.array([k.partners is Partners.EVERYONE for k in Kind])[kind]
    if everyone.any():
        keys = (kind, table.step, sites_of_ops(table))
        _, met = np.unique(np.array(keys)[:, everyone], axis=1, return_inverse=True)
        group[everyone] = group.max(initial=-1) + 1 + met.reshape(-1)
    ties = np.flatnonzero(table.where("is_tie"))
    apart = units.rank[table.unit[ties]] != units.rank[units.tied_to[table.unit[ties]]]
    tie = units.replica[table.unit[ties]] * table.setup.period + table.step[ties]
    group[ties[apart]] = group.max(initial=-1) + 1 + tie[apart]
    if table.setup.backward_sends:
        _pair_with_backward(table, group)
    return group


def groups_of_holders(table: Table) -> tuple[Ints, Ints]:
    """For each op the number of the group that holds its unit, and of how many units that is, as
    the program spells them out: all holders, or those that add up its gradient."""
    units, unit = table.states.units, table.unit
    peers = np.array([k.partners is Partners.PEERS for k in Kind])[table.kind]
    held, together = units.same, units.together
    who = np.where(peers, 1 + int(held.max()) + together[unit], held[unit])
    count = np.where(peers, np.bincount(together)[together[unit]], np.bincount(held)[held[unit]])
    return who, count


def sites_of_ops(table: Table) -> Ints:
    """For each op the number of its site, whose ranks wait for each other; one, where no sites
    train apart."""
    setup, units = table.setup, table.states.units
    apart = bool(setup.averages)
    site = np.array([(replica.site or 0) * apart for replica in setup.replicas])
    return site[units.replica[table.unit]]


def _pair_with_backward(table: Table, group: Ints) -> None:
    """Lets each reduction of a micro-batch happen together with what makes the gradient."""
    pairs = sends_beside(table)
    ops = np.flatnonzero(pairs)
    units, states = table.states.units, table.states
    place = units.place(table.unit[ops], table.micro_batch[ops])
    cell = table.step[ops] * states.cells + states.unit_cell[table.unit[ops]] + place
    is_sync = table.where("is_reduction")[ops]
    syncs = ops[is_sync]
    number_of_cell = np.full(states.cells * table.setup.period, -1, dtype=np.int64)
    alone = group[syncs] < 0
    group[syncs[alone]] = group.max(initial=-1) + 1 + cell[is_sync][alone]
    number_of_cell[cell[is_sync]] = group[syncs]
    group[ops[~is_sync]] = number_of_cell[cell[~is_sync]]


def sends_beside(table: Table) -> Bools:
    """Ops that happen in pairs: a reduction, and the backward that fills its buckets."""
    if not table.setup.backward_sends:
        return np.zeros(len(table), bool)
    return table.where("uses_buckets") & table.states.units.reduced[table.unit]
