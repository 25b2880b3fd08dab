"""Measured times of other planners as entries of a layer profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ratrain.describe.layer_profile import BlockName, LayerProfile, MeasuredTime, shape_of
from ratrain.describe.model import ModelSpec


@dataclass(frozen=True)
class Taken:
    """One measurement of one slot of a model, in seconds."""

    forward_s: float
    backward_s: float
    update_s: float | None = None


@dataclass(frozen=True)
class Conditions:
    """In what an entry was measured. `source` says where it was read."""

    model: ModelSpec
    sequence: int
    tensor: int
    dtype: str
    source: str


def entry_of(taken: Mapping[int, Taken], block: BlockName, about: Conditions) -> LayerProfile:
    """The entry of a block from its measurements by micro-batch. Times of a tensor group hold its
    sums, since whole layers were timed."""
    updates = [times.update_s for times in taken.values() if times.update_s]
    return LayerProfile(
        shape=shape_of(about.model, block),
        sequence=about.sequence,
        times=tuple(
            MeasuredTime(size, times.forward_s, times.backward_s)
            for size, times in sorted(taken.items())
        ),
        source=about.source,
        block=block,
        tensor=about.tensor,
        dtype=about.dtype,
        sums="included" if about.tensor > 1 else "apart",
        update_s=median(updates) if updates else None,
    )


def typical(slots: Sequence[Taken]) -> Taken:
    """The median over slots that hold equal layers."""
    updates = [slot.update_s for slot in slots if slot.update_s is not None]
    return Taken(
        median(slot.forward_s for slot in slots),
        median(slot.backward_s for slot in slots),
        median(updates) if updates else None,
    )


def entries_of_slots(
    by_size: Mapping[int, Sequence[Taken]], about: Conditions
) -> tuple[LayerProfile, ...]:
    """Embedding, layer and head out of measurements of all slots, by micro-batch."""
    return (
        entry_of({size: typical(slots[1:-1]) for size, slots in by_size.items()}, "layer", about),
        entry_of({size: slots[0] for size, slots in by_size.items()}, "embedding", about),
        entry_of({size: slots[-1] for size, slots in by_size.items()}, "head", about),
    )


def same_kind_of_slot(by_size: Mapping[int, Sequence[Taken]]) -> float:
    """The largest difference of one layer's time from the median, as a fraction of it."""
    return max(
        abs(slot.forward_s + slot.backward_s - middle) / middle
        for slots in by_size.values()
        for middle in (typical(slots[1:-1]).forward_s + typical(slots[1:-1]).backward_s,)
        for slot in slots[1:-1]
    )
