"""The bill of memory by closed formulas, for all rows of a group at once.

Symbols, for one rank: units u with weights w, gradient g, optimizer o, input x, saved a; stages
that follow and micro-batches decide k, the micro-batches held (`held`); d replicas.

    view       sum w                      (level 3: sum w / d, and slots of the largest w)
    optimizer  sum o                      (levels 1 to 3: sum o / d)
    gradient   sum g                      (sharded: sum g / d, and slots in transit)
    residual   sum g with error feedback  (where a step may be skipped: twice)
    input      k sum x, and what the stage before is ahead
    saved      k sum a kept; recovered: min(buffer, layers) of one layer; backward-time: one
    outgrad    the gradient between two units of the stage
    slots      two tensors of each direction on their way; as many parts of a tensor group's sums

An upper bound of what `program.bounds` proves; the tests hold it to within 2 % above.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratrain.plan.layout.enumerate import Group
from ratrain.plan.layout.sizes import trains_tied
from ratrain.plan.price.held import held_by_rank, most_held
from ratrain.program.families import GRADIENT_SLOTS, OPTIMIZER_SLOTS, SEND_SLOTS, SPILL_SLOTS
from ratrain.program.passes.state_pipeline import TRANSIT_SLOTS
from ratrain.program.replicas import Recovery, Unit
from ratrain.program.skeletons import SKELETONS
from ratrain.program.tiers import DISK
from ratrain.program.units import RECOVERY_CODE, Bools, Ints

NONE, BACKWARD, FORWARD, SELECTIVE, SPILL = (
    RECOVERY_CODE[mode]
    for mode in (
        Recovery.NONE,
        Recovery.BACKWARD,
        Recovery.FORWARD,
        Recovery.SELECTIVE,
        Recovery.SPILL,
    )
)


@dataclass(frozen=True)
class Bill:
    """Bytes by item, each an array of rows x pipeline ranks."""

    items: dict[str, Ints]

    @property
    def total(self) -> Ints:
        first, *others = self.items.values()
        total = first.copy()
        for item in others:  # faster than a sum over all of them in one array
            total += item
        return total


def bill_of(group: Group, recovery: Ints) -> Bill:
    """The `Bill` of a group. `recovery`: a code for each row and stage. A rank is billed in the
    dtype of its kind of device; where those of its replicas differ, as the one that needs most."""
    if not group.job.unlike:
        return _bill(group, recovery)
    placement = group.placement
    kinds = {name: placement.kind(name) for each in placement.classes for name in each.kinds}
    bills = {name: _bill(group.as_kind(kind), recovery) for name, kind in kinds.items()}
    items = {name: item.copy() for name, item in next(iter(bills.values())).items.items()}
    for rank, names in enumerate(zip(*(each.kinds for each in placement.classes), strict=True)):
        fullest = max(names, key=lambda name: int(bills[name].total[:, rank].max()))
        for name, item in items.items():
            item[:, rank] = bills[fullest].items[name][:, rank]
    return Bill(items)


def _bill(group: Group, recovery: Ints) -> Bill:
    """The `Bill` of a group whose ranks all compute in its job's dtype."""
    states, activations = _states(group, recovery), _activations(group, recovery)
    if not group.job.gradient_tier:
        states["gradient"] = states["gradient"] - _never_together(group, recovery)
    scratch = {"scratch": _scratch(group, recovery)}
    return Bill({**states, **activations, **_slots(group), **scratch})


def _by_rank(group: Group, stages: npt.NDArray[np.int64]) -> Ints:
    """Rows x stages summed over the stages of each rank."""
    rows = stages.reshape(len(group), group.layout.virtual, group.layout.pipeline)
    return rows.sum(axis=1)


def _sum(group: Group, sizes: tuple[int, int, int]) -> Ints:
    """Rows x stages: what (embedding, layer, head) add up to on each stage."""
    totals = group.layers * sizes[1]
    totals[:, 0] += sizes[0]
    totals[:, -1] += sizes[2]
    return totals


