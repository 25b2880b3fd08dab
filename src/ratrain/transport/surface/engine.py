"""The engine: register memory, write to a peer's, count arrivals, and learn of every failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ratrain.errors import SpecError, TransportError
from ratrain.transport.config import Config
from ratrain.transport.engine.core import Core
from ratrain.transport.engine.stats import snapshot
from ratrain.transport.memory import segments
from ratrain.transport.memory.regions import DeviceSpan, Region
from ratrain.transport.providers.station import open_sockets
from ratrain.transport.surface.groups import ImmBlock, PeerGroup
from ratrain.transport.surface.traffic import Traffic
from ratrain.transport.surface.words import Word
from ratrain.transport.wire.address import Address

COMPILED = not __file__.endswith(".py")


class Engine(Traffic):
    """One process's end of the transport. Use it as a context manager.

    `network` opens its place on a network: this machine's, or a simulated one
    (`LoopbackNetwork.open`)."""

    def __init__(self, config: Config, network: Callable[[Config], Core] = open_sockets) -> None:
        super().__init__(network(config))
        self._words: list[Word] = []

    # --- life -----------------------------------------------------------------------------

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Fail what is in flight, tell the peers, free threads and sockets. Twice is harmless."""
        station = self.core.station
        with station.lock:
            if station.closed or not station.is_ours():
                return
            station.closed = True
            self.core.close()
            station.stop_listening()
            for word in self._words:
                word.stop()
        station.close()

    # --- memory ---------------------------------------------------------------------------

    def register(self, memory: object, *, remote: bool = True, own_key: bool = False) -> Region:
        """Make memory known: bytes of any length and alignment; `remote` lets peers write.
        `own_key` gives the same memory another, separate region, which is revoked by itself."""
        station = self.core.station
        with station.use():
            if isinstance(memory, DeviceSpan) and memory.kind not in station.reachable():
                raise SpecError(
                    f"no provider of this engine reaches memory on {memory.kind}",
                    place="Engine.register",
                    fix='write it with transport.Stage, or open the engine with "ofi" '
                    f'and Config.devices=("{memory.kind}",)',
                )
            region = self.core.arrivals.regions.register(memory, remote=remote, own_key=own_key)
            station.share(region)
            return region

    def allocate(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed memory that peers on this host can map: writes out of it over `shm` cost one
        plain copy. It lives as long as the engine or the array, whichever is longer."""
        with self.core.station.use():
            segment = segments.create(size_bytes)
            self.core.segments.append(segment)
            for peer in self.core.peers.values():
                for link in peer.links:
                    link.channel.offer(segment)
            return segment.array

    def revoke(self, region: Region) -> None:
        """Forget a region. When this returns, peers no longer change any byte of it."""
        station = self.core.station
        with station.use():
            if self.core.arrivals.regions.revoke(region):
                station.unshare(region)
                for peer in self.core.peers.values():
                    peer.ledger.revoke(region.key)

    # --- groups, words --------------------------------------------------------------------

    def imm_block(self, count: int) -> ImmBlock:
        """`count` immediates that this engine has not used before."""
        with self.core.station.use():
            return ImmBlock(self.core, self.core.arrivals.new_ids(count))

    def peer_group(self, members: Sequence[Address]) -> PeerGroup:
        """A group for barriers; `members` are all engines of it, with or without this one."""
        return PeerGroup(self, tuple(m for m in members if m != self.address))

    def watch(
        self,
        callback: Callable[[int, int], object],
        period_s: float = 0.001,
        memory: object = None,
    ) -> Word:
        """A 64-bit cell; `callback(old, new)` when a sample differs; returning False ends it.
        The cell is sampled: steps may be skipped, the last value never. With `memory` (8 bytes
        that others write: a peer, a device into pinned memory) a sample every `period_s`."""
        with self.core.station.use():
            self._words.append(Word(self.core.station, callback, period_s, memory))
            return self._words[-1]

    # --- peers and failures ---------------------------------------------------------------

    def connect(self, address: Address, timeout_s: float | None = None) -> None:
        """Reach a peer now (a first write would do so too); raises the error if that fails."""
        with self.core.station.use():
            peer = self.core.peer(address)
        self.wait_until(lambda: peer.state != "CONNECTING", timeout_s)
        failure = self.why_down(address)
        if failure is not None:
            raise failure

    def why_down(self, address: Address) -> TransportError | None:
        """The error with which a peer went down; None if it did not."""
        return self.core.station.dead.get(address.incarnation)

    def on_peer_down(self, callback: Callable[[Address, Exception], None]) -> None:
        """Call `callback(address, error)` once for every peer that goes down."""
        with self.core.station.use():
            self.core.on_peer_down.append(callback)

    def reaches(self, address: Address, kind: str) -> bool:
        """Whether NICs move memory of `kind` between this engine and a peer without the CPU."""
        if kind == "host":
            return True
        self.connect(address)
        with self.core.station.use():
            peer = self.core.peers.get(address.incarnation)
            links = [] if peer is None else peer.links
            return bool(links) and all(kind in (k.channel.reaches or ()) for k in links)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Serve the network until `ready()`, which is called under the engine's lock; false after
        `timeout_s`."""
        return self.core.station.wait_until(ready, timeout_s)

    def stats(self) -> dict[str, Any]:
        """Counts of this engine, and for each peer and NIC: bytes, rate, round trip."""
        with self.core.station.lock:
            more = {"callback_errors": self.callback_errors, "compiled": COMPILED}
            return {**snapshot(self.core), **more}

    @property
    def callback_errors(self) -> int:
        """How many callbacks have raised."""
        return self.core.station.callback_errors()
