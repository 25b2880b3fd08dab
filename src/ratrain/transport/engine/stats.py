"""What an engine knows of itself, as plain values."""

from __future__ import annotations

from typing import Any

from ratrain.transport.engine.core import Core
from ratrain.transport.engine.link import Link


def snapshot(core: Core) -> dict[str, Any]:
    """The counts, and for each peer its state and links (called under the engine's lock)."""
    peers = {
        str(p.address): {
            "state": p.state,
            "resent_pieces": p.outbox.resent_pieces,
            "links": [_of_link(k) for k in p.links],
        }
        for p in core.peers.values()
    }
    return {**core.station.stats, "peers": peers}


def _of_link(link: Link) -> dict[str, Any]:
    return {
        "provider": link.channel.provider,
        "nic": link.nic,
        "remote_nic": link.remote,
        "single_copy": link.channel.pulls,
        "acked_bytes": link.delivered_bytes,
        "rate_bytes_per_s": link.rate_bytes_per_s,
        "rtt_s": link.rtt_s,
    }