def _largest(group: Group, sizes: tuple[int, int, int]) -> Ints:
    """Rows x ranks: the largest among the units of each rank."""
    sizes_by_stage = np.where(group.layers > 0, sizes[1], 0)
    sizes_by_stage[:, 0] = np.maximum(sizes_by_stage[:, 0], sizes[0])
    sizes_by_stage[:, -1] = np.maximum(sizes_by_stage[:, -1], sizes[2])
    rows = sizes_by_stage.reshape(len(group), group.layout.virtual, group.layout.pipeline)
    return rows.max(axis=1)


def _scratch(group: Group, recovery: Ints) -> Ints:
    """Rows x ranks: what the most wasteful op needs. Selective recovery makes scores again."""
    sizes, scores = _sizes(group, "scratch_bytes"), group.units[1].scores_bytes
    largest = _largest(group, sizes)
    if not scores:
        return largest
    layers = ((recovery == SELECTIVE) & (group.layers > 0)) * (sizes[1] + scores)
    shape = len(group), group.layout.virtual, group.layout.pipeline
    return np.maximum(largest, layers.reshape(shape).max(axis=1))


def _again(recovery: Ints) -> Bools:
    """Stages whose units are computed again."""
    return (recovery == BACKWARD) | (recovery == FORWARD)


def _kept_of_layer(group: Group, recovery: Ints, saved_bytes: int) -> Ints:
    """Rows x stages: what a layer keeps for each micro-batch besides its input."""
    lean_bytes = saved_bytes - group.units[1].scores_bytes
    return (recovery == NONE) * saved_bytes + (recovery == SELECTIVE) * lean_bytes


