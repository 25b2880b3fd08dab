"""Binding: applies the rules to a program's ops and collects the uses of states they declare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.actions import Kind
from ratrain.program.setup import Setup
from ratrain.program.states import SEND_SLOTS, States
from ratrain.program.units import Bools, Ints

WRITE, READ, FREE = 0, 1, 2
"""Modes of use, in the order in which they happen to one version of a state."""

NEVER = 1 << 20
"""A version that nothing writes: what an op reads when the op that should feed it is missing."""


@dataclass(frozen=True)
class Uses:
    """Columns over uses: op `op` writes, reads or frees version `version` of state `state`."""

    op: Ints
    state: Ints
    version: Ints
    mode: Ints


class Binding:
    """State numbers for the rules, and the uses collected so far. Lives while a table is made.

    `g` counts units, `m` micro-batches; every method works on arrays of them.
    """

    def __init__(self, setup: Setup, states: States, kind: Ints, g: Ints, m: Ints) -> None:
        self.setup = setup
        self.states = states
        self.unit = states.units
        self._start = {family.name: family.start for family in states.families}
        self._uses: list[tuple[Ints, Ints, Ints, int]] = []
        made = np.isin(kind, (Kind.B, Kind.W))
        self._transit = self._slot_turns(g, m, made, states.slots["transit"])
        gathers = np.isin(kind, (Kind.Gather_F, Kind.Gather_B))
        self._gathers = {
            word: self._slot_turns(g, m, gathers, states.slots["gathered"], kind == word)
            for word in (Kind.Gather_F, Kind.Gather_B)
        }
        forward = (kind == Kind.F) & self.unit.has_output[g]
        self._partial = self._slot_turns(g, m, forward, states.slots["partial"])
        backward = np.isin(kind, (Kind.B, Kind.I)) & self.unit.has_input[g]
        self._partialb = self._slot_turns(g, m, backward, states.slots["partialb"])

    # ---- what the rules declare ---------------------------------------------------------

    def reads(self, op: Ints, state: Ints, version: Ints | int) -> None:
        self._use(op, state, version, READ)

    def writes(self, op: Ints, state: Ints, version: Ints | int) -> None:
        self._use(op, state, version, WRITE)

    def frees(self, op: Ints, state: Ints, version: Ints | int) -> None:
        self._use(op, state, version, FREE)

    def _use(self, op: Ints, state: Ints, version: Ints | int, mode: int) -> None:
        versions = np.broadcast_to(np.asarray(version, dtype=np.int64), op.shape)
        self._uses.append((op, state, versions, mode))

    def uses(self) -> Uses:
        """Everything declared so far."""
        op, state, version = (
            np.concatenate([use[column] for use in self._uses]) for column in range(3)
        )
        mode = np.repeat([use[3] for use in self._uses], [len(use[0]) for use in self._uses])
        return Uses(op, state, version, mode)

    # ---- states by name -----------------------------------------------------------------

    def view(self, g: Ints) -> Ints:
        return self._start["view"] + g

    def shard_view(self, g: Ints) -> Ints:
        return self._start["shard_view"] + g

    def optimizer(self, g: Ints) -> Ints:
        return self._start["optimizer"] + g

    def gradient(self, g: Ints) -> Ints:
        return self._start["gradient"] + g

    def shard(self, g: Ints) -> Ints:
        return self._start["shard"] + g

    def input(self, g: Ints, m: Ints) -> Ints:
        return self._start["input"] + self.states.unit_cell[g] + m

    def saved(self, g: Ints, m: Ints) -> Ints:
        return self._start["saved"] + self.states.unit_cell[g] + m

    def arrives_in_slot(self, g: Ints) -> Bools:
        """Whether the gradient of a unit's output arrives from another rank, into a slot. Split
        backward keeps gradients until their W, longer than slots allow: it has a cell for each."""
        return self.unit.next_is_remote[g] & (not self.setup.split_backward)

    def outgrad(self, g: Ints, m: Ints) -> tuple[Ints, Ints]:
        """The state, and its version, that holds the gradient of a unit's output."""
        cell = self._start["outgrad"] + self.states.unit_cell[g] + m
        slot = self._start["recvg"] + self.unit.stage[g] * SEND_SLOTS + m % SEND_SLOTS
        arrives = self.arrives_in_slot(g)
        return np.where(arrives, slot, cell), np.where(arrives, m // SEND_SLOTS + 1, 1)

    def partial(self, g: Ints, m: Ints) -> tuple[Ints, Ints]:
        """The slot, and its version, of a rank's part of a forward's sum."""
        return self._slot("partial", self._partial, g, m)

    def partialb(self, g: Ints, m: Ints) -> tuple[Ints, Ints]:
        """The slot, and its version, of a rank's part of a backward's sum."""
        return self._slot("partialb", self._partialb, g, m)

    def sendx(self, stage: Ints, m: Ints) -> tuple[Ints, Ints]:
        """The slot, and its version, from which a stage's output is sent."""
        return self._start["sendx"] + stage * SEND_SLOTS + m % SEND_SLOTS, m // SEND_SLOTS + 1

    def sendg(self, stage: Ints, m: Ints) -> tuple[Ints, Ints]:
        """The slot, and its version, from which the gradient of a stage's input is sent."""
        return self._start["sendg"] + stage * SEND_SLOTS + m % SEND_SLOTS, m // SEND_SLOTS + 1

    def transit(self, g: Ints, m: Ints) -> tuple[Ints, Ints]:
        """The slot, and its version, that the gradient of a unit and micro-batch passes."""
        return self._slot("transit", self._transit, g, m)

    def gathered(self, word: Kind, g: Ints, m: Ints) -> tuple[Ints, Ints]:
        """The slot, and its version, into which `word` gathers a unit's view."""
        return self._slot("gathered", self._gathers[word], g, m)

    def saved_version(self, g: Ints) -> Ints:
        """The version of `saved` that is complete: recovery under tensor parallelism makes two."""
        return 1 + (self.unit.recovered[g] & (self.setup.tensor > 1))

    def of_all_replicas(self, g: Ints) -> Ints:
        """The version of a unit's gradient that has every micro-batch and every replica in it, of
        one copy where the unit is tied."""
        return self.unit.micro_batches[g] + self.setup.reduces

    def reduced(self, g: Ints) -> tuple[Ints, Ints]:
        """The state, and its version, that holds a unit's reduced gradient, of both copies where
        the unit is tied."""
        if self.setup.per_micro_batch:
            return self.shard(g), self.unit.micro_batches[g]
        return self.gradient(g), self.of_all_replicas(g) + (self.unit.tied_to[g] >= 0)

    def units_of_rank(self, op: Ints, g: Ints, m: Ints) -> tuple[Ints, Ints, Ints]:
        """A barrier's ops, repeated for every unit of their ranks: (op, unit, micro-batch)."""
        rows = [np.flatnonzero(self.unit.rank == rank) for rank in self.unit.rank[g]]
        return _repeated(op, rows, m)

    def units_of_stage(self, op: Ints, g: Ints, m: Ints) -> tuple[Ints, Ints, Ints]:
        """A barrier's ops, repeated for every unit of their stages: (op, unit, micro-batch)."""
        first, last = self.unit.first_of_stage[g], self.unit.last_of_stage[g]
        return _repeated(op, [np.arange(a, b + 1) for a, b in zip(first, last, strict=True)], m)

    # ---- slots --------------------------------------------------------------------------

    def _slot_turns(
        self, g: Ints, m: Ints, taking: Bools, slots: Ints, asked: Bools | None = None
    ) -> Ints:
        """For each (unit, micro-batch) cell, its turn among its rank's ops that take a slot; where
        a cell's ops take several, that of those `asked` for.

        Ops are numbered lane by lane, so their numbers have the order of the lane. A cell that
        no op serves has turn -1.
        """
        turns = np.full(int(self.unit.micro_batches.sum()), -1, dtype=np.int64)
        if not slots.any():
            return turns
        chosen = np.flatnonzero(taking)
        rank = self.unit.rank[g[chosen]]
        by_rank = np.argsort(rank, kind="stable")
        first = np.searchsorted(rank[by_rank], rank[by_rank])
        turn = np.empty(len(chosen), dtype=np.int64)
        turn[by_rank] = np.arange(len(chosen)) - first
        served = np.ones(len(chosen), bool) if asked is None else asked[chosen]
        ops = chosen[served]
        turns[self.states.unit_cell[g[ops]] + m[ops]] = turn[served]
        return turns

    def _slot(self, name: str, turns: Ints, g: Ints, m: Ints) -> tuple[Ints, Ints]:
        slots, rank = self.states.slots[name], self.unit.rank[g]
        turn = turns[self.states.unit_cell[g] + m]
        first = np.cumsum(slots) - slots
        state = self._start[name] + first[rank] + turn % slots[rank]
        return state, np.where(turn < 0, NEVER, turn // slots[rank] + 1)


def _repeated(op: Ints, rows: list[Ints], m: Ints) -> tuple[Ints, Ints, Ints]:
    counts = [len(row) for row in rows]
    return np.repeat(op, counts), np.concatenate(rows), np.repeat(m, counts)
