"""The bill of memory by closed formulas: of all rows of a group at once, and of drafts' stages.

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
from typing import Any

import numpy as np
import numpy.typing as npt

from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.plan.layout.enumerate import Group
from ratrain.plan.layout.sizes import trains_tied
from ratrain.plan.price.held import held_by_rank, most_held
from ratrain.program.families import GRADIENT_SLOTS, OPTIMIZER_SLOTS, SEND_SLOTS, SPILL_SLOTS
from ratrain.program.passes.state_pipeline import TRANSIT_SLOTS
from ratrain.program.replicas import Recovery, Unit
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Strategy
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

Sizes = tuple[int, int, int]
"""Bytes of (embedding, layer, head)."""


@dataclass(frozen=True)
class Billed:
    """Stages to bill. Arrays are rows x stages, or one of these is 1."""

    job: JobSpec  # in the dtype that its devices compute in
    layout: LayoutSpec  # its layers are of no meaning here
    strategy: Strategy
    units: tuple[Unit, Unit, Unit]  # an embedding, a layer and a head
    layers: Ints
    sharding: Ints  # rows x 1, like the next two
    sharded_gradients: Bools
    buffer: Ints
    micro_batches: int
    first: Ints  # stages: 1 where the embedding is, like the next one where the head is
    last: Ints
    held: Ints  # ranks: micro-batches at the fullest moment, where each holds one stage

    def on_ranks(self, stages: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rows x stages of a rank x ranks."""
        return stages.reshape(len(stages), self.layout.virtual, -1)

    def sizes(self, name: str) -> Sizes:
        """Of (embedding, layer, head)."""
        embedding, layer, head = (int(getattr(unit, name)) for unit in self.units)
        return embedding, layer, head


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
        return bill_of_stages(billed(group), recovery)
    placement = group.placement
    kinds = {name: placement.kind(name) for each in placement.classes for name in each.kinds}
    bills = {
        name: bill_of_stages(billed(group.as_kind(kind)), recovery) for name, kind in kinds.items()
    }
    items = {name: item.copy() for name, item in next(iter(bills.values())).items.items()}
    for rank, names in enumerate(zip(*(each.kinds for each in placement.classes), strict=True)):
        fullest = max(names, key=lambda name: int(bills[name].total[:, rank].max()))
        for name, item in items.items():
            item[:, rank] = bills[fullest].items[name][:, rank]
    return Bill(items)


def billed(group: Group) -> Billed:
    """The stages of a group whose ranks all compute in its job's dtype."""
    layout, skeleton = group.layout, group.strategy.skeleton
    ends: Ints = np.zeros((2, layout.stages), dtype=np.int64)
    ends[0, 0] = ends[1, -1] = 1
    held: Ints = np.zeros(layout.pipeline, dtype=np.int64)
    if layout.virtual == 1:
        held = most_held(skeleton, layout.pipeline, group.micro_batches)
    return Billed(
        group.job,
        layout,
        group.strategy,
        group.units,
        group.layers,
        group.sharding[:, None],
        group.sharded_gradients[:, None],
        group.buffer[:, None],
        group.micro_batches,
        ends[0],
        ends[1],
        held,
    )


def bill_of_stages(stages: Billed, recovery: Ints) -> Bill:
    """The `Bill` of stages."""
    states, activations = _states(stages, recovery), _activations(stages, recovery)
    if not stages.job.gradient_tier:
        states["gradient"] = states["gradient"] - _never_together(stages, recovery)
    scratch = {"scratch": _scratch(stages, recovery)}
    return Bill({**states, **activations, **_slots(stages), **scratch})


def _sum(stages: Billed, sizes: Sizes) -> Ints:
    """Rows x stages: what (embedding, layer, head) add up to on each stage."""
    return stages.layers * sizes[1] + (stages.first * sizes[0] + stages.last * sizes[2])


def _largest(stages: Billed, sizes: Sizes) -> Ints:
    """Rows x ranks: the largest among the units of each rank."""
    layers = np.where(stages.layers > 0, sizes[1], 0)
    ends = np.maximum(stages.first * sizes[0], stages.last * sizes[2])
    return stages.on_ranks(np.maximum(layers, ends)).max(axis=1)


def _scratch(stages: Billed, recovery: Ints) -> Ints:
    """Rows x ranks: what the most wasteful op needs. Selective recovery makes scores again."""
    sizes, scores = stages.sizes("scratch_bytes"), stages.units[1].scores_bytes
    largest = _largest(stages, sizes)
    if not scores:
        return largest
    layers = ((recovery == SELECTIVE) & (stages.layers > 0)) * (sizes[1] + scores)
    return np.maximum(largest, stages.on_ranks(layers).max(axis=1))


