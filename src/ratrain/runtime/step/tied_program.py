"""Whether a program keeps a tied matrix' copies equal. Needs no torch: the launcher asks too."""

from __future__ import annotations

from itertools import pairwise

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.program.kind import Kind
from ratrain.program.program import Program


def require_tied(model: ModelSpec, program: Program) -> None:
    """Refuses a program that would let the copies of a tied matrix drift apart, and one of an older
    version, which added them up ahead of the reduction."""
    if not model.tied_embeddings:
        return
    fix = "start a new run, without --resume"
    if not program.setup.tied:
        what = f"{model.name} ties its embedding and its head, and this run's program does not"
        raise SpecError(what, place="program", fix=fix)
    for actions in program.lanes.values():
        kinds = [action.kind for action in actions if action.kind in (Kind.GradSync, Kind.TieSync)]
        if (Kind.TieSync, Kind.GradSync) in pairwise(kinds):
            what = "adds tied gradients up before it reduces them, as older versions did"
            raise SpecError(what, place="program", fix=fix)
