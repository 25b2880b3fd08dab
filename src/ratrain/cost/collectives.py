"""How long a message or a collective takes: latency, bytes on the wire, messages to drive.

alpha-beta-o: a message takes alpha + bytes / bandwidth; driving it takes o of the sender's
compute (LogP, Culler et al. 1993), and what a device's own processors need for its bytes takes from
the compute of both ends (`Loss`). Rings send n - 1 messages of size / n for each half
(reduce-scatter, all-gather): Thakur et al. 2005, "Optimization of collective communication
operations in MPICH".

A tree serves where only latency counts: 2 ceil(log2 n) messages (the same source).
Where a link's bandwidth was measured by message size, what a message of its size takes beyond the
full bandwidth counts as latency: no other message could use that time.

Not modelled: trees for other sizes, in-network reduction, how much later a reduction ends for its
arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ratrain.describe.cluster import ChipLink, Link
from ratrain.describe.device import DeviceKind


@dataclass(frozen=True)
class Transfer:
    """What one participant sends: time that no bandwidth shortens, bytes as its link is in use for
    them, time of its compute that links' overheads take. `messages` and `moved_bytes`: as its
    processors see them, on whatever links."""

    latency_s: float
    volume_bytes: float
    driving_s: float
    messages: float = 0.0
    moved_bytes: float = 0.0

    def times(self, count: int) -> Transfer:
        """The same, `count` times in a row."""
        return Transfer(
            self.latency_s * count,
            self.volume_bytes * count,
            self.driving_s * count,
            self.messages * count,
            self.moved_bytes * count,
        )

    def plus(self, other: Transfer) -> Transfer:
        """This one, then another."""
        return Transfer(
            self.latency_s + other.latency_s,
            self.volume_bytes + other.volume_bytes,
            self.driving_s + other.driving_s,
            self.messages + other.messages,
            self.moved_bytes + other.moved_bytes,
        )

    def alone_s(self, bandwidth_bytes_per_s: float) -> float:
        """Its time on a link that nothing else uses."""
        return self.latency_s + self.volume_bytes / bandwidth_bytes_per_s


NOTHING = Transfer(0.0, 0.0, 0.0)
_SUM_PASSES = 3


class Loss(NamedTuple):
    """Seconds of its compute that a device whose own processors move bytes loses for each message
    of a transfer, and for each of its bytes."""

    per_message_s: float
    per_byte_s: float

    def of(self, transfer: Transfer) -> float:
        return self.per_message_s * transfer.messages + self.per_byte_s * transfer.moved_bytes

    def driven(self, transfer: Transfer) -> Transfer:
        """The transfer as it takes from compute: for links' overheads, and this besides."""
        return replace(transfer, driving_s=transfer.driving_s + self.of(transfer))


NO_LOSS = Loss(0.0, 0.0)


def message_loss(device: DeviceKind) -> Loss:
    """Of a message, at either end."""
    driving = device.driving
    return Loss(driving.stall * driving.per_message_s, driving.stall * driving.per_byte_s)


def gather_loss(device: DeviceKind) -> Loss:
    """Of a gather, in which a rank receives as much as it sends."""
    per_message_s, per_byte_s = message_loss(device)
    return Loss(2 * per_message_s, 2 * per_byte_s)


def reduction_loss(device: DeviceKind) -> Loss:
    """Of a reduction, in which a rank also adds up what it receives beside compute: two numbers are
    read and one is written."""
    per_message_s, per_byte_s = gather_loss(device)
    summed_s = device.driving.lost_beside * _SUM_PASSES / device.elementwise_bytes_per_s
    return Loss(per_message_s, per_byte_s + summed_s)


def message(
    size_bytes: float, link: Link, *, blocking: bool = False, after_s: float = 0.0
) -> Transfer:
    """One point-to-point message: alpha, its bytes, o; and what follows it over other links,
    `after_s`. `blocking`: o is all of its time."""
    latency_s = link.latency_s + link.size_s(size_bytes) + after_s
    sent = Transfer(latency_s, size_bytes, link.overhead_s, 1, size_bytes)
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
        return message(own_bytes, link).plus(rest)
    each_s = link.latency_s + link.size_s(size_bytes / ranks)
    latency_s = hops * each_s + link.collective_s
    sent_bytes = size_bytes * hops / ranks
    return Transfer(latency_s, sent_bytes, hops * link.overhead_s, hops, sent_bytes)


def ring_all_reduce(size_bytes: float, ranks: int, link: Link) -> Transfer:
    """A ring all-reduce: a reduce-scatter and an all-gather, started as one collective."""
    both = ring_half(size_bytes, ranks, link).times(2)
    return replace(both, latency_s=both.latency_s - link.collective_s)


def fastest_all_reduce(size_bytes: float, ranks: int, link: Link) -> Transfer:
    """A ring all-reduce; or inside a chip what its network takes, where that is faster. Nothing
    else uses that network meanwhile."""
    ring = ring_all_reduce(size_bytes, ranks, link)
    network = link.network if isinstance(link, ChipLink) else None
    if network is None or ranks == 1:
        return ring
    inside_s = network.sum_s(size_bytes, ranks, network.has)
    if inside_s is None or inside_s >= ring.alone_s(link.bandwidth_bytes_per_s):
        return ring
    return Transfer(inside_s + link.collective_s, 0.0, 0.0, 1.0, size_bytes)


def tree_all_reduce(size_bytes: float, ranks: int, link: Link) -> Transfer:
    """An all-reduce of a few bytes: up a binomial tree and down again, 2 ceil(log2 n) messages."""
    if ranks == 1:
        return NOTHING
    hops = 2 * (ranks - 1).bit_length()
    each_s = link.latency_s + link.size_s(size_bytes)
    latency_s = hops * each_s + link.collective_s
    sent_bytes = hops * size_bytes
    return Transfer(latency_s, sent_bytes, hops * link.overhead_s, hops, sent_bytes)
