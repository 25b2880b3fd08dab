"""Inputs that wait for backward in host memory: copied out after forward, and back in time."""

from __future__ import annotations

from ratrain.program.binding import Binding, Ops
from ratrain.program.kind import Cost, Lane, Scope
from ratrain.program.kinds.inputs import fetched_input, made_input
from ratrain.program.rules import declare


def _offload_input(b: Binding, ops: Ops) -> None:
    """OffloadInput: a unit's input leaves the slot that it was made in, for host memory."""
    b.reads(ops, made_input(b, ops))
    b.writes(ops, b.cell("hosted", ops))


def _fetch_input(b: Binding, ops: Ops) -> None:
    """FetchInput: it comes back, into a slot that the fetch after the next takes over."""
    hosted = b.cell("hosted", ops)
    b.reads(ops, hosted)
    b.writes(ops, fetched_input(b, ops))
    b.frees(ops, hosted)


declare(
    "OffloadInput",
    Lane.OFFLOAD,
    Scope.UNIT_MICRO_BATCH,
    _offload_input,
    cost=Cost.COPY_INPUT,
    method="offload_input",
)
declare(
    "FetchInput",
    Lane.FETCH,
    Scope.UNIT_MICRO_BATCH,
    _fetch_input,
    cost=Cost.COPY_INPUT,
    method="fetch_input",
)
