"""Who waits for whom: derived from the uses of states and from the order of each lane.

One rule for every state. Its versions follow each other; within a version first the write, then
the reads, then at most one free. From this come four kinds of waiting:

    LANE       the op before on the same lane
    READ       a read waits for the write of its version
    FREE       a free waits for the reads of its version
    OVERWRITE  the write of the next version waits for the reads of this one, or for its free

Waiting for an op further ahead on the same lane is left out: the lane says it. The compiled form
stands in edges.c; here is its twin.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ratrain.compiled import address, c_long, library
from ratrain.program.units import Bools, Ints
from ratrain.program.uses import FREE, READ, WRITE, Uses

LANE_EDGE, READ_EDGE, FREE_EDGE, OVERWRITE_EDGE = 0, 1, 2, 3


class Kept(Protocol):
    """What the waiting of ops needs to know of states: `rank` has one entry for each."""

    @property
    def rank(self) -> Ints: ...
    @property
    def persistent(self) -> Bools: ...


@dataclass(frozen=True)
class EdgeList:
    """`target` waits for `source`, because of `state` (-1: because of the lane)."""

    source: Ints
    target: Ints
    kind: npt.NDArray[np.int8]
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


def derive_edges(uses: Uses, states: Kept, lane: Ints, *, compiled: bool = True) -> Edges:
    """The `Edges` of ops that use states. `lane` names each op's lane; ops are in lane order."""
    c = library("program", "edges_c") if compiled else None
    return _derived(uses, states, lane) if c is None else _derived_compiled(c, uses, states, lane)


# ---- the call into C --------------------------------------------------------------------


def _derived_compiled(c: ctypes.CDLL, uses: Uses, states: Kept, lane: Ints) -> Edges:
    """What `_derived` answers. Lists have more room than they need, which costs nothing: memory
    that is never written to is never taken."""
    op, state = _in_range(uses.op, len(lane)), _in_range(uses.state, len(states.rank))
    rows, room = len(op), len(lane) + 2 * len(op)
    inside, across = _room_for_edges(room), _room_for_edges(room)
    problems = [np.empty(length, dtype=np.int64) for length in (rows, rows, rows, len(states.rank))]
    counts = np.empty(2 + len(problems), dtype=np.int64)
    persistent = states.persistent.astype(np.int8)
    columns = op, state, uses.version, uses.mode
    c.ratrain_edges.restype = ctypes.c_int64
    failed = c.ratrain_edges(
        *(c_long(rows), *map(address, columns)),
        *(c_long(len(states.rank)), address(persistent), c_long(len(lane)), address(lane)),
        *map(address, (*_columns(inside), *_columns(across), *problems, counts)),
    )
    if failed:
        raise MemoryError("deriving who waits for whom")
    lengths: list[int] = counts.tolist()
    return Edges(
        _first_edges(inside, lengths[0]),
        _first_edges(across, lengths[1]),
        *(problem[:length].copy() for problem, length in zip(problems, lengths[2:], strict=True)),
    )


def _in_range(numbers: Ints, count: int) -> Ints:
    """Numbers of ops or states, which a rule of somebody's own may have got wrong."""
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"a use is of number {numbers.min()} to {numbers.max()}, of {count}")
    return numbers


def _room_for_edges(length: int) -> EdgeList:
    source, target, state = (np.empty(length, dtype=np.int64) for _ in range(3))
    return EdgeList(source, target, np.empty(length, dtype=np.int8), state)


def _columns(edges: EdgeList) -> tuple[npt.NDArray[Any], ...]:
    return edges.source, edges.target, edges.state, edges.kind


def _first_edges(edges: EdgeList, length: int) -> EdgeList:
    source, target, state, kind = (column[:length] for column in _columns(edges))
    return EdgeList(source, target, kind, state)


# ---- the same in Python -----------------------------------------------------------------


