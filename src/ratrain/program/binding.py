"""Binding: applies the rules to a program's ops and collects the uses of states they declare."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from ratrain.program.families import FAMILIES, SEND_SLOTS, Per
from ratrain.program.kind import Kind, kinds_where
from ratrain.program.setup import Averages, Setup
from ratrain.program.states import States
from ratrain.program.stays import Fetches, Stays
from ratrain.program.tiers import TIERS, waiting_family
from ratrain.program.units import Bools, Ints
from ratrain.program.uses import FREE, NEVER, READ, WRITE, Ops, Ref, Uses


class Binding:
    """States for the rules, and the uses collected so far. Lives while a table is made.

    Every method takes `Ops` and answers with a `Ref`: for each op the state that it is about.
    """

    def __init__(self, setup: Setup, states: States, kind: Ints, ops: Ops) -> None:
        self.setup = setup
        self.states = states
        self.unit = states.units
        self._kind, self._ops = kind, ops
        self._uses: list[tuple[Ints, Ints, Ints, int]] = []
        self._turns: dict[tuple[str, int], Ints] = {}
        self._spilled: Bools | None = None
        self._renewals: dict[str, Ints] = {}

    # ---- what the rules declare ---------------------------------------------------------

    def reads(self, ops: Ops, what: Ref) -> None:
        self._use(ops, what, READ)

    def writes(self, ops: Ops, what: Ref) -> None:
        self._use(ops, what, WRITE)

    def frees(self, ops: Ops, what: Ref) -> None:
        self._use(ops, what, FREE)

    def _use(self, ops: Ops, what: Ref, mode: int) -> None:
        self._uses.append((ops.op, what.state, what.version, mode))

    def uses(self) -> Uses:
        """Everything declared so far."""
        op, state, version = (
            np.concatenate([use[column] for use in self._uses]) for column in range(3)
        )
        mode = np.repeat([use[3] for use in self._uses], [len(use[0]) for use in self._uses])
        return Uses(op, state, version, mode)

    # ---- states of each sort ------------------------------------------------------------

    def cell(self, family: str, ops: Ops, version: Ints | int = 1) -> Ref:
        """A state that each unit has for each micro-batch of a step."""
        cells = self.states.by_name[family]
        place = self.unit.place(ops.unit, ops.micro_batch)
        state = cells.start + ops.step * cells.count + self.states.unit_cell[ops.unit] + place
        return Ref(state, np.broadcast_to(np.asarray(version, dtype=np.int64), state.shape))

    def input(self, ops: Ops) -> Ref:
        """A unit's input, with all in it of the messages that fill it."""
        return self.cell("input", ops, self.unit.input_parts[ops.unit])

    def of_unit(self, family: str, ops: Ops, version: Ints | int = 1) -> Ref:
        """A state that each unit has in each step."""
        cells = self.states.by_name[family]
        state = cells.start + ops.step * cells.count + ops.unit
        return Ref(state, np.broadcast_to(np.asarray(version, dtype=np.int64), state.shape))

    def lasting(self, family: str, ops: Ops) -> Ref:
        """A state that each unit has all the time, as the ops' step finds it."""
        start = self.states.by_name[family].start
        return Ref(start + ops.unit, self._renewed_before(family)[ops.step, ops.unit])

    def at_step_end(self, family: str, ops: Ops) -> Ref:
        """The same as the ops' step leaves it."""
        before = self.lasting(family, ops)
        if not self.setup.averages:
            return Ref(before.state, before.version + self.unit.trained[ops.unit])
        return Ref(before.state, before.version + self._renewed_in(family)[ops.step, ops.unit])

    def part_slot(self, family: str, ops: Ops, messages: Ints | int = 1) -> Ref:
        """The slot that a micro-batch takes, of a part of a stage, with all in it of the messages
        that fill it."""
        count = self.unit.micro_batches[ops.unit]
        turn = ops.step * count + self.unit.place(ops.unit, ops.micro_batch)
        start = self.states.by_name[family].start
        state = start + self.unit.part[ops.unit] * SEND_SLOTS + turn % SEND_SLOTS
        return Ref(state, (turn // SEND_SLOTS + 1) * messages)

    def rank_slot(
        self, family: str, ops: Ops, takers: Callable[[Binding], Bools], asked: Kind | None = None
    ) -> Ref:
        """The slot, of those that a rank's ops take in turn, that a (unit, micro-batch) has.

        `takers` says which of all ops take a slot; where a cell's ops take several, the one that
        the op of kind `asked` takes.
        """
        key = family, -1 if asked is None else int(asked)
        if key not in self._turns:
            self._turns[key] = self._slot_turns(family, takers(self), asked)
        return self._taken(family, ops, self._turns[key][self._cells(ops)], 1)

    def _taken(self, family: str, ops: Ops, turn: Ints, versions: int) -> Ref:
        """The slots that ops take whose turns on their ranks these are, as they are first written;
        `versions`: how often a slot is written before it is taken again."""
        slots, rank = self.states.slots[family], self.unit.rank[ops.unit]
        first = np.cumsum(slots) - slots
        start = self.states.by_name[family].start
        many = np.maximum(slots[rank], 1)
        state = start + first[rank] + turn % many
        return Ref(state, np.where(turn < 0, NEVER, turn // many * versions + 1))

    def fetched_optimizer(self, ops: Ops) -> Ref:
        """The slot that a unit's optimizer states are fetched into, as they arrive; its update
        writes the next version."""
        turns = self._unit_turns("optimizer_slot", self.is_any(Kind.FetchOptimizer))
        return self._taken("optimizer_slot", ops, turns[ops.step, ops.unit], 2)

    def made_view(self, ops: Ops) -> Ref:
        """The slot that a unit's new view is made in, on its way to another tier."""
        gathered = self.gathered_per_step(self._ops.unit)
        makers = self.is_any(Kind.PrefetchW) | (self.is_any(Kind.UpdateShard) & ~gathered)
        turns = self._unit_turns("view_made", makers & self.unit.waits("view")[self._ops.unit])
        return self._taken("view_made", ops, turns[ops.step, ops.unit], 1)

    def fetched_view(self, ops: Ops) -> Ref:
        """The slot that a unit's view has been fetched into, for ops that read it."""
        return self._taken("view_slot", ops, self._view_fetches.due(ops), 1)

    def arriving_view(self, ops: Ops) -> Ref:
        """The same for the fetches themselves."""
        fetches = self._view_fetches
        turn = fetches.turn[np.searchsorted(fetches.op, ops.op)]
        return self._taken("view_slot", ops, turn, 1)

    def averaged_before(self, family: str, ops: Ops) -> Ref:
        """A lasting state of a unit as its update finds it: as an average of the same step, made in
        place, has left it."""
        before = self.lasting(family, ops)
        if self.setup.averages is not Averages.DREAMDDP:
            return before
        return Ref(before.state, before.version + self.takes_turn(Kind.AverageW, ops))

    def takes_turn(self, kind: Kind, ops: Ops) -> Bools:
        """Which of some ops' units have an op of a kind in the same step."""
        chosen = self.is_any(kind)
        turns = np.zeros((self.setup.period, len(self.unit.rank)), dtype=np.bool_)
        turns[self._ops.step[chosen], self._ops.unit[chosen]] = True
        return turns[ops.step, ops.unit]

    def optimizer(self, ops: Ops) -> Ref:
        """A unit's optimizer states as its update finds them: in their place, or fetched."""
        kept, away = self.averaged_before("optimizer", ops), self.away(ops.unit)
        return self._either(away, lambda: self.fetched_optimizer(ops), kept)

    def new_optimizer(self, ops: Ops) -> Ref:
        """The same as the ops' step leaves them."""
        kept, away = self.at_step_end("optimizer", ops), self.away(ops.unit)
        return self._either(away, lambda: self.fetched_optimizer(ops).next(), kept)

    def away(self, unit: Ints) -> Bools:
        """Units whose optimizer states are in another tier than the device's."""
        return self.unit.waits("optimizer")[unit]

    def in_tiers(self, name: str, ops: Ops, use: Callable[[Ops, Ref], None]) -> None:
        """What ops do to their units' states of a sort that wait (`tiers.WAITING`), where these
        are, as the step finds them."""
        for number, tier in enumerate(TIERS):
            there = ops.where(self.unit.tiers[name][ops.unit] == number)
            if len(there):
                family = waiting_family(name, tier)
                declared = FAMILIES[family]
                of_unit = self.lasting if declared.persistent else self.of_unit
                use(there, (of_unit if declared.per is Per.UNIT else self.cell)(family, there))

    def _either(self, chosen: Bools, first: Callable[[], Ref], second: Ref) -> Ref:
        if not chosen.any():
            return second
        made = first()
        return Ref(
            np.where(chosen, made.state, second.state),
            np.where(chosen, made.version, second.version),
        )

    # ---- states that several kinds share ------------------------------------------------

    def gathered_per_use(self, unit: Ints) -> Bools:
        """Level 3: units whose view exists only while it is used."""
        return self.unit.shared[unit] & (self.setup.sharding == 3)

    def gathered_per_step(self, unit: Ints) -> Bools:
        """Levels 1 and 2: units whose updated view is gathered once a step."""
        return self.unit.reduced[unit] & (self.setup.sharding in (1, 2))

    def reduced_per_micro_batch(self, unit: Ints) -> Bools:
        return self.unit.reduced[unit] & self.setup.per_micro_batch

    def view(self, ops: Ops) -> Ref:
        """A whole view, for ops that read it: in its place, or fetched."""
        waits = self.unit.waits("view")[ops.unit]
        return self._either(waits, lambda: self.fetched_view(ops), self.lasting("view", ops))

    def share_of_view(self, ops: Ops) -> Ref:
        """Level 3: a rank's share of a view, for gathers: in its place, or fetched."""
        waits = self.unit.waits("view")[ops.unit]
        return self._either(waits, lambda: self.fetched_view(ops), self.lasting("shard_view", ops))

    def kept_view(self, ops: Ops) -> Ref:
        """What a rank keeps of a view from step to step: all of it, or its share."""
        whole, share = self.lasting("view", ops), self.lasting("shard_view", ops)
        state = np.where(self.gathered_per_use(ops.unit), share.state, whole.state)
        for number, tier in enumerate(TIERS):
            there = self.unit.tiers["view"][ops.unit] == number
            if tier and there.any():
                start = self.states.by_name[waiting_family("view", tier)].start
                state = np.where(there, start + ops.unit, state)
        return Ref(state, whole.version)

    def new_view(self, ops: Ops) -> Ref:
        """The same as the ops' step leaves it."""
        return Ref(self.kept_view(ops).state, self.at_step_end("view", ops).version)

    def gradient_before(self, ops: Ops) -> Ref:
        """A unit's gradient as a micro-batch finds it that adds to it."""
        place = self.unit.place(ops.unit, ops.micro_batch)
        kept, waits = self.of_unit("gradient", ops, place), self.unit.waits("gradient")[ops.unit]
        return self._either(waits, lambda: self._stays.at(self._cells(ops)), kept)

    def gradient(self, ops: Ops, version: Ints | int) -> Ref:
        """It with all micro-batches in it, or later."""
        kept, waits = self.of_unit("gradient", ops, version), self.unit.waits("gradient")[ops.unit]
        if not waits.any():
            return kept
        later = kept.version - self.unit.micro_batches[ops.unit] + 1
        stays = self._stays.at(self._last_cells(ops))
        return Ref(
            np.where(waits, stays.state, kept.state),
            np.where(waits, stays.version + later, kept.version),
        )

    def stay_of_gradient(self, ops: Ops) -> tuple[Ref, Ref, Ints, Bools]:
        """For moves of gradients: what a fetch leaves in its slot; what a store, of the last
        micro-batch of a stay, finds there; which store of the unit's is the one before; and whether
        there is none behind."""
        arrives = self._stays.at(self._cells(ops))
        number, count = self._stays.of_unit(self._cells(ops))
        return arrives, arrives.next(), number, number == count - 1

    def stored_sum(self, ops: Ops) -> Ref:
        """A unit's reduced gradient in the tier in which it waits for all others; behind the stores
        of what added up."""
        count = self._stays.of_unit(self._last_cells(ops))[1]
        where = self.unit.tiers["gradient"][ops.unit]
        starts = [
            self.states.by_name[waiting_family("gradient", tier)].start if tier else NEVER
            for tier in TIERS
        ]
        here = self.of_unit("gradient", ops)
        state = here.state - self.states.by_name["gradient"].start + np.array(starts)[where]
        return Ref(state, count)

    def fetched_sum(self, ops: Ops) -> Ref:
        """The slot in which it comes back; its update may write the next version."""
        stays = self._stays
        return Ref(stays.sum_slot[ops.step, ops.unit], stays.sum_version[ops.step, ops.unit])

    def waits_for_norm(self, ops: Ops) -> Bools:
        """Ops whose unit's reduced gradient leaves the device before its update."""
        if not self.is_any(Kind.FetchSum).any():
            return np.zeros(len(ops), dtype=np.bool_)
        return self._stays.sum_version[ops.step, ops.unit] != NEVER

    def _last_cells(self, ops: Ops) -> Ints:
        """The cells of units' last micro-batches."""
        first = ops.step * self.states.cells + self.states.unit_cell[ops.unit]
        return first + np.maximum(self.unit.micro_batches[ops.unit], 1) - 1

    @cached_property
    def _stays(self) -> Stays:
        """Gradients that wait elsewhere are in a slot for some micro-batches at a time: from the
        first, or one that a fetch names, until the next such one. Behind all of them in a step, in
        the order of their fetches, come those that have waited for a norm."""
        every, cells = self._ops, self.states.cells * self.setup.period
        waits = self.unit.waits("gradient")
        adds = every.where(self.where("adds_gradient") & waits[every.unit])
        fetched = np.zeros(cells, dtype=np.bool_)
        fetched[self._cells(every.where(self.is_any(Kind.FetchGradient)))] = True
        cell, place = self._cells(adds), self.unit.place(adds.unit, adds.micro_batch)
        begins = (place == 0) | fetched[cell]
        order = np.lexsort((place, adds.unit, adds.step))
        stay = np.empty(len(adds), dtype=np.int64)
        stay[order] = np.cumsum(begins[order]) - 1  # by step, then unit, then place
        first = order[begins[order]]
        unit, step, count = adds.unit[first], adds.step[first], len(first)
        length = np.bincount(stay, minlength=count)
        is_last = np.r_[_differs(unit, step), True][:count]
        sums = every.where(self.is_any(Kind.FetchSum))
        returns = np.zeros((self.setup.period, len(waits)), dtype=np.bool_)
        returns[sums.step, sums.unit] = True
        ends = self.unit.reduced.astype(np.int64)[unit]
        ends += self.gathered_per_step(unit) & ~returns[step, unit]
        writes = np.r_[
            length + fetched[cell[first]] + is_last * ends, 1 + self.gathered_per_step(sums.unit)
        ]
        rank = self.unit.rank[np.r_[unit, sums.unit]]
        is_sum = np.repeat([0, 1], [count, len(sums)])
        turns = np.lexsort((np.r_[adds.op[first], sums.op], is_sum, np.r_[step, sums.step]))
        turn = np.empty(len(rank), dtype=np.int64)
        turn[turns] = _turn_on_rank(rank[turns])
        slots = np.maximum(self.states.slots["gradient_slot"], 1)
        family, begin = self.states.by_name["gradient_slot"], np.cumsum(slots) - slots
        slot = begin[rank] + turn % slots[rank]
        base = np.zeros(len(rank), dtype=np.int64)
        held = np.zeros(int(slots.sum()), dtype=np.int64)
        for number in np.argsort(turn, kind="stable").tolist():
            base[number] = held[slot[number]]
            held[slot[number]] += writes[number]
        version = np.full(cells, NEVER, dtype=np.int64)
        of_cell = np.zeros(cells, dtype=np.int64)
        inside = place - place[first][stay]
        version[cell] = base[stay] + fetched[cell[first]][stay] + inside
        of_cell[cell] = stay
        sum_slot, sum_version = (np.full(returns.shape, NEVER, dtype=np.int64) for _ in range(2))
        sum_slot[sums.step, sums.unit] = family.start + slot[count:]
        sum_version[sums.step, sums.unit] = base[count:] + 1
        owner = unit + step * len(waits)
        return Stays(family.start + slot[:count], version, of_cell, owner, sum_slot, sum_version)

    def of_all_replicas(self, ops: Ops) -> Ref:
        """A unit's gradient with every micro-batch and every replica in it, of one copy where the
        unit is tied."""
        complete = self.unit.micro_batches[ops.unit] + self.unit.reduced[ops.unit]
        return self.gradient(ops, complete)

    def reduced(self, ops: Ops) -> Ref:
        """A unit's reduced gradient, of both copies where the unit is tied."""
        whole, g = self.of_all_replicas(ops), ops.unit
        share = self.of_unit("shard", ops, self.unit.micro_batches[g])
        sharded = self.reduced_per_micro_batch(g)
        reduced = Ref(
            np.where(sharded, share.state, whole.state),
            np.where(sharded, share.version, whole.version + (self.unit.tied_to[g] >= 0)),
        )
        return self._either(self.waits_for_norm(ops), lambda: self.fetched_sum(ops), reduced)

    def is_spilled(self, ops: Ops) -> Bools:
        """Whether the activations of ops' cells wait in another tier: those that a Spill moves."""
        if self._spilled is None:
            self._spilled = np.zeros(self.states.cells * self.setup.period, dtype=np.bool_)
            self._spilled[self._cells(self._ops.where(self.is_any(Kind.Spill)))] = True
        return self._spilled[self._cells(ops)]

    def saved_out(self, ops: Ops) -> Ref:
        """The slot in which forward leaves what is spilled."""
        return self.rank_slot("saved_out", ops, lambda b: b.is_any(Kind.Spill))

    def saved_in(self, ops: Ops) -> Ref:
        """The turn in which it comes back."""
        return self.rank_slot("saved_in", ops, lambda b: b.is_any(Kind.Fill))

    def arrives_in_slot(self, unit: Ints) -> Bools:
        """Whether the gradient of a unit's output arrives from another rank, into a slot. Split
        backward keeps gradients until their W, longer than slots allow: it has a cell for each,
        and so have orders that say that gradients wait long (`arrival_places`)."""
        apart = self.setup.split_backward or self.setup.arrival_places
        return self.unit.next_is_remote[unit] & (not apart)

    def outgrad(self, ops: Ops) -> Ref:
        """What holds the gradient of a unit's output."""
        messages = self.unit.output_parts[ops.unit]
        cell = self.cell("outgrad", ops, messages)
        slot = self.part_slot("recvg", ops, messages)
        arrives = self.arrives_in_slot(ops.unit)
        return Ref(
            np.where(arrives, slot.state, cell.state), np.where(arrives, slot.version, cell.version)
        )

    # ---- ops ----------------------------------------------------------------------------

    def is_any(self, *kinds: Kind) -> Bools:
        """Which of all ops are of these kinds."""
        return np.isin(self._kind, [int(kind) for kind in kinds])

    def where(self, condition: str) -> Bools:
        """Which of all ops are of a kind that has a property of `Kind`, by the property's name."""
        return kinds_where(condition)[self._kind]

    def every(self) -> Ops:
        """All ops of the program."""
        return self._ops

    def with_trained_units(self, ops: Ops) -> Ops:
        """Ops about a rank, repeated for every unit of it that is trained."""
        ops = self.with_units_of_rank(ops)
        return ops.where(self.unit.trained[ops.unit])

    def with_units_of_rank(self, ops: Ops) -> Ops:
        """Ops about a rank, repeated for every unit of it."""
        return _repeated(
            ops, [np.flatnonzero(self.unit.rank == r) for r in self.unit.rank[ops.unit]]
        )

    def with_units_of_part(self, ops: Ops) -> Ops:
        """Ops about a stage, repeated for every unit of the rank's part of it."""
        first, last = self.unit.first_of_part[ops.unit], self.unit.last_of_part[ops.unit]
        return _repeated(ops, [np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])

    # ---- turns --------------------------------------------------------------------------

    def _cells(self, ops: Ops) -> Ints:
        place = self.unit.place(ops.unit, ops.micro_batch)
        return ops.step * self.states.cells + self.states.unit_cell[ops.unit] + place

    def _unit_turns(self, family: str, taking: Bools) -> Ints:
        """Steps x units: the turn of its op that takes a slot among its rank's; -1: it has none."""
        key = family, -1
        if key not in self._turns:
            turns = np.full((self.setup.period, len(self.unit.rank)), -1, dtype=np.int64)
            ops = self._ops.where(taking)
            turns[ops.step, ops.unit] = _turn_on_rank(self.unit.rank[ops.unit])
            self._turns[key] = turns
        return self._turns[key]

    @cached_property
    def _view_fetches(self) -> Fetches:
        """The fetches of views. One is named by the use that it is for: a forward, a recovery or a
        backward, at level 3 the gather for it."""
        every, cells = self._ops, self.states.cells * self.setup.period
        per_use = self.gathered_per_use(every.unit)
        gathers = (Kind.Gather_F,), (Kind.Gather_B,), (Kind.Gather_B,)
        sides = ((Kind.F,), (Kind.R,), (Kind.B, Kind.I)), gathers
        first = np.full((3, cells), NEVER, dtype=np.int64)
        for uses, chosen in zip(sides, (~per_use, per_use), strict=True):
            for side, kinds_of_side in enumerate(uses):
                ops = every.where(chosen & self.is_any(*kinds_of_side))
                np.minimum.at(first[side], self._cells(ops), ops.op)
        named = (Kind.FetchView_F, Kind.FetchView_R, Kind.FetchView_B)
        fetches = every.where(self.is_any(*named))
        side = np.searchsorted([int(kind) for kind in named], self._kind[fetches.op])
        use = first[side, self._cells(fetches)]
        return Fetches(fetches.op, fetches.unit, use, _turn_on_rank(self.unit.rank[fetches.unit]))

    def _slot_turns(self, family: str, taking: Bools, asked: Kind | None) -> Ints:
        """For each (unit, micro-batch) cell of each step, its turn among its rank's ops that take
        a slot; where a cell's ops take several, that of the kind `asked`.

        Ops are numbered lane by lane, so their numbers have the order of the lane. A cell that
        no op serves has turn -1.
        """
        turns = np.full(self.states.cells * self.setup.period, -1, dtype=np.int64)
        if not self.states.slots[family].any():
            return turns
        chosen = np.flatnonzero(taking)
        turn = _turn_on_rank(self.unit.rank[self._ops.unit[chosen]])
        served = slice(None) if asked is None else self._kind[chosen] == asked
        turns[self._cells(self._ops.where(chosen[served]))] = turn[served]
        return turns

    def _renewed_in(self, family: str) -> Ints:
        """Steps x units: how often a lasting family's states are written in a step."""
        writes = np.zeros((self.setup.period, len(self.unit.rank)), dtype=np.int64)
        if self.setup.period > 1 or self.setup.averages:
            chosen = self.is_any(*(kind for kind in Kind if family in kind.renews))
            np.add.at(writes, (self._ops.step[chosen], self._ops.unit[chosen]), 1)
        return writes

    def _renewed_before(self, family: str) -> Ints:
        """Steps x units: how often a lasting family's states have been written before a step."""
        if family not in self._renewals:
            writes = self._renewed_in(family)
            self._renewals[family] = np.cumsum(writes, axis=0) - writes
        return self._renewals[family]


def _differs(*columns: Ints) -> Bools:
    """For each row but the first whether it differs from the row before."""
    return np.any([np.diff(column) != 0 for column in columns], axis=0)


def _turn_on_rank(rank: Ints) -> Ints:
    """For each of some ops, on these ranks, how many of its rank are before it."""
    by_rank = np.argsort(rank, kind="stable")
    first = np.searchsorted(rank[by_rank], rank[by_rank])
    turn = np.empty(len(rank), dtype=np.int64)
    turn[by_rank] = np.arange(len(rank)) - first
    return turn


def _repeated(ops: Ops, units: list[Ints]) -> Ops:
    counts = [len(row) for row in units]
    repeated = ops.where(np.repeat(np.arange(len(ops)), counts))
    return repeated.about(np.concatenate(units) if units else repeated.unit)
