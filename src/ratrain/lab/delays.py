"""Which ports of a lab are far from each other, and how much is on its way between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratrain.describe.cluster import LEVELS, Level
from ratrain.describe.units import format_bytes, format_bytes_rate, format_time
from ratrain.errors import Infeasible
from ratrain.lab.ports import Port

LEAST_S = 0.5e-3
"""Shorter latencies are left as they are: what this machine needs itself, and how late it wakes a
process, would be a large part of them."""

HOP_S = 60e-6
"""What the way through a relay takes by itself on a machine at rest, so that much is not waited."""

MOST_ON_THE_WAY_BYTES = 256 << 20
"""What a lab holds in flight, of all its links together."""

RELAY_BYTES_PER_S = 500e6
"""4 Gbit/s: what one relay carries with a core to itself, and some room (docs/how-to/lab.md)."""

_SPARE_BYTES = 4 << 20
_BUFFERS_PER_ROUND_TRIP = 4  # the kernel counts a packet as up to twice its bytes, at either end


@dataclass(frozen=True)
class Delay:
    """One latency, the pairs of ports (both ways) that have it, and what they send at once."""

    index: int
    latency_s: float
    pairs: tuple[tuple[int, int], ...]
    rate_bytes_per_s: float  # of all ports that send over it, together

    @property
    def interface(self) -> str:
        """Where the relay takes and returns its packets, in the bridges' namespace."""
        return f"delay{self.index}"

    @property
    def held_s(self) -> float:
        """How long the relay holds a packet."""
        return self.latency_s - HOP_S

    @property
    def on_the_way_bytes(self) -> int:
        """In flight when all send: rate x latency."""
        return round(self.rate_bytes_per_s * self.latency_s)

    @property
    def queue_bytes(self) -> int:
        """What the relay holds before it drops: twice that, since a late relay finds more."""
        return 2 * self.on_the_way_bytes + _SPARE_BYTES


def delays(cluster: str, ports: Sequence[Port]) -> tuple[Delay, ...]:
    """The latencies that a lab adds, shortest first; an error where too much would be in flight."""
    pairs: dict[float, list[tuple[int, int]]] = {}
    for port in ports:
        for other, latency_s in enumerate(port.latencies_s):
            if other != port.index and latency_s >= LEAST_S:
                pairs.setdefault(latency_s, []).append((port.index, other))
    chosen = tuple(
        Delay(index, latency_s, tuple(pairs[latency_s]), _rate(ports, pairs[latency_s]))
        for index, latency_s in enumerate(sorted(pairs))
    )
    total = sum(delay.on_the_way_bytes for delay in chosen)
    if total > MOST_ON_THE_WAY_BYTES:
        worst = max(chosen, key=lambda delay: delay.on_the_way_bytes)
        raise Infeasible(
            f"links of {format_time(worst.latency_s)} that carry "
            f"{format_bytes_rate(worst.rate_bytes_per_s)} together hold "
            f"{format_bytes(worst.on_the_way_bytes)} in flight, and all links of a lab hold at "
            f"most {format_bytes(MOST_ON_THE_WAY_BYTES)}",
            place=f"cluster {cluster} [links.{_levels(ports, worst)[-1]}]",
            fix="describe a shorter latency or a lower bandwidth, or use fewer devices",
        )
    return chosen


def buffers(ports: Sequence[Port], chosen: Sequence[Delay]) -> dict[int, int]:
    """By port, the bytes that one TCP stream's buffers must be able to reach to fill its link."""
    needed: dict[int, int] = {}
    for delay in chosen:
        for source, target in delay.pairs:
            flight = ports[source].rate_to(ports[target]) * 2 * delay.latency_s
            for end in (source, target):
                needed[end] = max(needed.get(end, 0), round(_BUFFERS_PER_ROUND_TRIP * flight))
    return needed


def lines(ports: Sequence[Port], chosen: Sequence[Delay], reason: str) -> list[str]:
    """What is in force, in lines for people; `reason`: why no relay runs, "" where one can."""
    least = format_time(LEAST_S)
    if not chosen:
        said = [f"latency: this machine's own; no link between ports has {least} or more"]
    elif reason:
        said = [f"latency: this machine's own, not the file's: {reason}"]
    else:
        said = [
            f"latency: {format_time(delay.latency_s)} {' and '.join(_levels(ports, delay))}, each "
            f"way, added by a relay; at most {format_bytes(delay.on_the_way_bytes)} in flight"
            for delay in chosen
        ]
        said += [f"latency under {least}: this machine's own"]
        rate = sum(delay.rate_bytes_per_s for delay in chosen)
        if rate > RELAY_BYTES_PER_S:
            said.append(
                f"links with latency carry {format_bytes_rate(rate)} together, the relay about "
                f"{format_bytes_rate(RELAY_BYTES_PER_S)}: all at once are slower than the file says"
            )
    return said + [
        f"latency of {format_time(port.inside_latency_s)} between ranks "
        f"{', '.join(map(str, port.ranks))}: not emulated, since they share a port"
        for port in ports
        if port.inside_latency_s >= LEAST_S
    ]


def _rate(ports: Sequence[Port], pairs: Sequence[tuple[int, int]]) -> float:
    """Bytes per second that all sources send over these pairs: each its rate of each level."""
    sends = {(source, ports[source].levels[target]) for source, target in pairs}
    return sum(
        rate
        for source, level in sends
        for name, rate in ports[source].rates_bytes_per_s
        if name == level
    )


def _levels(ports: Sequence[Port], delay: Delay) -> list[Level]:
    """The levels whose links have the latency, innermost first."""
    names = {ports[source].levels[target] for source, target in delay.pairs}
    return [level for level in LEVELS if level in names]
