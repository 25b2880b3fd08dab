"""The rules: what each kind of op reads, writes and frees. This page is the meaning of a program.

A use names a state and a version: version 0 is what the step begins with, and every write makes
the next one. An op waits for the versions it reads; a write waits for the readers of the
version before; a free waits for all readers. Nothing else orders ops of different lanes.

The rules are applied to all ops of a kind at once, so `g` (units), `m` (micro-batches) and the
state numbers made from them are arrays. Families of states:

    view[g]        weights as compute reads them             optimizer[g]  master weights, moments
    shard_view[g]  this rank's share of a view (level 3)     gradient[g]   whole gradient
    gathered[r,k]  slots for gathered views (level 3)        shard[g]      share of a gradient
    transit[r,k]   slots for unreduced gradients             input[g,m]    input, the checkpoint
    saved[g,m]     what backward needs besides the input     outgrad[g,m]  gradient of the output
    sendx[s,k]     slots for outputs on their way            sendg[s,k]    the same, gradients
    recvg[s,k]     slots for gradients that arrive; each is the outgrad of a stage's last unit
    partial[r,k]   slots for one rank's part of a sum        partialb[r,k] the same, backward
                   of a tensor group, forward
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ratrain.program.actions import Kind
from ratrain.program.setup import Recovery
from ratrain.program.units import RECOVERY_CODE

if TYPE_CHECKING:
    from ratrain.program.binding import Binding
    from ratrain.program.units import Ints


def forward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """F: view and input in; the next input out; what backward needs is saved unless recovered."""
    _read_view(b, op, g, m, Kind.Gather_F)
    has_input = b.unit.has_input[g]
    b.reads(op[has_input], b.input(g, m)[has_input], 1)
    kept = ~b.unit.recovered[g]
    b.writes(op[kept], b.saved(g, m)[kept], 1)
    if b.setup.tensor > 1:
        passes_on = b.unit.has_output[g]
        b.writes(op[passes_on], *b.partial(g[passes_on], m[passes_on]))
    else:
        _hand_on(b, op, g, m)


def recover(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """R: view and checkpoint in, saved out. In backward-time recovery the gradient is awaited."""
    _read_view(b, op, g, m, Kind.Gather_B)
    has_input = b.unit.has_input[g]
    b.reads(op[has_input], b.input(g, m)[has_input], 1)
    b.writes(op, b.saved(g, m), 1)
    awaits = (b.unit.recovery[g] == RECOVERY_CODE[Recovery.BACKWARD]) & b.unit.has_output[g]
    b.reads(op[awaits], *b.outgrad(g[awaits], m[awaits]))


def backward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """B: everything of the micro-batch in and freed; a gradient added, and one handed back."""
    _read_view(b, op, g, m, Kind.Gather_B)
    _read_activations(b, op, g, m, b.saved_version(g))
    _hand_back(b, op, g, m)
    _free_activations(b, op, g, m, b.saved_version(g))
    _accumulate(b, op, g, m)


def input_gradient(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """I: hands the input's gradient back; keeps what the weight gradient needs (saved, + 1)."""
    _read_view(b, op, g, m, Kind.Gather_B)
    _read_activations(b, op, g, m, b.saved_version(g))
    b.writes(op, b.saved(g, m), b.saved_version(g) + 1)
    _hand_back(b, op, g, m)


