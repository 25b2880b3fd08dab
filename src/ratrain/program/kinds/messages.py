"""Messages between neighbouring stages. A send and its receive happen together."""

from __future__ import annotations

from ratrain.program.binding import Binding, Ops
from ratrain.program.kind import Cost, Lane, Partners, Scope
from ratrain.program.kinds.inputs import made_input
from ratrain.program.rules import declare


def _send_output(b: Binding, ops: Ops) -> None:
    """SEND_F: a stage's output leaves its slot, which the output after the next takes over."""
    b.reads(ops, b.part_slot("sendx", ops))


def _receive_input(b: Binding, ops: Ops) -> None:
    """RECV_F: the input of a stage's first unit arrives."""
    b.writes(ops, made_input(b, ops))


def _send_gradient(b: Binding, ops: Ops) -> None:
    """SEND_B: the gradient of a stage's input leaves its slot."""
    b.reads(ops, b.part_slot("sendg", ops))


def _receive_gradient(b: Binding, ops: Ops) -> None:
    """RECV_B: the gradient of a stage's output arrives, for its last unit."""
    b.writes(ops, b.outgrad(ops.about(b.unit.last_of_part[ops.unit])))


_MESSAGE = Scope.STAGE_MICRO_BATCH
declare(
    "SEND_F",
    Lane.SEND_F,
    _MESSAGE,
    _send_output,
    partners=Partners.NEXT_STAGE,
    cost=Cost.SEND_OUTPUT,
    method="send_output",
)
declare(
    "RECV_F",
    Lane.RECV_F,
    _MESSAGE,
    _receive_input,
    partners=Partners.PREVIOUS_STAGE,
    cost=Cost.RECEIVE_INPUT,
    method="receive_input",
)
declare(
    "SEND_B",
    Lane.SEND_B,
    _MESSAGE,
    _send_gradient,
    partners=Partners.PREVIOUS_STAGE,
    cost=Cost.SEND_GRADIENT,
    method="send_gradient",
)
declare(
    "RECV_B",
    Lane.RECV_B,
    _MESSAGE,
    _receive_gradient,
    partners=Partners.NEXT_STAGE,
    cost=Cost.RECEIVE_GRADIENT,
    method="receive_gradient",
)
