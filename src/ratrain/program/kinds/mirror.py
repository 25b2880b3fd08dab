"""A second owner of every optimizer state: a buddy that makes each update too, in host memory."""

from __future__ import annotations

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Lane, Partners, Scope
from ratrain.program.rules import declare
from ratrain.program.uses import Ops


def _send_gradient(b: Binding, ops: Ops) -> None:
    """MirrorGradient: the own part of a reduced gradient in, which leaves for the buddy; out comes
    the part of the rank whose buddy this one is."""
    b.reads(ops, b.reduced(ops))
    b.writes(ops, b.lasting("mirror_gradient", ops).next())


def _commit(b: Binding, ops: Ops) -> None:
    """Commit: every gradient of a buddy in, on every rank at once. From here on the step can be
    finished without any one of them; until then nobody has changed a state."""
    ops = b.with_trained_units(ops)
    b.reads(ops, b.reduced(ops))
    mirrored = ops.where(b.unit.reduced[ops.unit] & (b.setup.sharding > 0))
    b.reads(mirrored, b.lasting("mirror_gradient", mirrored).next())


def _update(b: Binding, ops: Ops) -> None:
    """MirrorUpdate: the gradient and the states of the buddy in; its new states out over them."""
    states = b.lasting("mirror", ops)
    b.reads(ops, b.lasting("mirror_gradient", ops).next())
    b.reads(ops, states)
    b.writes(ops, states.next())


declare(
    "MirrorGradient",
    Lane.REDUCE,
    Scope.UNIT,
    _send_gradient,
    partners=Partners.PEERS,
    cost=Cost.MIRROR,
    method="mirror_gradient",
    needs_whole_gradient=True,
    renews=("mirror_gradient",),
)
declare(
    "Commit",
    Lane.UPDATE,
    Scope.RANK,
    _commit,
    partners=Partners.EVERYONE,
    cost=Cost.NORM,
    method="commit",
    needs_whole_gradient=True,
    is_commit=True,
)
declare(
    "MirrorUpdate",
    Lane.UPDATE,
    Scope.UNIT,
    _update,
    cost=Cost.MIRROR_UPDATE,
    method="mirror_update",
    needs_whole_gradient=True,
    renews=("mirror",),
)
