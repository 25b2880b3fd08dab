"""Pass about the gradient as a whole: its norm over all layers and ranks, before any update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ratrain.program.actions import NONE, Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program


def clip_global_norm(program: Program) -> Program:
    """Global-norm clipping, and the overflow check of fp16: one ClipNorm a rank before its updates.

    Moves every update of a rank after all of its reduced gradients, and after those of every
    other rank: all ClipNorms meet. Safe because it reads gradients and writes nothing, and no
    gradient waits for an update of the same step. Costs the overlap of updates with the
    backwards (no layer is updated before every gradient of every rank has arrived),
    and one small collective over all ranks. Pascanu et al. 2013, arXiv 1211.5063.
    """

    def clipped(rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        first = min(number for number, _ in program.held_by(rank))
        ordered = list(actions)
        barriers = [action for action in ordered if action.kind is Kind.AllSynced]
        yield from barriers
        yield Action(Kind.ClipNorm, first, 0, NONE)
        yield from ordered[len(barriers) :]

    return program.edit("clip-global-norm", Lane.UPDATE, by=clipped)
