"""Who waits for whom: derived from the uses of states and from the order of each lane.

One rule for every state. Its versions follow each other; within a version first the write, then
the reads, then at most one free. From this come four kinds of waiting:

    LANE       the op before on the same lane
    READ       a read waits for the write of its version
    FREE       a free waits for the reads of its version
    OVERWRITE  the write of the next version waits for the reads of this one, or for its free
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratrain.program.binding import FREE, READ, WRITE, Uses
from ratrain.program.states import States
from ratrain.program.units import Bools, Ints

LANE_EDGE, READ_EDGE, FREE_EDGE, OVERWRITE_EDGE = 0, 1, 2, 3


@dataclass(frozen=True)
class EdgeList:
    """`target` waits for `source`, because of `state` (-1: because of the lane)."""

    source: Ints
    target: Ints
    kind: Ints
    state: Ints


@dataclass(frozen=True)
class Edges:
    """Waiting inside a step, and of one step's ops (targets) for the step before (sources).

    The three problems are uses that no schedule can serve; `verify` names them.
    """

    inside: EdgeList
    across: EdgeList
    unwritten: Ints  # uses that read or free a version that nothing writes
    written_twice: Ints  # uses that write a version that another use writes
    freed_twice: Ints  # uses that free a version that another use frees
    unfreed: Ints  # states that are neither freed nor kept, so that they leak


def derive_edges(uses: Uses, states: States, lane: Ints) -> Edges:
    """The `Edges` of ops that use states. `lane` names each op's lane; ops are in lane order."""
    order = _by_state_and_version(uses)
    state, version = uses.state[order], uses.version[order]
    mode, op = uses.mode[order], uses.op[order]
    writes = np.bincount(state[mode == WRITE], minlength=len(states.rank))

    # A block is one version of one state.
    changes = np.r_[True, (state[1:] != state[:-1]) | (version[1:] != version[:-1])]
    block = np.cumsum(changes) - 1
    blocks = int(block[-1]) + 1
    block_state, block_version = state[changes], version[changes]
    writer, second_writer = _only(block, mode == WRITE, blocks)
    freer, second_freer = _only(block, mode == FREE, blocks)
    reads = np.flatnonzero(mode == READ)
    read_block = block[reads]
    unread = np.ones(blocks, bool)
    unread[read_block] = False

    # The write that ends a block, in this step or (for the last version) in the next one.
    same_state = block_state[1:] == block_state[:-1]
    closer = np.where(np.r_[same_state, False], np.r_[writer[1:], -1], -1)
    first_writer = np.full(len(states.rank), -1, dtype=np.int64)
    ones = np.flatnonzero((block_version == 1) & (writer >= 0))
    first_writer[block_state[ones]] = writer[ones]
    is_last = (block_version == writes[block_state]) & (writer >= 0)
    next_closer = np.where(is_last, first_writer[block_state], -1)
    # Version 0 of a carried state is the last version of the step before.
    last_writer = np.full(len(states.rank), -1, dtype=np.int64)
    last_writer[block_state[is_last]] = writer[is_last]
    carried = states.persistent[block_state] & (block_version == 0)
    previous_writer = np.where(carried, last_writer[block_state], -1)

    inside = _Collector(op, state)
    inside.add(writer[read_block], reads, READ_EDGE)
    inside.add(freer[read_block], reads, FREE_EDGE, reverse=True)
    inside.add(writer[unread], freer[unread], FREE_EDGE)
    across = _Collector(op, state)
    across.add(previous_writer[read_block], reads, READ_EDGE)
    for found, ending in ((inside, closer), (across, next_closer)):
        kept = np.where(freer[read_block] < 0, ending[read_block], -1)
        found.add(kept, reads, OVERWRITE_EDGE, reverse=True)
        found.add(np.where(freer >= 0, freer, -1), ending, OVERWRITE_EDGE)
        found.add(np.where(unread & (freer < 0), writer, -1), ending, OVERWRITE_EDGE)

    lost = (mode != WRITE) & (writer[block] < 0) & ~carried[block]
    return Edges(
        inside=inside.with_lanes(lane, across=False),
        across=across.with_lanes(lane, across=True),
        unwritten=order[lost],
        written_twice=order[second_writer],
        freed_twice=order[second_freer],
        unfreed=_leaks(states.persistent, block_state[freer >= 0], writes),
    )


def _by_state_and_version(uses: Uses) -> Ints:
    """Rows of uses by state, version and mode. One integer holds all of it and the row, where it
    fits: sorting plain integers is several times faster than sorting by columns."""
    rows = len(uses.op)
    row_bits = max(rows - 1, 1).bit_length()
    version_bits = int(uses.version.max(initial=1)).bit_length()
    if int(uses.state.max(initial=1)).bit_length() + version_bits + 2 + row_bits > 62:
        return np.lexsort((uses.mode, uses.version, uses.state))
    key = (uses.state << version_bits) | uses.version
    key = ((key << 2 | uses.mode) << row_bits) | np.arange(rows)
    key.sort()
    return key & ((1 << row_bits) - 1)


class _Collector:
    """Edges found so far, as pairs of rows of the sorted uses."""

    def __init__(self, op: Ints, state: Ints) -> None:
        self._op, self._state = op, state
        self._found: list[tuple[Ints, Ints, int]] = []

    def add(self, source: Ints, target: Ints, kind: int, *, reverse: bool = False) -> None:
        """Edges from source to target rows, where both exist (-1: does not)."""
        exist = (source >= 0) & (target >= 0)
        pair = (target[exist], source[exist]) if reverse else (source[exist], target[exist])
        self._found.append((*pair, kind))

    def with_lanes(self, lane: Ints, *, across: bool) -> EdgeList:
        """What was found, and the lane edges: neighbours, or a lane's end to its next start."""
        same = lane[1:] == lane[:-1]
        if across:
            before, after = np.flatnonzero(np.r_[~same, True]), np.flatnonzero(np.r_[True, ~same])
        else:
            before = np.flatnonzero(same)
            after = before + 1
        rows = np.concatenate([source for source, _, _ in self._found])
        source = self._op[rows]
        target = self._op[np.concatenate([target for _, target, _ in self._found])]
        kind = np.repeat(
            np.array([kind for *_, kind in self._found]), [len(pair[0]) for pair in self._found]
        )
        other = (source != target) | across
        return EdgeList(
            np.r_[before, source[other]],
            np.r_[after, target[other]],
            np.r_[np.full(len(before), LANE_EDGE), kind[other]],
            np.r_[np.full(len(before), -1), self._state[rows][other]],
        )


def _only(block: Ints, chosen: Bools, blocks: int) -> tuple[Ints, Ints]:
    """For each block its first chosen row (-1: none), and all further chosen rows."""
    rows = np.flatnonzero(chosen)
    first = np.full(blocks, -1, dtype=np.int64)
    first[block[rows][::-1]] = rows[::-1]
    return first, rows[first[block[rows]] != rows]


def _leaks(persistent: Bools, freed_states: Ints, writes: Ints) -> Ints:
    """States written in a step, neither persistent nor freed in it."""
    freed = np.zeros(len(persistent), bool)
    freed[freed_states] = True
    return np.flatnonzero((writes > 0) & ~persistent & ~freed)