def _derived(uses: Uses, states: Kept, lane: Ints) -> Edges:
    order, state, version, mode = _by_state_and_version(uses)
    op = uses.op[order]
    writes = np.bincount(state[mode == WRITE], minlength=len(states.rank))

    # A block is one version of one state.
    changes = np.append(True, (state[1:] != state[:-1]) | (version[1:] != version[:-1]))
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
    first_versions = np.flatnonzero((block_version == 1) & (writer >= 0))
    first_writer[block_state[first_versions]] = writer[first_versions]
    is_last = (block_version == writes[block_state]) & (writer >= 0)
    next_closer = np.where(is_last, first_writer[block_state], -1)
    # Version 0 of a carried state is the last version of the step before.
    last_writer = np.full(len(states.rank), -1, dtype=np.int64)
    last_writer[block_state[is_last]] = writer[is_last]
    carried = states.persistent[block_state] & (block_version == 0)
    previous_writer = np.where(carried, last_writer[block_state], -1)

    inside = _Collector(op, state, lane, across=False)
    inside.add(writer[read_block], reads, READ_EDGE)
    inside.add(freer[read_block], reads, FREE_EDGE, reverse=True)
    inside.add(writer[unread], freer[unread], FREE_EDGE)
    across = _Collector(op, state, lane, across=True)
    across.add(previous_writer[read_block], reads, READ_EDGE)
    for edges, ending in ((inside, closer), (across, next_closer)):
        kept = np.where(freer[read_block] < 0, ending[read_block], -1)
        edges.add(kept, reads, OVERWRITE_EDGE, reverse=True)
        edges.add(np.where(freer >= 0, freer, -1), ending, OVERWRITE_EDGE)
        edges.add(np.where(unread & (freer < 0), writer, -1), ending, OVERWRITE_EDGE)

    lost = (mode != WRITE) & (writer[block] < 0) & ~carried[block]
    return Edges(
        inside=inside.with_lanes(),
        across=across.with_lanes(),
        unwritten=order[lost],
        written_twice=order[second_writer],
        freed_twice=order[second_freer],
        unfreed=_leaks(states.persistent, block_state[freer >= 0], writes),
    )


def _by_state_and_version(uses: Uses) -> tuple[Ints, Ints, Ints, Ints]:
    """Rows of uses by state, version and mode, and these three. One integer holds all of it and the
    row, where it fits: sorting plain integers is several times faster than sorting by columns."""
    rows = len(uses.op)
    row_bits = max(rows - 1, 1).bit_length()
    version_bits = int(uses.version.max(initial=1)).bit_length()
    if int(uses.state.max(initial=1)).bit_length() + version_bits + 2 + row_bits > 62:
        order = np.lexsort((uses.mode, uses.version, uses.state))
        return order, uses.state[order], uses.version[order], uses.mode[order]
    key = (uses.state << version_bits) | uses.version
    key = ((key << 2 | uses.mode) << row_bits) | np.arange(rows)
    key.sort()
    order = key & ((1 << row_bits) - 1)
    key >>= row_bits
    mode = key & 3
    key >>= 2
    return order, key >> version_bits, key & ((1 << version_bits) - 1), mode


class _Collector:
    """Edges found so far, as ops and the states that they are about."""

    def __init__(self, op: Ints, state: Ints, lane: Ints, *, across: bool) -> None:
        self._op, self._state, self._lane, self._across = op, state, lane, across
        self._edges: list[tuple[Ints, Ints, Ints, int]] = []

    def add(self, source: Ints, target: Ints, kind: int, *, reverse: bool = False) -> None:
        """Edges between rows of the sorted uses, from source to target, where both exist (-1: does
        not) and the order of lanes does not say so already."""
        exist = np.flatnonzero((source >= 0) & (target >= 0))
        before, after = (target, source) if reverse else (source, target)
        rows = before[exist]
        sources, targets = self._op[rows], self._op[after[exist]]
        new = np.flatnonzero(~self._implied(sources, targets))
        self._edges.append((sources[new], targets[new], self._state[rows[new]], kind))

    def _implied(self, source: Ints, target: Ints) -> Bools:
        """Edges to later ops of the same lane. One to the very next op stays: an op's followers are
        released in the order of its edges, and the simulator's ties depend on it."""
        lane = self._lane
        same = lane[source] == lane[target]
        if self._across:
            is_end = np.append(lane[1:] != lane[:-1], True)
            return same & ~(is_end[source] & np.roll(is_end, 1)[target])
        return (source == target) | (same & (target > source + 1))

    def with_lanes(self) -> EdgeList:
        """What was found, and the lane edges: neighbours, or a lane's end to its next start."""
        same = self._lane[1:] == self._lane[:-1]
        if self._across:
            before = np.flatnonzero(np.append(~same, True))
            after = np.flatnonzero(np.append(True, ~same))
        else:
            before = np.flatnonzero(same)
            after = before + 1
        edges = [(before, after, np.full(len(before), -1), LANE_EDGE), *self._edges]
        source, target, state, kinds = zip(*edges, strict=True)
        return EdgeList(
            np.concatenate(source),
            np.concatenate(target),
            np.repeat(np.array(kinds, dtype=np.int8), [len(rows) for rows in source]),
            np.concatenate(state),
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