def _shared(sizes: tuple[int, int, int], owners: int) -> tuple[int, int, int]:
    return (-(-sizes[0] // owners), -(-sizes[1] // owners), -(-sizes[2] // owners))


def _sizes(group: Group, name: str) -> tuple[int, int, int]:
    def size(unit: Unit) -> int:
        return int(getattr(unit, name))

    embedding, layer, head = group.units
    return size(embedding), size(layer), size(head)


def _states(group: Group, recovery: Ints) -> dict[str, Ints]:
    """Views, optimizer shards, gradients and their slots."""
    data, column = group.job.peers(group.layout.data), group.sharding[:, None]
    view, gradient = _sizes(group, "view_bytes"), _sizes(group, "gradient_bytes")
    optimizer = _sizes(group, "optimizer_bytes")

    def whole(sizes: tuple[int, int, int]) -> Ints:
        return _by_rank(group, _sum(group, sizes))

    def shared(sizes: tuple[int, int, int]) -> Ints:
        return whole(_shared(sizes, data))

    per_use = (column == 3) & (data > 1)
    ahead = (recovery == FORWARD).reshape(len(group), group.layout.virtual, -1).any(axis=1)
    slots = 1 + np.where(ahead, group.buffer[:, None], 1)
    sharded = group.sharded_gradients[:, None] & (data > 1)
    if group.strategy.layerwise:
        most = group.job.bucket_bytes
        capped = tuple(size if most is None else min(size, most) for size in gradient)
        transit = TRANSIT_SLOTS * _largest(group, (capped[0], capped[1], capped[2]))
    else:
        transit = whole(gradient)
    states = {
        "view": np.where(per_use, shared(view), whole(view)),
        "gathered": per_use * slots * _largest(group, view),
        "optimizer": np.where(column > 0, shared(optimizer), whole(optimizer)),
        **_slots_of_optimizer(group, optimizer),
        **_slots_of_views(group, view, per_use, slots),
        "gradient": np.where(sharded, shared(gradient), _gradients(group, gradient, whole)),
        "transit": sharded * transit,
    }
    if group.job.residuals and data > 1:
        states["residual"] = group.job.residuals * whole(gradient)
    if group.job.schedule.averages == "early-start" and group.job.schedule.averages_by_turns:
        copies, steps = _sizes(group, "copy_bytes"), group.job.schedule.average_every or 1
        owned = np.where(column > 0, shared(copies), whole(copies))
        # Turns are as equal as can be: none is larger than an equal part and a unit.
        states["averaged"] = np.minimum(owned, owned // steps + _largest(group, copies))
        if group.job.train.outer_learning_rate is not None and group.layout.data > 1:
            kept = 3 if group.job.schedule.average_wire != "fp32" else 2
            states["outer"] = kept * owned
    return states


def _slots_of_optimizer(group: Group, sizes: tuple[int, int, int]) -> dict[str, Ints]:
    """Where optimizer states wait in another tier: what the device holds of them, in place of all.
    Rows x ranks."""
    if not group.job.optimizer_tier:
        return {}
    shared, whole = _largest(group, _shared(sizes, group.layout.data)), _largest(group, sizes)
    return {"optimizer": OPTIMIZER_SLOTS * np.where(group.sharding[:, None] > 0, shared, whole)}


def _gradients(
    group: Group, sizes: tuple[int, int, int], whole: Callable[[tuple[int, int, int]], Ints]
) -> Ints:
    """Whole gradients; of those that wait in another tier what slots hold. A tied matrix' stay."""
    if not group.job.gradient_tier:
        return whole(sizes)
    if not trains_tied(group.job, group.layout.pipeline):
        return GRADIENT_SLOTS * _largest(group, sizes)
    embedding, layer, head = sizes
    return GRADIENT_SLOTS * _largest(group, (0, layer, 0)) + whole((embedding, 0, head))


def _slots_of_views(
    group: Group, sizes: tuple[int, int, int], per_use: Bools, slots: Ints
) -> dict[str, Ints]:
    """The same of weights: those in use and one on its way, and two that are made."""
    if not group.job.view_tier:
        return {}
    shared = _largest(group, _shared(sizes, group.layout.data))
    return {"view": (slots + OPTIMIZER_SLOTS) * np.where(per_use, shared, _largest(group, sizes))}


def _slots_of_activations(group: Group, recovery: Ints) -> dict[str, Ints]:
    """What the device holds of activations on their way to another tier and back: of spilled ones
    also those of two units whose backward is near, and the run of bytes in which they are
    written."""
    if not group.job.activation_tier:
        return {}
    shape = len(group), group.layout.virtual, group.layout.pipeline
    spilled = (recovery == SPILL).reshape(shape).any(axis=1)
    again = _again(recovery).reshape(shape).any(axis=1)
    saved = _largest(group, _sizes(group, "saved_bytes"))
    boundary = group.units[1].input_bytes
    places = 2 * SPILL_SLOTS + SPILL_SLOTS + (group.job.activation_tier == DISK)
    moving = 2 * SEND_SLOTS + 1 + group.buffer[:, None] + (group.job.activation_tier == DISK)
    return {"moving": spilled * places * saved + again * moving * boundary}


def _activations(group: Group, recovery: Ints) -> dict[str, Ints]:
    """Inputs, what backward needs, and the gradients between units, at the fullest moment."""
    saved = _sizes(group, "saved_bytes")
    boundary = group.units[1].input_bytes
    inputs, kept = _inputs(group, recovery), _kept(group, recovery, saved)
    once = _recovered(group, recovery, saved, kept)
    pending = _pending(group) * boundary
    if group.layout.virtual == 1:
        held = _held(group)
        amounts = inputs * held, kept * held + once, pending * held
    else:
        amounts = _fullest(group, inputs, kept, pending)
    return {
        **_slots_of_activations(group, recovery),
        "input": amounts[0] + _ahead(group) * boundary,
        "saved": amounts[1],
        "outgrad": amounts[2] + _between(group) * boundary,
    }


def _held(group: Group) -> Ints:
    """For each rank that holds one stage: micro-batches at its fullest moment."""
    skeleton, layout = group.strategy.skeleton, group.layout
    return most_held(skeleton, layout.pipeline, group.micro_batches)


def _fullest(group: Group, inputs: Ints, kept: Ints, pending: Ints) -> tuple[Ints, Ints, Ints]:
    """Rows x ranks, where ranks hold several stages: each part at the moment of the largest sum."""
    pipeline, virtual = group.layout.pipeline, group.layout.virtual
    held = held_by_rank(group.strategy.skeleton, pipeline, virtual, group.micro_batches)
    columns: list[list[Ints]] = [[], [], []]
    rows = np.arange(len(group))
    for rank, moments in enumerate(held):
        of_rank = slice(rank, None, pipeline)
        parts = [stages[:, of_rank] @ moments.T for stages in (inputs, kept, pending)]
        worst = (parts[0] + parts[1] + parts[2]).argmax(axis=1)
        for column, part in zip(columns, parts, strict=True):
            column.append(part[rows, worst])
    inputs_held, kept_held, pending_held = (np.stack(column, axis=1) for column in columns)
    return inputs_held, kept_held, pending_held


def _never_together(group: Group, recovery: Ints) -> Ints:
    """Rows x ranks: bytes of gradients that do not exist yet at the fullest moment.

    Where a rank holds all its micro-batches before its first backward, gradients come as
    activations go. A unit's turn then holds the units behind it as gradients, itself as both,
    those before it as activations: of one micro-batch, or of all where all go layer by layer. Both
    are straight lines over a stage's equal layers, so the fullest turn is one of four: the head's,
    its first layer's, its last layer's, the embedding's.
    """
    layout = group.layout
    excess = np.zeros((len(group), layout.pipeline), dtype=np.int64)
    split = SKELETONS[group.strategy.skeleton].split_backward
    if layout.virtual > 1 or split:
        return excess
    full = _held(group) >= group.micro_batches
    if not full.any():
        return excess
    saved, inputs = _sizes(group, "saved_bytes"), _sizes(group, "input_bytes")
    gradient = _sizes(group, "gradient_bytes")
    shard = _shared(gradient, max(1, group.job.peers(layout.data)))
    sharded = group.sharded_gradients[:, None] & (layout.data > 1)
    e, h = np.zeros(layout.pipeline, dtype=np.int64), np.zeros(layout.pipeline, dtype=np.int64)
    e[0], h[-1] = 1, 1
    n, kept = group.layers, ~_again(recovery)
    g_e, g_l, g_h = (np.where(sharded, b, a) for a, b in zip(gradient, shard, strict=True))
    gone = _gone(group)
    x_l = gone * (inputs[1] + _kept_of_layer(group, recovery, saved[1]))
    head = np.where(kept | (not group.strategy.recovers_heads), saved[2], 0)
    x_h = gone * h * (inputs[2] + head)
    # A layer's turn: what it recovers lies where the head's was; one more gradient is on its way.
    again = _late(group, recovery) * np.minimum(h * gone * head, saved[1])
    turn = h * g_h - x_h + again + inputs[1]
    whole = h * g_h + n * g_l + e * g_e
    fullest = np.maximum.reduce(
        [
            h * g_h,
            np.where(n > 0, turn + g_l, 0),
            np.where(n > 0, turn + n * g_l - (n - 1) * x_l, 0),
            e * (turn + n * (g_l - x_l) + g_e),
        ]
    )
    return full * (whole - np.minimum(fullest, whole))


def _inputs(group: Group, recovery: Ints) -> Ints:
    """Rows x stages: bytes of inputs kept for each micro-batch held: where they wait in another
    tier, that of a head alone."""
    inputs = _sum(group, _sizes(group, "input_bytes"))
    split = SKELETONS[group.strategy.skeleton].split_backward
    if not group.job.activation_tier or split:
        return inputs
    heads = np.zeros_like(inputs)
    heads[:, -1] = group.units[2].input_bytes
    return np.where(_again(recovery), heads, inputs)


def _kept(group: Group, recovery: Ints, saved: tuple[int, int, int]) -> Ints:
    """Rows x stages: bytes kept for each micro-batch held."""
    kept = group.layers * _kept_of_layer(group, recovery, saved[1])
    kept[:, 0] += saved[0]
    again = _again(recovery[:, -1]) & group.strategy.recovers_heads
    kept[:, -1] += np.where(again, 0, saved[2])
    return kept * (recovery != SPILL)


def _recovered(group: Group, recovery: Ints, saved: tuple[int, int, int], kept: Ints) -> Ints:
    """Rows x stages: bytes recovered at once, of one micro-batch, besides what is kept.

    At backward time the head's own are free again before the first layer is recovered; of all
    micro-batches, and in either mode, where all go layer by layer.
    """
    buffer = _buffer(group)
    layer = np.minimum(group.layers, 1)
    recovered = np.where(recovery == FORWARD, buffer, np.where(recovery == BACKWARD, layer, 0))
    recovered = recovered * saved[1]
    gone = _gone(group)
    late = _late(group, recovery[:, -1])
    head = np.where(group.strategy.recovers_heads, saved[2], 0)
    recovered[:, -1] = np.where(
        late, np.maximum(recovered[:, -1] - gone * kept[:, -1], head), recovered[:, -1]
    )
    return recovered


def _late(group: Group, recovery: Ints) -> Bools:
    """Where layers are recovered after the head's backward."""
    return (recovery == BACKWARD) | ((recovery == FORWARD) & (_gone(group) > 1))


def _buffer(group: Group) -> Ints:
    """Rows x stages: layers recovered ahead of their backward at once. Where all micro-batches go
    layer by layer, none: each is recovered right before its own backward."""
    return np.minimum(1 if _gone(group) > 1 else group.buffer[:, None], group.layers)


def _pending(group: Group) -> Ints:
    """Rows x stages: gradients of outputs that wait, for each micro-batch held: for weight
    gradients (split backward), at most one per unit, or for their backward (where they arrive in
    places of their own). Upper bounds, not exact counts."""
    skeleton, pending = SKELETONS[group.strategy.skeleton], np.zeros_like(group.layers)
    if skeleton.split_backward:
        pending += group.layers
        pending[:, 0] += 1
    elif skeleton.arrival_places and group.layout.pipeline > 1:
        pending[:, :-1] += 1
    return pending


def _ahead(group: Group) -> Ints:
    """Ranks: inputs that have arrived and whose forward has not begun."""
    skeleton, pipeline = SKELETONS[group.strategy.skeleton], group.layout.pipeline
    if skeleton.chunks or skeleton.split_backward:
        return np.full(pipeline, 2, dtype=np.int64)
    later: Ints = np.arange(pipeline, dtype=np.int64)
    return np.where(_held(group) < group.micro_batches, np.minimum(later, 1), 0)


def _between(group: Group) -> Ints:
    """Rows x ranks: gradients between two units of a stage."""
    return (_units(group).max(axis=1) > 1) * _together(group)


def _gone(group: Group) -> int:
    """Micro-batches that a unit has computed backward before the unit before it begins."""
    return group.micro_batches if _together(group) == group.micro_batches else 1


def _together(group: Group) -> int:
    """Micro-batches that go through a stage layer by layer."""
    return min(SKELETONS[group.strategy.skeleton].together, group.micro_batches)


def _units(group: Group) -> Ints:
    """Rows x stages of a rank x ranks: units, the embedding and the head counted."""
    units = group.layers.copy()
    units[:, 0] += 1
    units[:, -1] += 1
    return units.reshape(len(group), group.layout.virtual, group.layout.pipeline)


def _slots(group: Group) -> dict[str, Ints]:
    """Two tensors for each stage and direction that crosses to another rank; two for each rank
    and direction in which it sums parts over a tensor group."""
    boundary, stages = group.units[1].input_bytes, group.layout.stages
    slots = np.zeros((len(group), stages), dtype=np.int64)
    if group.layout.pipeline > 1:
        skeleton = SKELETONS[group.strategy.skeleton]
        into = 0 if skeleton.split_backward or skeleton.arrival_places else 1
        slots[:, :-1] += SEND_SLOTS * (1 + into) * boundary  # outputs, gradients that arrive
        slots[:, 1:] += SEND_SLOTS * boundary  # gradients of inputs
    sums = np.zeros((len(group), group.layout.pipeline), dtype=np.int64)
    if group.layout.tensor > 1:
        units = _units(group).sum(axis=1)
        part = (
            SEND_SLOTS * boundary * (group.layout.tensor if group.layout.sequence_parallel else 1)
        )
        sums += 2 * part
        sums[:, 0] -= part * (units[:, 0] == 1)  # an embedding sums no gradient
        sums[:, -1] -= part * (units[:, -1] == 1)  # a head has no output
    return {"slots": _by_rank(group, slots), "sums": sums}