def weight_gradient(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """W: adds the weight gradient and frees what I kept for it."""
    _read_activations(b, op, g, m, b.saved_version(g) + 1)
    _free_activations(b, op, g, m, b.saved_version(g) + 1)
    _accumulate(b, op, g, m)


def send_forward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """SEND_F: a stage's output leaves its slot, which the output after the next takes over."""
    b.reads(op, *b.sendx(b.unit.stage[g], m))


def receive_forward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """RECV_F: the input of a stage's first unit arrives."""
    b.writes(op, b.input(g, m), 1)


def send_backward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """SEND_B: the gradient of a stage's input leaves its slot."""
    b.reads(op, *b.sendg(b.unit.stage[g], m))


def receive_backward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """RECV_B: the gradient of a stage's output arrives, for its last unit."""
    b.writes(op, *b.outgrad(b.unit.last_of_stage[g], m))


def grad_sync(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """GradSync: once a step, in place; or once a micro-batch, from transit into the shard."""
    if b.setup.per_micro_batch:
        slot, version = b.transit(g, m)
        b.reads(op, slot, version)
        b.reads(op[m > 0], b.shard(g)[m > 0], m[m > 0])
        b.writes(op, b.shard(g), m + 1)
    else:
        complete = b.unit.micro_batches[g]
        b.reads(op, b.gradient(g), complete)
        b.writes(op, b.gradient(g), complete + 1)


def tie_sync(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """TieSync: reduced gradients of two copies of one matrix in; their sum out, the same bits in
    both. One op on each of two ranks, at the same moment; one op where a rank has both copies."""
    other = b.unit.tied_to[g]
    here = b.unit.rank[other] == b.unit.rank[g]
    for own, unit in ((op, g), (op[here], other[here])):
        b.reads(own, b.gradient(unit), b.of_all_replicas(unit))
        b.writes(own, b.gradient(unit), b.of_all_replicas(unit) + 1)


def update_shard(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """UpdateShard: gradient and optimizer in; new optimizer out, and the new weights: as a whole
    view, as a shard of it (level 3), or in the gradient's place until PrefetchW gathers them."""
    gradient, version = b.reduced(g)
    b.reads(op, gradient, version)
    b.reads(op, b.optimizer(g), 0)
    b.writes(op, b.optimizer(g), 1)
    if b.setup.gathers:
        b.writes(op, gradient, version + 1)
    else:
        b.writes(op, b.shard_view(g) if b.setup.gathers_per_use else b.view(g), 1)
        b.frees(op, gradient, version)


def prefetch_view(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """PrefetchW: updated shards in and freed; the next step's view out, over the old one."""
    gradient, version = b.reduced(g)
    b.reads(op, gradient, version + 1)
    b.writes(op, b.view(g), 1)
    b.frees(op, gradient, version + 1)


def _gather(b: Binding, op: Ints, g: Ints, m: Ints, word: Kind) -> None:
    """A view from everyone's shards, into a slot that the next gather but one takes over."""
    b.reads(op, b.shard_view(g), 0)
    b.writes(op, *b.gathered(word, g, m))


def gather_forward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """Gather_F: the view that one forward reads."""
    _gather(b, op, g, m, Kind.Gather_F)


def gather_backward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """Gather_B: the view that one backward, and the recovery before it, read."""
    _gather(b, op, g, m, Kind.Gather_B)


def all_reduce_forward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """AllReduce_F: partial sums in, from a slot that the forward after the next takes over; the
    unit's output out."""
    b.reads(op, *b.partial(g, m))
    _hand_on(b, op, g, m)


def all_reduce_recovery(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """AllReduce_R: the sums of a recovered unit, in place; backward waits for them."""
    b.reads(op, b.saved(g, m), 1)
    b.writes(op, b.saved(g, m), 2)


def all_reduce_backward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """AllReduce_B: partial input gradients in, from a slot; the gradient is handed back."""
    b.reads(op, *b.partialb(g, m))
    _hand_to_previous(b, op, g, m)


def all_backward(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """AllBackward: reads every complete gradient of the rank; with sharded accumulation, those
    of one micro-batch and stage."""
    if b.setup.per_micro_batch:
        op, unit, m = b.units_of_stage(op, g, m)
        b.reads(op, *b.transit(unit, m))
    else:
        op, unit, m = b.units_of_rank(op, g, m)
        b.reads(op, b.gradient(unit), b.unit.micro_batches[unit])


def all_synced(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """AllSynced: reads every reduced gradient of the rank."""
    op, unit, _ = b.units_of_rank(op, g, m)
    b.reads(op, *b.reduced(unit))


def all_updated(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """AllUpdated: reads every updated shard of the rank."""
    op, unit, _ = b.units_of_rank(op, g, m)
    gradient, version = b.reduced(unit)
    b.reads(op, gradient, version + 1)


def all_ready(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """AllReady: reads the next step's view of every unit of the rank."""
    op, unit, _ = b.units_of_rank(op, g, m)
    b.reads(op, b.shard_view(unit) if b.setup.gathers_per_use else b.view(unit), 1)


def clip_norm(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """ClipNorm: reads every reduced gradient of the rank. The one number that all ranks agree on
    is no state: the updates behind it on the lane take it."""
    all_synced(b, op, g, m)


def save(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """Save: the new optimizer and the new weights in. The next step's writes wait for it."""
    b.reads(op, b.optimizer(g), 1)
    b.reads(op, b.shard_view(g) if b.setup.gathers_per_use else b.view(g), 1)


RULES: dict[Kind, Callable[[Binding, Ints, Ints, Ints], None]] = {
    Kind.F: forward,
    Kind.R: recover,
    Kind.B: backward,
    Kind.I: input_gradient,
    Kind.W: weight_gradient,
    Kind.SEND_F: send_forward,
    Kind.RECV_F: receive_forward,
    Kind.SEND_B: send_backward,
    Kind.RECV_B: receive_backward,
    Kind.GradSync: grad_sync,
    Kind.UpdateShard: update_shard,
    Kind.PrefetchW: prefetch_view,
    Kind.Gather_F: gather_forward,
    Kind.Gather_B: gather_backward,
    Kind.AllReduce_F: all_reduce_forward,
    Kind.AllReduce_R: all_reduce_recovery,
    Kind.AllReduce_B: all_reduce_backward,
    Kind.AllBackward: all_backward,
    Kind.AllSynced: all_synced,
    Kind.AllUpdated: all_updated,
    Kind.AllReady: all_ready,
    Kind.ClipNorm: clip_norm,
    Kind.Save: save,
    Kind.TieSync: tie_sync,
}


def _read_view(b: Binding, op: Ints, g: Ints, m: Ints, gather: Kind) -> None:
    if b.setup.gathers_per_use:
        b.reads(op, *b.gathered(gather, g, m))
    else:
        b.reads(op, b.view(g), 0)


def _read_activations(b: Binding, op: Ints, g: Ints, m: Ints, saved_version: Ints) -> None:
    b.reads(op, b.saved(g, m), saved_version)
    has_input, has_output = b.unit.has_input[g], b.unit.has_output[g]
    b.reads(op[has_input], b.input(g, m)[has_input], 1)
    b.reads(op[has_output], *b.outgrad(g[has_output], m[has_output]))


def _free_activations(b: Binding, op: Ints, g: Ints, m: Ints, saved_version: Ints) -> None:
    b.frees(op, b.saved(g, m), saved_version)
    has_input, passing = b.unit.has_input[g], b.unit.has_output[g] & ~b.arrives_in_slot(g)
    b.frees(op[has_input], b.input(g, m)[has_input], 1)
    b.frees(op[passing], *b.outgrad(g[passing], m[passing]))


def _accumulate(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """Gradients add up in the order of micro-batches, whatever the schedule: version m + 1."""
    if b.setup.per_micro_batch:
        slot, version = b.transit(g, m)
        b.writes(op, slot, version)
    else:
        b.reads(op[m > 0], b.gradient(g)[m > 0], m[m > 0])
        b.writes(op, b.gradient(g), m + 1)


def _hand_on(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """The output: the next unit's input on the same rank, or a tensor to be sent."""
    inside, across = b.unit.next_is_local[g], b.unit.next_is_remote[g]
    b.writes(op[inside], b.input(g[inside] + 1, m[inside]), 1)
    b.writes(op[across], *b.sendx(b.unit.stage[g[across]], m[across]))


def _hand_back(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    if b.setup.tensor > 1:
        has = b.unit.has_input[g]
        b.writes(op[has], *b.partialb(g[has], m[has]))
    else:
        _hand_to_previous(b, op, g, m)


def _hand_to_previous(b: Binding, op: Ints, g: Ints, m: Ints) -> None:
    """The input's gradient: the previous unit's output gradient, or a tensor to be sent."""
    inside, across = b.unit.previous_is_local[g], b.unit.previous_is_remote[g]
    b.writes(op[inside], *b.outgrad(g[inside] - 1, m[inside]))
    b.writes(op[across], *b.sendg(b.unit.stage[g[across]], m[across]))
