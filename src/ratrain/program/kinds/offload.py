"""States that wait in another memory tier: inputs for backward, optimizers for their update."""

from __future__ import annotations

from collections.abc import Callable

from ratrain.program.binding import Binding, Ops
from ratrain.program.families import optimizer_family
from ratrain.program.kind import Cost, Lane, Scope
from ratrain.program.kinds.inputs import fetched_input, made_input
from ratrain.program.rules import declare
from ratrain.program.tiers import DISK, HOST, TIERS


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


def _fetch_optimizer(b: Binding, ops: Ops) -> None:
    """FetchOptimizer: a unit's optimizer states come into a slot, which the fetch after the next
    takes over."""
    _of_tiers(b, ops, lambda there, family: b.reads(there, b.lasting(family, there)))
    b.writes(ops, b.fetched_optimizer(ops))


def _store_optimizer(b: Binding, ops: Ops) -> None:
    """StoreOptimizer: the updated ones go back, over those that the step began with."""
    b.reads(ops, b.fetched_optimizer(ops).next())
    _of_tiers(b, ops, lambda there, family: b.writes(there, b.lasting(family, there).next()))


def _of_tiers(b: Binding, ops: Ops, use: Callable[[Ops, str], None]) -> None:
    """The ops by the tier of their unit's optimizer states, with the family of these."""
    for number, tier in enumerate(TIERS):
        there = ops.where(b.unit.optimizer_tier[ops.unit] == number)
        if len(there):
            use(there, optimizer_family(tier))


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
declare(
    "FetchOptimizer",
    Lane.LOAD,
    Scope.UNIT,
    _fetch_optimizer,
    cost=Cost.MOVE_OPTIMIZER,
    method="fetch_optimizer",
)
declare(
    "StoreOptimizer",
    Lane.STORE,
    Scope.UNIT,
    _store_optimizer,
    cost=Cost.MOVE_OPTIMIZER,
    method="store_optimizer",
    renews=tuple(map(optimizer_family, (HOST, DISK))),
)
