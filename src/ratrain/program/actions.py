"""The words of a program: how an op is written.

A word is `<stage>[.<unit>]<Kind>[<micro-batch>][@<step>]`: `2F0` is the forward of micro-batch 0
on stage 2, `2.1R7` the recovery of unit 1 of stage 2 for micro-batch 7, `0.3GradSync` a gradient
reduction that belongs to no micro-batch, `2F0@1` a forward of the second step that a program of
several steps spells out. Kinds shared with PyTorch pipelining (F, B, I, W,
SEND_F, ...) are spelled as PyTorch spells them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ratrain.errors import ProgramError
from ratrain.program.kind import Kind, Lane
from ratrain.readers.files import shown

__all__ = ["NONE", "Action", "Kind", "Lane", "format_action", "parse_action"]

NONE = -1
"""Stands in an action for "belongs to no micro-batch"."""


class Action(NamedTuple):
    """One op of a program. `stage` and `unit` count within the rank's replica and the stage, `step`
    within the steps that the program spells out."""

    kind: Kind
    stage: int
    unit: int
    micro_batch: int
    step: int = 0


_WORD = re.compile(
    r"(\d{1,6})(?:\.(\d{1,6}))?([A-Za-z_]{1,40}?)(\d{1,7})?(?:@(\d{1,6}))?", re.ASCII
)
"""Of bounded length: a program has at most a million stages, units and micro-batches."""


def format_action(action: Action, units_of_stage: int) -> str:
    """The word for an action; the unit is left out where the stage has only one."""
    kind, stage, unit, micro_batch, step = action
    with_unit = units_of_stage > 1 and not kind.whole_stage
    return (
        f"{stage}{f'.{unit}' if with_unit else ''}{kind.name}"
        f"{micro_batch if micro_batch != NONE else ''}{f'@{step}' if step else ''}"
    )


def is_word(word: str) -> bool:
    """Whether a word has the form of an action's, of whatever kind."""
    return _WORD.fullmatch(word) is not None


def parse_action(word: str, place: str = "") -> Action:
    """The action that a word stands for; a `ProgramError` names the word and its place."""
    match = _WORD.fullmatch(word)
    if match is None:
        raise ProgramError(
            f"{shown(word)} is not an action", place=place, fix="write e.g. 2F0 or 2.1R7"
        )
    stage, unit, kind, micro_batch, step = match.groups()
    if not Kind.has(kind):
        raise ProgramError(
            f"{shown(word)} does not name a kind of op",
            place=place,
            fix=f"use one of {', '.join(kind.name for kind in Kind)}",
        )
    return Action(
        Kind.named(kind),
        int(stage),
        int(unit) if unit is not None else 0,
        int(micro_batch) if micro_batch is not None else NONE,
        int(step) if step is not None else 0,
    )
