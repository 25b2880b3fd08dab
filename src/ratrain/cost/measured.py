"""A block's time as a layer profile has it: read off, between measured micro-batches, or beyond.

    t(b) = on the line through the two measured micro-batches around b;
           outside of them on the line through the nearest two; with only one, what of it is not
           fixed in proportion to b

A larger micro-batch never takes less: a time above that of a larger one is noise, and counts as
that. Below the smallest measured one, the line is held to no less than its share of the smallest.

A block whose shape was measured at all is never priced by a formula: a formula that flatters would
win every comparison with a measurement. Its missing conditions are errors that say what to measure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from ratrain.describe.device import DeviceKind
from ratrain.describe.layer_profile import BlockCase, BlockName, LayerProfile
from ratrain.errors import SpecError

BACKWARD_OF_FORWARD: dict[BlockName, float] = {"layer": 2.0, "embedding": 1.5, "head": 2.0}
"""How many forwards a backward takes that was not measured: by FLOPs, of an embedding by bytes
(cost.blocks)."""


@dataclass(frozen=True)
class Measured:
    """Seconds of a block's forward and backward, from which entry, and how they were read."""

    forward_s: float
    backward_s: float
    entry: LayerProfile
    how: str


class Unmeasured(SpecError):
    """A block is asked for in conditions that its device's layer profile lacks."""


def measured(device: DeviceKind, case: BlockCase, micro_batch: int, model: str) -> Measured | None:
    """The measured times of a block; None where its shape was not measured and the device has
    rates to price it by. Where neither, or in other conditions than measured, `Unmeasured`."""
    entry = _entries(device.layer_profile).get(case)
    if entry is None and (not device.rates or conditions(device, case)):
        raise unmeasured(device, case, model, micro_batch)
    if entry is None:
        return None
    times = sorted(entry.times, key=lambda time: time.micro_batch)
    sizes = [time.micro_batch for time in times]
    ratio = BACKWARD_OF_FORWARD[entry.block]
    backward_s = [
        ratio * time.forward_s if time.backward_s is None else time.backward_s for time in times
    ]
    how = how_read(sizes, micro_batch)
    if any(time.backward_s is None for time in times):
        how += f", backward not measured: {ratio:g} times forward"
    return Measured(
        _at(sizes, _never_less([time.forward_s for time in times]), micro_batch, entry.fixed_s),
        _at(sizes, _never_less(backward_s), micro_batch, entry.fixed_s),
        entry,
        how,
    )


def how_read(sizes: Sequence[int], micro_batch: int) -> str:
    """How the time of a micro-batch follows from those measured, in words."""
    if micro_batch in sizes:
        return "measured"
    if len(sizes) == 1:
        return f"scaled from micro-batch {sizes[0]}, the only one measured"
    if sizes[0] < micro_batch < sizes[-1]:
        after = bisect_left(sizes, micro_batch)
        return (
            f"interpolated between the measured micro-batches {sizes[after - 1]} and {sizes[after]}"
        )
    low, high = sizes[:2] if micro_batch < sizes[0] else sizes[-2:]
    return f"linearly extrapolated from micro-batches {low} and {high}"


def conditions(device: DeviceKind, case: BlockCase) -> list[BlockCase]:
    """The conditions in which a block of the same shape was measured."""
    return [
        entry.case
        for entry in device.layer_profile
        if (entry.block, entry.shape.whole) == (case.block, case.shape)
    ]


def unmeasured(device: DeviceKind, case: BlockCase, model: str, micro_batch: int) -> Unmeasured:
    """The error of a block whose time is unknown for a device without rates."""
    command = (
        f"ratrain profile --layers {model} --sequence {case.sequence} --micro-batch {micro_batch} "
        f"--tensor {case.tensor} --dtype {case.dtype} -o measured.toml"
    )
    others = conditions(device, case)
    known = f"it has this {case.block} only under other conditions: {_listed(others)}"
    return Unmeasured(
        f"the layer profile does not cover this {case}; "
        + (known if others else "and the device has no rates to estimate it from"),
        place=f"device {device.name} layer_profile",
        fix=f"measure it on such a device: `{command}`; or describe the device by rates alone",
    )


def _listed(cases: Sequence[BlockCase]) -> str:
    """Conditions in a few words, three at most."""
    words = [
        f"{case.sequence} tokens, tensor {case.tensor}, {case.dtype}"
        + (", sequence parallel" if case.sequence_parallel else "")
        for case in cases
    ]
    more = f"; and {len(words) - 3} more" if len(words) > 3 else ""
    return "; ".join(words[:3]) + more


@lru_cache(maxsize=256)
def _entries(profile: tuple[LayerProfile, ...]) -> dict[BlockCase, LayerProfile]:
    return {entry.case: entry for entry in profile}


def _never_less(times_s: Sequence[float]) -> list[float]:
    """Times by growing size, each no more than any later one."""
    return list(accumulate(reversed(times_s), min))[::-1]


def _at(sizes: Sequence[int], times_s: Sequence[float], size: int, fixed_s: float = 0.0) -> float:
    if len(sizes) == 1:
        return fixed_s + (times_s[0] - fixed_s) * size / sizes[0]
    after = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
    slope = (times_s[after] - times_s[after - 1]) / (sizes[after] - sizes[after - 1])
    on_line = times_s[after] + slope * (size - sizes[after])
    share = times_s[0] * size / sizes[0] if size < sizes[0] else 0.0
    return max(on_line, share)