def _again(recovery: Ints) -> Bools:
    """Stages whose units are computed again."""
    return (recovery == BACKWARD) | (recovery == FORWARD)


def _kept_of_layer(stages: Billed, recovery: Ints, saved_bytes: int) -> Ints:
    """Rows x stages: what a layer keeps for each micro-batch besides its input."""
    lean_bytes = saved_bytes - stages.units[1].scores_bytes
    return (recovery == NONE) * saved_bytes + (recovery == SELECTIVE) * lean_bytes


def _shared(sizes: Sizes, owners: int) -> Sizes:
    return (-(-sizes[0] // owners), -(-sizes[1] // owners), -(-sizes[2] // owners))


def _states(stages: Billed, recovery: Ints) -> dict[str, Ints]:
    """Views, optimizer shards, gradients and their slots."""
    job, column = stages.job, stages.sharding
    data = job.peers(stages.layout.data)
    view, gradient = stages.sizes("view_bytes"), stages.sizes("gradient_bytes")
    optimizer = stages.sizes("optimizer_bytes")

    def whole(sizes: Sizes) -> Ints:
        return stages.on_ranks(_sum(stages, sizes)).sum(axis=1)

    def shared(sizes: Sizes) -> Ints:
        return whole(_shared(sizes, data))

    per_use = (column == 3) & (data > 1)
    ahead = stages.on_ranks(recovery == FORWARD).any(axis=1)
    slots = 1 + np.where(ahead, stages.buffer, 1)
    sharded = stages.sharded_gradients & (data > 1)
    if stages.strategy.layerwise:
        most = job.bucket_bytes
        capped = tuple(size if most is None else min(size, most) for size in gradient)
        transit = TRANSIT_SLOTS * _largest(stages, (capped[0], capped[1], capped[2]))
    else:
        transit = whole(gradient)
    states = {
        "view": np.where(per_use, shared(view), whole(view)),
        "gathered": per_use * slots * _largest(stages, view),
        "optimizer": np.where(column > 0, shared(optimizer), whole(optimizer)),
        **_slots_of_optimizer(stages, optimizer),
        **_slots_of_views(stages, view, per_use, slots),
        "gradient": np.where(sharded, shared(gradient), _gradients(stages, gradient, whole)),
        "transit": sharded * transit,
    }
    if job.residuals and data > 1:
        states["residual"] = job.residuals * whole(gradient)
    if job.schedule.averages == "early-start" and job.schedule.averages_by_turns:
        copies, steps = stages.sizes("copy_bytes"), job.schedule.average_every or 1
        owned = np.where(column > 0, shared(copies), whole(copies))
        # Turns are as equal as can be: none is larger than an equal part and a unit.
        states["averaged"] = np.minimum(owned, owned // steps + _largest(stages, copies))
        if job.train.outer_learning_rate is not None and stages.layout.data > 1:
            kept = 3 if job.schedule.average_wire != "fp32" else 2
            states["outer"] = kept * owned
    return states


def _slots_of_optimizer(stages: Billed, sizes: Sizes) -> dict[str, Ints]:
    """Where optimizer states wait in another tier: what the device holds of them, in place of all.
    Rows x ranks."""
    if not stages.job.optimizer_tier:
        return {}
    shared, whole = _largest(stages, _shared(sizes, stages.layout.data)), _largest(stages, sizes)
    return {"optimizer": OPTIMIZER_SLOTS * np.where(stages.sharding > 0, shared, whole)}


def _gradients(stages: Billed, sizes: Sizes, whole: Callable[[Sizes], Ints]) -> Ints:
    """Whole gradients; of those that wait in another tier what slots hold. A tied matrix' stay."""
    if not stages.job.gradient_tier:
        return whole(sizes)
    if not trains_tied(stages.job, stages.layout.pipeline):
        return GRADIENT_SLOTS * _largest(stages, sizes)
    embedding, layer, head = sizes
    return GRADIENT_SLOTS * _largest(stages, (0, layer, 0)) + whole((embedding, 0, head))


def _slots_of_views(stages: Billed, sizes: Sizes, per_use: Bools, slots: Ints) -> dict[str, Ints]:
    """The same of weights: those in use and one on its way, and two that are made."""
    if not stages.job.view_tier:
        return {}
    shared = _largest(stages, _shared(sizes, stages.layout.data))
    return {"view": (slots + OPTIMIZER_SLOTS) * np.where(per_use, shared, _largest(stages, sizes))}


def _slots_of_activations(stages: Billed, recovery: Ints) -> dict[str, Ints]:
    """What the device holds of activations on their way to another tier and back: of spilled ones
    also those of two units whose backward is near, and the run of bytes in which they are
    written."""
    if not stages.job.activation_tier:
        return {}
    spilled = stages.on_ranks(recovery == SPILL).any(axis=1)
    again = stages.on_ranks(_again(recovery)).any(axis=1)
    saved = _largest(stages, stages.sizes("saved_bytes"))
    boundary, on_disk = stages.units[1].input_bytes, stages.job.activation_tier == DISK
    places = 2 * SPILL_SLOTS + SPILL_SLOTS + on_disk
    moving = 2 * SEND_SLOTS + 1 + stages.buffer + on_disk
    return {"moving": spilled * places * saved + again * moving * boundary}


def _activations(stages: Billed, recovery: Ints) -> dict[str, Ints]:
    """Inputs, what backward needs, and the gradients between units, at the fullest moment."""
    saved = stages.sizes("saved_bytes")
    boundary = stages.units[1].input_bytes
    inputs, kept = _inputs(stages, recovery), _kept(stages, recovery, saved)
    once = _recovered(stages, recovery, saved, kept)
    pending = _pending(stages) * boundary
    if stages.layout.virtual == 1:
        held = stages.held
        amounts = inputs * held, kept * held + once, pending * held
    else:
        amounts = _fullest(stages, inputs, kept, pending)
    return {
        **_slots_of_activations(stages, recovery),
        "input": amounts[0] + _ahead(stages) * boundary,
        "saved": amounts[1],
        "outgrad": amounts[2] + _between(stages) * boundary,
    }


def _fullest(stages: Billed, inputs: Ints, kept: Ints, pending: Ints) -> tuple[Ints, Ints, Ints]:
    """Rows x ranks, where ranks hold several stages: each part at the moment of the largest sum."""
    pipeline, virtual = stages.layout.pipeline, stages.layout.virtual
    held = held_by_rank(stages.strategy.skeleton, pipeline, virtual, stages.micro_batches)
    columns: list[list[Ints]] = [[], [], []]
    rows = np.arange(len(stages.layers))
    for rank, moments in enumerate(held):
        of_rank = slice(rank, None, pipeline)
        parts = [each[:, of_rank] @ moments.T for each in (inputs, kept, pending)]
        worst = (parts[0] + parts[1] + parts[2]).argmax(axis=1)
        for column, part in zip(columns, parts, strict=True):
            column.append(part[rows, worst])
    inputs_held, kept_held, pending_held = (np.stack(column, axis=1) for column in columns)
    return inputs_held, kept_held, pending_held


def _never_together(stages: Billed, recovery: Ints) -> Ints:
    """Rows x ranks: bytes of gradients that do not exist yet at the fullest moment.

    Where a rank holds all its micro-batches before its first backward, gradients come as
    activations go. A unit's turn then holds the units behind it as gradients, itself as both,
    those before it as activations: of one micro-batch, or of all where all go layer by layer. Both
    are straight lines over a stage's equal layers, so the fullest turn is one of four: the head's,
    its first layer's, its last layer's, the embedding's.
    """
    full = stages.held >= stages.micro_batches
    split = SKELETONS[stages.strategy.skeleton].split_backward
    if stages.layout.virtual > 1 or split or not full.any():
        return np.zeros((len(stages.layers), len(stages.held)), dtype=np.int64)
    saved, inputs = stages.sizes("saved_bytes"), stages.sizes("input_bytes")
    gradient = stages.sizes("gradient_bytes")
    shard = _shared(gradient, max(1, stages.job.peers(stages.layout.data)))
    sharded = stages.sharded_gradients & (stages.layout.data > 1)
    e, h = stages.first, stages.last
    n, kept = stages.layers, ~_again(recovery)
    g_e, g_l, g_h = (np.where(sharded, b, a) for a, b in zip(gradient, shard, strict=True))
    gone = _gone(stages)
    x_l = gone * (inputs[1] + _kept_of_layer(stages, recovery, saved[1]))
    head = np.where(kept | (not stages.strategy.recovers_heads), saved[2], 0)
    x_h = gone * h * (inputs[2] + head)
    # A layer's turn: what it recovers lies where the head's was; one more gradient is on its way.
    again = _late(stages, recovery) * np.minimum(h * gone * head, saved[1])
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


def _inputs(stages: Billed, recovery: Ints) -> Ints:
    """Rows x stages: bytes of inputs kept for each micro-batch held: where they wait in another
    tier, that of a head alone."""
    inputs = _sum(stages, stages.sizes("input_bytes"))
    split = SKELETONS[stages.strategy.skeleton].split_backward
    if not stages.job.activation_tier or split:
        return inputs
    return np.where(_again(recovery), stages.last * stages.units[2].input_bytes, inputs)


def _kept(stages: Billed, recovery: Ints, saved: Sizes) -> Ints:
    """Rows x stages: bytes kept for each micro-batch held."""
    again = _again(recovery) & stages.strategy.recovers_heads
    kept = stages.layers * _kept_of_layer(stages, recovery, saved[1])
    kept = kept + stages.first * saved[0] + stages.last * np.where(again, 0, saved[2])
    return kept * (recovery != SPILL)


def _recovered(stages: Billed, recovery: Ints, saved: Sizes, kept: Ints) -> Ints:
    """Rows x stages: bytes recovered at once, of one micro-batch, besides what is kept.

    At backward time the head's own are free again before the first layer is recovered; of all
    micro-batches, and in either mode, where all go layer by layer.
    """
    layer = np.minimum(stages.layers, 1)
    recovered = np.where(
        recovery == FORWARD, _buffer(stages), np.where(recovery == BACKWARD, layer, 0)
    )
    recovered = recovered * saved[1]
    head = saved[2] if stages.strategy.recovers_heads else 0
    behind = np.maximum(recovered - _gone(stages) * kept, head)
    return np.where((stages.last > 0) & _late(stages, recovery), behind, recovered)


def _late(stages: Billed, recovery: Ints) -> Bools:
    """Where layers are recovered after the head's backward."""
    return (recovery == BACKWARD) | ((recovery == FORWARD) & (_gone(stages) > 1))


def _buffer(stages: Billed) -> Ints:
    """Rows x stages: layers recovered ahead of their backward at once. Where all micro-batches go
    layer by layer, none: each is recovered right before its own backward."""
    return np.minimum(1 if _gone(stages) > 1 else stages.buffer, stages.layers)


def _pending(stages: Billed) -> Ints:
    """Rows x stages: gradients of outputs that wait, for each micro-batch held: for weight
    gradients (split backward), at most one per unit, or for their backward (where they arrive in
    places of their own). Upper bounds, not exact counts."""
    skeleton = SKELETONS[stages.strategy.skeleton]
    if skeleton.split_backward:
        return stages.layers + stages.first
    arrive = skeleton.arrival_places and stages.layout.pipeline > 1
    return np.zeros_like(stages.layers) + arrive * (1 - stages.last)


def _ahead(stages: Billed) -> Ints:
    """Ranks: inputs that have arrived and whose forward has not begun."""
    skeleton = SKELETONS[stages.strategy.skeleton]
    if skeleton.chunks or skeleton.split_backward:
        return np.full_like(stages.held, 2)
    return (stages.held < stages.micro_batches) * (1 - stages.first)


def _between(stages: Billed) -> Ints:
    """Rows x ranks: gradients between two units of a stage."""
    return (_units(stages).max(axis=1) > 1) * _together(stages)


def _gone(stages: Billed) -> int:
    """Micro-batches that a unit has computed backward before the unit before it begins."""
    return stages.micro_batches if _together(stages) == stages.micro_batches else 1


def _together(stages: Billed) -> int:
    """Micro-batches that go through a stage layer by layer."""
    return min(SKELETONS[stages.strategy.skeleton].together, stages.micro_batches)


def _units(stages: Billed) -> Ints:
    """Rows x stages of a rank x ranks: units, the embedding and the head counted."""
    return stages.on_ranks(stages.layers + stages.first + stages.last)


def _slots(stages: Billed) -> dict[str, Ints]:
    """Two tensors for each stage and direction that crosses to another rank; two for each rank
    and direction in which it sums parts over a tensor group."""
    boundary, layout = stages.units[1].input_bytes, stages.layout
    slots = np.zeros_like(stages.layers)
    sums = np.zeros((len(stages.layers), len(stages.held)), dtype=np.int64)
    if layout.pipeline > 1:
        skeleton = SKELETONS[stages.strategy.skeleton]
        into = 0 if skeleton.split_backward or skeleton.arrival_places else 1
        # Outputs and gradients that arrive; gradients of inputs.
        tensors = (1 + into) * (1 - stages.last) + (1 - stages.first)
        slots = slots + SEND_SLOTS * tensors * boundary
    if layout.tensor > 1:
        units = _units(stages).sum(axis=1)
        part = SEND_SLOTS * boundary * (layout.tensor if layout.sequence_parallel else 1)
        # An embedding alone sums no gradient, a head alone has no output.
        ends = (stages.on_ranks(end[None]).max(axis=1) for end in (stages.first, stages.last))
        sums = sums + part * (2 - sum(end * (units == 1) for end in ends))
    return {"slots": stages.on_ranks(slots).sum(axis=1), "sums": sums}
