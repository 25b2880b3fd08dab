"""Every unit of every member in one row of columns: what `g` counts in the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratrain.program.replicas import Recovery
from ratrain.program.setup import Setup
from ratrain.program.tiers import SETTINGS, TIERS, WAITING

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

RECOVERY_CODE = {mode: code for code, mode in enumerate(Recovery)}


@dataclass(frozen=True)
class Units:
    """Columns over units. Ranks, stages and parts are numbered over all replicas; a part is one
    member's share of a stage. Unit numbers are rows of these columns, -1 for none."""

    replica: Ints
    rank: Ints
    stage: Ints
    stage_in_replica: Ints
    part: Ints
    unit_in_stage: Ints
    first_of_part: Ints
    last_of_part: Ints
    micro_batches: Ints  # that its member computes, joined ones counted as one
    recovery: Ints  # a RECOVERY_CODE
    recovered: Bools
    tensor: Ints
    joined: Ints  # micro-batches that each of its ops computes at once
    tiers: Mapping[str, Ints]  # where its states of each sort wait (WAITING): an index into TIERS
    same: Ints  # units of one name have one number
    together: Ints  # those that add up one gradient: of one name, where sites average of one site
    holders: Ints  # ranks that hold a unit of its name
    peers: Ints  # those of them that add up its gradient
    trained: Bools  # it has a gradient, and is updated
    averaged: Bools  # ranks that update it apart average its weights
    shared: Bools  # its holders have the same weights after every step
    reduced: Bools  # its gradient is reduced over its holders
    has_input: Bools  # all but the model's first unit
    has_output: Bools  # all but the model's last unit
    next_unit: Ints  # the one that takes its output, on the same rank
    previous_unit: Ints  # the one that takes its input's gradient, on the same rank
    tied_to: Ints  # the unit that holds a copy of the same matrix
    input_parts: Ints  # messages that fill its input
    output_parts: Ints  # messages that fill the gradient of its output
    position: Ints | None  # parts x micro-batches: the place among its own; None: all have all

    @property
    def next_is_local(self) -> Bools:
        return self.next_unit >= 0

    @property
    def next_is_remote(self) -> Bools:
        return self.has_output & (self.next_unit < 0)

    @property
    def previous_is_local(self) -> Bools:
        return self.previous_unit >= 0

    @property
    def previous_is_remote(self) -> Bools:
        return self.has_input & (self.previous_unit < 0)

    def waits(self, name: str) -> Bools:
        """Units whose states of a sort wait in another tier than the device's."""
        return self.tiers[name] > 0

    def place(self, g: Ints, m: Ints) -> Ints:
        """The place of a micro-batch among those that a unit's member computes."""
        return m if self.position is None else self.position[self.part[g], m]

    def first_micro_batch(self, g: Ints) -> Ints:
        """The first of the micro-batches that a unit's member computes."""
        if self.position is None:
            return np.zeros_like(g)
        return (self.position[self.part[g]] == 0).argmax(axis=1)


def unit_columns(setup: Setup) -> Units:
    """The `Units` of a setup."""
    rows = list(_rows(setup))
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    replica, rank, stage = columns[:3]
    last_stage = np.array([len(r.stages) - 1 for r in setup.replicas], dtype=np.int64)[replica]
    stage_in_replica, first, last = columns[3], columns[6], columns[7]
    number = np.arange(len(replica))
    has_input = (stage_in_replica > 0) | (number > first)
    has_output = (stage_in_replica < last_stage) | (number < last)
    following = _next_units(rank, stage, first, number, has_output, last)
    preceding = np.full(len(number), -1, dtype=np.int64)
    preceding[following[following >= 0]] = number[following >= 0]
    names = [unit.name for member in setup.members for unit in member.units]
    _, same = np.unique(np.array(names), return_inverse=True)
    holders = np.array([setup.holders[name] for name in names], dtype=np.int64)
    trained = np.array([not u.frozen for member in setup.members for u in member.units])
    peers = np.array(
        [setup.peers_of[r][name] for r, name in zip(replica.tolist(), names, strict=True)],
        dtype=np.int64,
    )
    shared = peers > 1
    sites = [each.site or 0 for each in setup.replicas]
    site = np.array(sites, dtype=np.int64)[replica]
    together = same * (int(site.max()) + 1) + site if setup.averages else same
    joined, recovered = columns[12], columns[10].astype(bool)
    input_parts, output_parts = _parts(stage, joined, has_input, has_output)
    tied_to = _tied_to(setup, has_input, has_output)
    can_wait = {
        "optimizer": trained,
        "view": np.ones_like(trained),
        "input": recovered & has_input,
        "gradient": trained & ~(shared & setup.per_micro_batch) & (tied_to < 0),
        "saved": columns[9] == RECOVERY_CODE[Recovery.SPILL],
    }
    settings = dict(zip(SETTINGS, columns[13:], strict=True))
    return Units(
        *columns[:10],
        recovered=recovered,
        tensor=columns[11],
        joined=joined,
        tiers={
            name: np.where(can_wait[name], settings[row.setting], 0)
            for name, row in WAITING.items()
        },
        same=same.astype(np.int64),
        together=together.astype(np.int64),
        holders=holders,
        peers=peers,
        trained=trained,
        averaged=trained & (holders > peers),
        shared=shared,
        reduced=shared & trained,
        has_input=has_input,
        has_output=has_output,
        next_unit=following,
        previous_unit=preceding,
        tied_to=tied_to,
        input_parts=np.where(preceding < 0, input_parts, 1),
        output_parts=np.where(following < 0, output_parts, 1),
        position=_positions(setup),
    )


