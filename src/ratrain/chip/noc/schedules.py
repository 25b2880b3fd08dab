"""Software collectives as lists of steps: which cluster copies or combines what, step by step.

The baselines of the paper (arXiv 2603.26438 section on software collectives): one by one (naive),
a pipelined chain (seq) and a binary tree. A barrier separates the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc.arithmetic import combine
from ratrain.chip.noc.endpoint import Group
from ratrain.chip.noc.opcodes import Format, Opcode
from ratrain.chip.noc.workload import Place


@dataclass(frozen=True)
class Copy:
    """`source` writes the bytes [start, start + size) of the payload to `target`."""

    source: Place
    target: Place
    start: int
    size: int


@dataclass(frozen=True)
class Combine:
    """`place` adds the bytes it received to its own."""

    place: Place
    start: int
    size: int


Step = list[Copy | Combine]


def split(size: int, batches: int, unit: int) -> list[tuple[int, int]]:
    """At most `batches` pieces (start, size), each a whole number of beats of `unit` bytes."""
    beats = -(-size // unit)
    piece = -(-beats // min(batches, beats)) * unit
    return [(at, min(piece, size - at)) for at in range(0, size, piece)]


def naive_multicast(group: Group, size: int) -> list[Step]:
    """The corner sends to every other member, one after the other."""
    return [[Copy(group.corner, m, 0, size)] for m in group.members if m != group.corner]


def tree_multicast(group: Group, size: int) -> list[Step]:
    """Halving distances: first along the row of the corner, then along all columns."""
    (x0, y0), (mx, my) = group.corner, group.mask
    steps: list[Step] = []
    holders = [group.corner]
    for horizontal, extent in ((True, mx + 1), (False, my + 1)):
        distance = extent // 2
        while distance:
            step: Step = []
            for x, y in list(holders):
                target = (x + distance, y) if horizontal else (x, y + distance)
                step.append(Copy((x, y), target, 0, size))
                holders.append(target)
            steps.append(step)
            distance //= 2
    assert len(holders) == (mx + 1) * (my + 1), (x0, y0)
    return steps


def chain_multicast(group: Group, size: int, batches: int, beat: int) -> list[Step]:
    """Batches move along the corner's row, then up all columns; one hop per step."""
    (x0, y0), (mx, my) = group.corner, group.mask
    row = [(x0 + i, y0) for i in range(mx + 1)]
    columns = [[(x0 + i, y0 + j) for j in range(my + 1)] for i in range(mx + 1)]
    pieces = split(size, batches, beat)
    return _chains([row], pieces) + _chains(columns, pieces)


def _chains(chains: list[list[Place]], pieces: list[tuple[int, int]]) -> list[Step]:
    hops = len(chains[0]) - 1
    if not hops:
        return []
    steps: list[Step] = [[] for _ in range(len(pieces) + hops - 1)]
    for chain in chains:
        for hop, (source, target) in enumerate(pairwise(chain)):
            for number, (start, size) in enumerate(pieces):
                steps[hop + number].append(Copy(source, target, start, size))
    return steps


def tree_reduce(group: Group, size: int, batches: int, beat: int) -> list[Step]:
    """The upper half of every line sends to its lower half, until the corner holds the sum.

    Within a level the copy of a batch runs beside the addition of the batch before.
    """
    (x0, y0), (mx, my) = group.corner, group.mask
    pieces = split(size, batches, beat)
    steps: list[Step] = []
    for horizontal, extent in ((True, mx + 1), (False, my + 1)):
        distance = extent // 2
        lines = range(my + 1) if horizontal else range(1)
        while distance:
            pairs = [
                ((x0 + i, y0 + j), (x0 + i + distance, y0 + j))
                if horizontal
                else ((x0, y0 + i), (x0, y0 + i + distance))
                for i in range(distance)
                for j in lines
            ]
            level: list[Step] = [[] for _ in range(len(pieces) + 1)]
            for number, (start, length) in enumerate(pieces):
                level[number] += [Copy(far, near, start, length) for near, far in pairs]
                level[number + 1] += [Combine(near, start, length) for near, _ in pairs]
            steps += level
            distance //= 2
    return steps


def chain_reduce(group: Group, size: int, batches: int, beat: int) -> list[Step]:
    """Partial sums move from the far end of every row to the corner's column, then down it."""
    (x0, y0), (mx, my) = group.corner, group.mask
    rows = [[(x0 + i, y0 + j) for i in reversed(range(mx + 1))] for j in range(my + 1)]
    column = [(x0, y0 + j) for j in reversed(range(my + 1))]
    pieces = split(size, batches, beat)
    return _summing_chains(rows, pieces) + _summing_chains([column], pieces)


def _summing_chains(chains: list[list[Place]], pieces: list[tuple[int, int]]) -> list[Step]:
    hops = len(chains[0]) - 1
    if not hops:
        return []
    steps: list[Step] = [[] for _ in range(2 * hops + len(pieces) - 1)]
    for chain in chains:
        for hop, (source, target) in enumerate(pairwise(chain)):
            for number, (start, size) in enumerate(pieces):
                steps[2 * hop + number].append(Copy(source, target, start, size))
                steps[2 * hop + number + 1].append(Combine(target, start, size))
    return steps


def replay_sums(
    steps: list[Step],
    blocks: dict[Place, NDArray[np.uint8]],
    corner: Place,
    op: Opcode,
    form: Format,
) -> NDArray[np.uint8]:
    """What the corner holds after the steps, with numpy only; `blocks` is overwritten."""
    received = {p: np.zeros_like(v) for p, v in blocks.items()}
    for step in steps:
        for action in [a for a in step if isinstance(a, Copy)]:
            part = slice(action.start, action.start + action.size)
            received[action.target][part] = blocks[action.source][part]
        for action in [a for a in step if isinstance(a, Combine)]:
            part = slice(action.start, action.start + action.size)
            blocks[action.place][part] = combine(
                op, form, blocks[action.place][part], received[action.place][part]
            )
    return blocks[corner]
