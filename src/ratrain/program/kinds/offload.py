"""States that wait in another memory tier between their uses: how they come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from ratrain.program.binding import Binding
from ratrain.program.kind import Lane, Scope
from ratrain.program.kinds.inputs import fetched_input, made_input
from ratrain.program.rules import declare
from ratrain.program.tiers import DISK, HOST, waiting_family
from ratrain.program.uses import Ops, Ref


def _offload_input(b: Binding, ops: Ops) -> None:
    """OffloadInput: a unit's input leaves the slot that it was made in, for another tier."""
    b.reads(ops, made_input(b, ops))
    b.in_tiers("input", ops, b.writes)


def _fetch_input(b: Binding, ops: Ops) -> None:
    """FetchInput: it comes back, into a slot that the fetch after the next takes over."""
    b.in_tiers("input", ops, b.reads)
    b.writes(ops, fetched_input(b, ops))
    b.in_tiers("input", ops, b.frees)


def _fetch_optimizer(b: Binding, ops: Ops) -> None:
    """FetchOptimizer: a unit's optimizer states come into a slot, which the fetch after the next
    takes over."""
    b.in_tiers("optimizer", ops, b.reads)
    b.writes(ops, b.fetched_optimizer(ops))


def _store_optimizer(b: Binding, ops: Ops) -> None:
    """StoreOptimizer: the updated ones go back, over those that the step began with."""
    b.reads(ops, b.fetched_optimizer(ops).next())
    b.in_tiers("optimizer", ops, lambda there, before: b.writes(there, before.next()))


def _fetch_view(b: Binding, ops: Ops) -> None:
    """FetchView_F, FetchView_R, FetchView_B: a unit's weights come into a slot, for the forward,
    recovery or backward that they name, and for those that follow, until another fetch takes the
    slot over. At level 3 a rank's share, for the gather of that use."""
    b.in_tiers("view", ops, b.reads)
    b.writes(ops, b.arriving_view(ops))


def _store_view(b: Binding, ops: Ops) -> None:
    """StoreView: new weights go there, over those that the step has read."""
    b.reads(ops, b.made_view(ops))
    b.in_tiers("view", ops, lambda there, before: b.writes(there, before.next()))


def _fetch_gradient(b: Binding, ops: Ops) -> None:
    """FetchGradient: a unit's gradient comes into a slot, for the micro-batch that it names and
    those that follow, until another takes the slot over. The last of a step lets it go."""
    arrives, _, number, is_last = b.stay_of_gradient(ops)
    b.writes(ops, arrives)
    for use, some in ((b.reads, np.ones_like(is_last)), (b.frees, is_last)):
        chosen = ops.where(some)
        versions = dict(zip(chosen.op.tolist(), number[some].tolist(), strict=True))
        b.in_tiers("gradient", chosen, partial(_at_version, use, versions))


def _store_gradient(b: Binding, ops: Ops) -> None:
    """StoreGradient: what has added up goes there, behind the micro-batch that it names."""
    _, found, number, _ = b.stay_of_gradient(ops)
    b.reads(ops, found)
    versions = dict(zip(ops.op.tolist(), (number + 1).tolist(), strict=True))
    b.in_tiers("gradient", ops, partial(_at_version, b.writes, versions))


def _store_sum(b: Binding, ops: Ops) -> None:
    """StoreSum: a unit's gradient, with every micro-batch and every replica in it, goes there until
    all gradients of the step are known."""
    b.reads(ops, b.of_all_replicas(ops))
    b.writes(ops, b.stored_sum(ops))


def _fetch_sum(b: Binding, ops: Ops) -> None:
    """FetchSum: it comes back into a slot, for its update."""
    stored = b.stored_sum(ops)
    b.reads(ops, stored)
    b.frees(ops, stored)
    b.writes(ops, b.fetched_sum(ops))


def _at_version(
    use: Callable[[Ops, Ref], None], versions: Mapping[int, int], ops: Ops, ref: Ref
) -> None:
    use(ops, Ref(ref.state, np.array([versions[op] for op in ops.op.tolist()], dtype=np.int64)))


def _spill(b: Binding, ops: Ops) -> None:
    """Spill: what forward has saved leaves its slot for another tier."""
    b.reads(ops, b.saved_out(ops))
    b.in_tiers("saved", ops, b.writes)


def _fill(b: Binding, ops: Ops) -> None:
    """Fill: it comes back, ahead of its backward."""
    b.in_tiers("saved", ops, b.reads)
    b.writes(ops, b.saved_in(ops))
    b.writes(ops, b.cell("refilled", ops))
    b.in_tiers("saved", ops, b.frees)


_CELL = Scope.UNIT_MICRO_BATCH
declare("OffloadInput", Lane.OFFLOAD, _CELL, _offload_input, moves="input", method="offload_input")
declare("FetchInput", Lane.FETCH, _CELL, _fetch_input, moves="input", method="fetch_input")
declare(
    "FetchOptimizer", Lane.LOAD, Scope.UNIT, _fetch_optimizer, moves="optimizer", method="fetch"
)
declare(
    "StoreOptimizer",
    Lane.STORE,
    Scope.UNIT,
    _store_optimizer,
    moves="optimizer",
    method="store",
    renews=tuple(waiting_family("optimizer", tier) for tier in (HOST, DISK)),
)
for _name in ("FetchView_F", "FetchView_R", "FetchView_B"):
    declare(_name, Lane.FETCH, _CELL, _fetch_view, moves="view", method="fetch")
declare(
    "StoreView",
    Lane.OFFLOAD,
    Scope.UNIT,
    _store_view,
    moves="view",
    method="store",
    renews=tuple(waiting_family("view", tier) for tier in (HOST, DISK)),
)
declare("FetchGradient", Lane.FETCH, _CELL, _fetch_gradient, moves="gradient", method="fetch")
declare("StoreGradient", Lane.OFFLOAD, _CELL, _store_gradient, moves="gradient", method="store")
declare("Spill", Lane.OFFLOAD, _CELL, _spill, moves="saved", method="spill")
declare("Fill", Lane.FETCH, _CELL, _fill, moves="saved", method="fill")
declare(
    "StoreSum",
    Lane.OFFLOAD,
    Scope.UNIT,
    _store_sum,
    moves="gradient",
    method="store_sum",
    needs_whole_gradient=True,
)
declare("FetchSum", Lane.FETCH, Scope.UNIT, _fetch_sum, moves="gradient", method="fetch_sum")
