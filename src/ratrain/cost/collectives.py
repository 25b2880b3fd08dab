"""How long a message or a collective takes: latency, bytes on the wire, messages to drive.

alpha-beta-o: a message takes alpha + bytes / bandwidth; driving it takes o of the sender's
compute (LogP, Culler et al. 1993), and what a device's own processors need for its bytes takes from
the compute of both ends (`own_driving_s`). Rings send n - 1 messages of size / n for each half
(reduce-scatter, all-gather): Thakur et al. 2005, "Optimization of collective communication
operations in MPICH".

A tree serves where only latency counts: 2 ceil(log2 n) messages (the same source).
Where a link's bandwidth was measured by message size, what a message of its size takes beyond the
full bandwidth counts as latency: no other message could use that time.

Not modelled: trees for other sizes, in-network reduction, the arithmetic of a reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ratrain.describe.cluster import DeviceKind, Link


@dataclass(frozen=True)
class Transfer:
    """What one participant sends: time that no bandwidth shortens, bytes, time of its compute that
    links' overheads take, messages."""

    latency_s: float
    volume_bytes: float
    driving_s: float
    messages: float = 0.0

    def times(self, count: int) -> Transfer:
        """The same, `count` times in a row."""
        return Transfer(
            self.latency_s * count,
            self.volume_bytes * count,
            self.driving_s * count,
            self.messages * count,
        )

    def plus(self, other: Transfer) -> Transfer:
        """This one, then another."""
        return Transfer(
            self.latency_s + other.latency_s,
            self.volume_bytes + other.volume_bytes,
            self.driving_s + other.driving_s,
            self.messages + other.messages,
        )

    def alone_s(self, bandwidth_bytes_per_s: float) -> float:
        """Its time on a link that nothing else uses."""
        return self.latency_s + self.volume_bytes / bandwidth_bytes_per_s


NOTHING = Transfer(0.0, 0.0, 0.0)


def own_driving_s(transfer: Transfer, device: DeviceKind, *, ways: int = 1) -> float:
    """Seconds of a device's compute that its own processors take to move a transfer. `ways`: 2 in a
    collective, in which a rank receives as much as it sends."""
    return ways * device.driving.lost_s(transfer.messages, transfer.volume_bytes)


def driven(transfer: Transfer, device: DeviceKind, *, ways: int = 1) -> Transfer:
    """The transfer as it takes from a device's compute: for links' overheads, and `own_driving_s`
    besides."""
    own_s = own_driving_s(transfer, device, ways=ways)
    return replace(transfer, driving_s=transfer.driving_s + own_s)


def message(
    size_bytes: float, link: Link, *, blocking: bool = False, after_s: float = 0.0
) -> Transfer:
    """One point-to-point message: alpha, its bytes, o; and what follows it over other links,
    `after_s`. `blocking`: o is all of its time."""
    latency_s = link.latency_s + link.size_s(size_bytes) + after_s
    sent = Transfer(latency_s, size_bytes, link.overhead_s, 1)
    if not blocking:
        return sent
    return replace(sent, driving_s=sent.alone_s(link.bandwidth_bytes_per_s))


def ring_half(size_bytes: float, ranks: int, link: Link, widened: float = 1.0) -> Transfer:
    """A ring reduce-scatter or all-gather of a state of size_bytes over `ranks` ranks.

    (n - 1) messages of size / n: latency (n - 1) alpha, bytes size (n - 1) / n, driving (n - 1) o.
    `widened`: how many times as long a sum's element is on its way as a rank's own; all messages of
    a ring's reduction but the first are sums.
    """
    if ranks == 1:
        return NOTHING
    hops = ranks - 1
    if widened != 1.0 and hops > 1:
        rest = ring_half(widened * size_bytes * (ranks - 1) / ranks, ranks - 1, link)
        own_bytes = size_bytes / ranks
        first = Transfer(link.latency_s + link.size_s(own_bytes), own_bytes, link.overhead_s, 1)
        return first.plus(rest)
    each_s = link.latency_s + link.size_s(size_bytes / ranks)
    latency_s = hops * each_s + link.collective_s
    return Transfer(latency_s, size_bytes * hops / ranks, hops * link.overhead_s, hops)


def ring_all_reduce(size_bytes: float, ranks: int, link: Link) -> Transfer:
    """A ring all-reduce: a reduce-scatter and an all-gather, started as one collective."""
    both = ring_half(size_bytes, ranks, link).times(2)
    return replace(both, latency_s=both.latency_s - link.collective_s)


def tree_all_reduce(size_bytes: float, ranks: int, link: Link) -> Transfer:
    """An all-reduce of a few bytes: up a binomial tree and down again, 2 ceil(log2 n) messages."""
    if ranks == 1:
        return NOTHING
    hops = 2 * (ranks - 1).bit_length()
    each_s = link.latency_s + link.size_s(size_bytes)
    latency_s = hops * each_s + link.collective_s
    return Transfer(latency_s, hops * size_bytes, hops * link.overhead_s, hops)
