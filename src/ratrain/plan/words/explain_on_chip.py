"""What sums inside a chip take, by the ways that there are, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ratrain.describe.units import format_bytes, format_time
from ratrain.plan.case.on_chip import RING, OnChip
from ratrain.plan.words.tables import wrapped

_WAYS = {
    "hardware": "reduction and multicast in the network",
    "software": "trees of messages",
    RING: "a ring over the link",
}


def on_chip_text(found: OnChip, step_s: float) -> Iterator[str]:
    """A line for each way."""
    network = found.network
    yield from wrapped(
        f"Inside a chip ({network.columns} x {network.rows} devices, {network.clock_ghz:g} GHz) "
        f"a sum of {format_bytes(found.size_bytes)} over {found.devices} devices takes, by"
    )
    for way in found.ways:
        change = 100 * (way.step_time_s / step_s - 1)
        step = f"a step {format_time(way.step_time_s)}"
        then = "as planned" if way.used else f"{change:+.2f} %"
        yield f"  {_WAYS[way.by]:<36}{format_time(way.sum_s):>9}, {step}, {then}"


def on_chip_json(found: OnChip | None) -> dict[str, Any] | None:
    """The same figures; None: no sums are inside chips whose network is known."""
    if found is None:
        return None
    return {
        "devices": found.devices,
        "size_bytes": found.size_bytes,
        "ways": [asdict(way) for way in found.ways],
    }
