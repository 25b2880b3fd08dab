"""Messages between neighbouring stages. A send and its receive happen together.

Where neighbours compute other numbers of micro-batches at once, a message has those of the smaller
number: the tensors of a larger number are sent in parts, and are joined where they arrive.
"""

from __future__ import annotations

from ratrain.program.binding import Binding
from ratrain.program.kind import Cost, Kind, Lane, Partners, Scope
from ratrain.program.kinds.inputs import made_input
from ratrain.program.rules import declare
from ratrain.program.units import Ints
from ratrain.program.uses import Ops, Ref


def _send_output(b: Binding, ops: Ops) -> None:
    """SEND_F: a stage's output leaves its slot, which the output after the next takes over."""
    b.reads(ops, b.part_slot("sendx", ops))


def _receive_input(b: Binding, ops: Ops) -> None:
    """RECV_F: the input of a stage's first unit arrives."""
    _write_part(b, ops, made_input(b, ops), b.unit.input_parts[ops.unit])


def _send_gradient(b: Binding, ops: Ops) -> None:
    """SEND_B: the gradient of a stage's input leaves its slot."""
    b.reads(ops, b.part_slot("sendg", ops))


def _receive_gradient(b: Binding, ops: Ops) -> None:
    """RECV_B: the gradient of a stage's output arrives, for its last unit."""
    last = ops.about(b.unit.last_of_part[ops.unit])
    _write_part(b, last, b.outgrad(last), b.unit.output_parts[last.unit])


def _write_part(b: Binding, ops: Ops, whole: Ref, parts: Ints) -> None:
    """Writes what a message brings beside the parts that are there: each part is a version, and
    `whole` is the last."""
    part = ops.micro_batch % b.unit.joined[ops.unit] // (b.unit.joined[ops.unit] // parts)
    before = whole.version - parts + part
    further = part > 0
    b.reads(ops.where(further), Ref(whole.state[further], before[further]))
    b.writes(ops, Ref(whole.state, before + 1))


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
    receives=Kind.SEND_F,
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
    receives=Kind.SEND_B,
)