def _rows(setup: Setup) -> Iterator[tuple[int, ...]]:
    stage_number = part = row = 0
    for index, replica in enumerate(setup.replicas):
        base = setup.first_rank[index]
        for local, stage in enumerate(replica.stages):
            for member in stage.members:
                first, last = row, row + len(member.units) - 1
                head = (index, base + member.rank, stage_number, local, part)
                count, code = len(replica.computes(member)), RECOVERY_CODE[member.recovery]
                tiers = [TIERS.index(getattr(member, setting)) for setting in SETTINGS]
                for number, unit in enumerate(member.units):
                    recovered = unit.recoverable and member.recovery.again
                    tail = (count, code, int(recovered), member.tensor, member.joined)
                    yield (*head, number, first, last, *tail, *tiers)
                row, part = last + 1, part + 1
            stage_number += 1


def _next_units(
    rank: Ints, stage: Ints, first: Ints, number: Ints, has_output: Bools, last: Ints
) -> Ints:
    """For each unit the one behind it, where that is on the same rank."""
    inside = number < last
    following = np.where(inside, number + 1, -1)
    ends = np.flatnonzero(~inside & has_output)
    starts = np.flatnonzero(first == number)
    ranks = int(rank.max()) + 1
    at = np.full(int(stage.max() + 1) * ranks + ranks, -1, dtype=np.int64)
    at[stage[starts] * ranks + rank[starts]] = starts
    following[ends] = at[(stage[ends] + 1) * ranks + rank[ends]]
    return following


def _parts(stage: Ints, joined: Ints, has_input: Bools, has_output: Bools) -> tuple[Ints, Ints]:
    """For each unit how many messages bring what its stage gets from the stage before, and from the
    one behind: as many as that computes apart of what an op of this one computes at once."""
    of_stage = np.ones(int(stage.max()) + 3, dtype=np.int64)
    of_stage[stage + 1] = joined  # all members of a stage join as many
    before, behind = of_stage[stage], of_stage[stage + 2]
    return (
        np.where(has_input, np.maximum(joined // before, 1), 1),
        np.where(has_output, np.maximum(joined // behind, 1), 1),
    )


def _positions(setup: Setup) -> Ints | None:
    if all(member.serves is None for member in setup.members) and not setup.joins:
        return None
    most = max(replica.micro_batches for replica in setup.replicas)
    rows: list[Ints] = []
    for replica in setup.replicas:
        for stage in replica.stages:
            for member in stage.members:
                served = np.array(replica.serves(member), dtype=np.int64)
                row = np.full(most, -1, dtype=np.int64)
                row[served] = np.arange(len(served)) // member.joined
                rows.append(row)
    return np.array(rows)


def _tied_to(setup: Setup, has_input: Bools, has_output: Bools) -> Ints:
    """Each replica's first unit and its last belong together, where the setup is tied."""
    partner = np.full(len(has_input), -1, dtype=np.int64)
    if setup.tied:
        first, last = np.flatnonzero(~has_input), np.flatnonzero(~has_output)
        partner[first], partner[last] = last, first
    return partner
