"""Where a unit's input and its outputs are held: rules that several kinds share."""

from __future__ import annotations

from ratrain.program.binding import Binding
from ratrain.program.kind import Kind
from ratrain.program.units import Bools, Ints
from ratrain.program.uses import Ops, Ref


def read_view(b: Binding, ops: Ops, gather: Kind) -> None:
    """The weights: the whole view, or at level 3 what `gather` has gathered."""
    per_use = b.gathered_per_use(ops.unit)
    b.reads(whole := ops.where(~per_use), b.view(whole))
    if per_use.any():
        b.reads(some := ops.where(per_use), gathered_view(b, some, gather))
        if b.setup.gathers_per_pass:
            b.reads(some, pass_view(b, some, gather))


def let_view_go(b: Binding, ops: Ops, gather: Kind) -> None:
    """Of ops that read a view, the last of a pass frees what was gathered for all of it."""
    if b.setup.gathers_per_pass:
        place = b.unit.place(ops.unit, ops.micro_batch)
        is_last = place == b.unit.micro_batches[ops.unit] - 1
        last = ops.where(is_last & b.gathered_per_use(ops.unit))
        b.frees(last, pass_view(b, last, gather))


def pass_view(b: Binding, ops: Ops, gather: Kind) -> Ref:
    """The view that is gathered once for a pass."""
    return b.of_unit("passing_f" if gather is Kind.Gather_F else "passing_b", ops)


def gathered_view(b: Binding, ops: Ops, gather: Kind) -> Ref:
    """The slot that a unit's view is gathered into: for one micro-batch, or for all of a pass,
    when the gather names the first micro-batch of its member."""
    if b.setup.gathers_per_pass:
        ops = Ops(ops.op, ops.unit, b.unit.first_micro_batch(ops.unit), ops.step)
    return b.rank_slot("gathered", ops, _gathers, gather)


def _gathers(b: Binding) -> Bools:
    return b.is_any(Kind.Gather_F, Kind.Gather_B)


def made_input(b: Binding, ops: Ops) -> Ref:
    """A unit's input as forward finds it. One that waits in host memory is made in a slot."""
    away = b.unit.waits("input")[ops.unit]
    cell = b.input(ops)
    if not away.any():
        return cell
    local = away & b.unit.previous_is_local[ops.unit]
    state, version = cell.state.copy(), cell.version.copy()
    inside, across = ops.where(local), ops.where(away & ~local)
    staged = staged_output(b, inside.about(b.unit.previous_unit[inside.unit]))
    arrived = b.part_slot("arrived", across, b.unit.input_parts[across.unit])
    state[local], version[local] = staged.state, staged.version
    state[away & ~local], version[away & ~local] = arrived.state, arrived.version
    return Ref(state, version)


def staged_output(b: Binding, ops: Ops) -> Ref:
    """The slot for a unit's output that is the next unit's input and waits in host memory."""
    return b.rank_slot("staged", ops, _stagers)


def _stagers(b: Binding) -> Bools:
    """Ops whose output is an input that waits in host memory."""
    g = b.every().unit
    following = b.unit.next_unit[g]
    hands_on = (b.is_any(Kind.F) & (b.unit.tensor[g] == 1)) | b.is_any(Kind.AllReduce_F)
    return hands_on & (following >= 0) & b.unit.waits("input")[following]


def kept_input(b: Binding, ops: Ops) -> Ref:
    """A unit's input as recovery and backward find it."""
    cell = b.input(ops)
    away = b.unit.waits("input")[ops.unit]
    if not away.any():
        return cell
    state, version = cell.state.copy(), cell.version.copy()
    fetched = fetched_input(b, ops.where(away))
    state[away], version[away] = fetched.state, fetched.version
    return Ref(state, version)


def fetched_input(b: Binding, ops: Ops) -> Ref:
    """The slot that an input comes back into from host memory."""
    return b.rank_slot("fetched", ops, lambda binding: binding.is_any(Kind.FetchInput))


def hand_on(b: Binding, ops: Ops) -> None:
    """The output: the next unit's input on the same rank, or a tensor to be sent."""
    inside = ops.where(b.unit.next_is_local[ops.unit])
    across = ops.where(b.unit.next_is_remote[ops.unit])
    b.writes(inside, made_input(b, inside.about(b.unit.next_unit[inside.unit])))
    b.writes(across, b.part_slot("sendx", across))


def hand_to_previous(b: Binding, ops: Ops) -> None:
    """The input's gradient: the previous unit's output gradient, or a tensor to be sent."""
    inside = ops.where(b.unit.previous_is_local[ops.unit])
    across = ops.where(b.unit.previous_is_remote[ops.unit])
    b.writes(inside, b.outgrad(inside.about(b.unit.previous_unit[inside.unit])))
    b.writes(across, b.part_slot("sendg", across))


def partial_output(b: Binding, ops: Ops) -> Ref:
    """The slot of a rank's part of a forward's sum."""
    return b.rank_slot("partial", ops, _forwards_summed)


def partial_gradient(b: Binding, ops: Ops) -> Ref:
    """The slot of a rank's part of a backward's sum."""
    return b.rank_slot("partialb", ops, _backwards_summed)


def _forwards_summed(b: Binding) -> Bools:
    g = b.every().unit
    return b.is_any(Kind.F) & b.unit.has_output[g] & (b.unit.tensor[g] > 1)


def _backwards_summed(b: Binding) -> Bools:
    g = b.every().unit
    return b.is_any(Kind.B, Kind.I) & b.unit.has_input[g] & (b.unit.tensor[g] > 1)


def saved_version(b: Binding, ops: Ops) -> Ints:
    """The version of `saved` that is complete: recovery under tensor parallelism makes two."""
    return 1 + (b.unit.recovered[ops.unit] & (b.unit.tensor[ops.unit] > 1))
