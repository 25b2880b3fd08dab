"""The provider `ofi`: frames over TCP, large payloads read by the receiver through libfabric.

The sender's frame names the place of the payload; the receiver, once it has allowed the piece,
reads it with fi_read. Registered memory is announced to each peer with its key.
"""

from __future__ import annotations

import errno
import socket
import time
from collections import deque

import numpy as np

from ratrain.transport.config import Config
from ratrain.transport.engine.channel import Landing, Receiver
from ratrain.transport.engine.core import Core
from ratrain.transport.loop.driver import Driver
from ratrain.transport.memory.regions import Region
from ratrain.transport.memory.rows import Iov, remote_rows
from ratrain.transport.providers.fabric import Device, End, Key
from ratrain.transport.providers.stream import REGION, StreamChannel
from ratrain.transport.wire import frames
from ratrain.transport.wire.frames import Head

CONNECT_S, CONNECT_SLEEP_S = 0.5, 0.005  # after a connection was made
READ_S, READ_SLEEP_S = 3.0, 0.001  # after the peer was told to read
SLEEP_S = 0.05
LEAST_PAGE_BYTES = 4096  # smaller ones cost more to read than to send
MAX_KEYS = 4096  # the latest announcements of a peer that are remembered


class FabricChannel(StreamChannel):
    """A TCP connection for frames, and an endpoint for large payloads."""

    def __init__(
        self, driver: Driver, sock: socket.socket, nic: str, end: End, peer_name: bytes
    ) -> None:
        super().__init__(driver, sock, "ofi", nic)
        end.connect(peer_name)
        self.least_page_bytes = LEAST_PAGE_BYTES
        self.reaches = end.device.kinds
        self._far = end
        self._far_fd = end.fd()
        self._keys: deque[Key] = deque(maxlen=MAX_KEYS)
        self._eager_until_s, self._eager_sleep_s = time.monotonic() + CONNECT_S, CONNECT_SLEEP_S

    def attach(self, receiver: Receiver, *, reads_peer: bool) -> None:
        """Part of Channel."""
        super().attach(receiver, reads_peer=reads_peer)
        if self._far_fd is not None:
            self._driver.add(self._far_fd, lambda _: None)
        self._driver.before_sleep[self._fd] = self._serve
        for key in self._far.device.known():
            self.announce(key)

    def _serve(self) -> float:
        """Serve the peer's reads; the seconds that may be slept. libfabric's descriptor shows
        neither connecting nor an answer that the socket did not take at once: while a peer may be
        reading, the sleep is short."""
        if not self._far.serve():
            return 0.0
        return self._eager_sleep_s if time.monotonic() < self._eager_until_s else SLEEP_S

    def post(
        self,
        head: Head,
        extra: bytes,
        payload: memoryview | Iov | None,
        lead: tuple[Head, bytes] | None = None,
    ) -> None:
        """Part of Channel."""
        if head.flags & frames.PULL:
            self._eager_until_s, self._eager_sleep_s = time.monotonic() + READ_S, READ_SLEEP_S
        super().post(head, extra, payload, lead)

    def announce(self, key: Key) -> None:
        """Tell the peer about a region that it may read."""
        head = Head(frames.FEATURE, imm=REGION, tid=key.key, key=key.base, total=key.size_bytes)
        self.post(head, b"", None)

    def close(self) -> None:
        """Part of Channel."""
        if not self.closed:
            self._driver.before_sleep.pop(self._fd, None)
            if self._far_fd is not None:
                self._driver.remove(self._far_fd)
            super().close()
            self._far.close()

    def _learn(self, head: Head) -> None:
        if head.imm == REGION:
            self._keys.append(Key(head.key, head.total, head.tid))
        else:
            super()._learn(head)

    def _fetch(self, landing: Landing, extra: bytes) -> bool:
        here, there = landing.iov, remote_rows(landing.head, extra)
        if here is None:
            here = np.array([[landing.offset, landing.head.size]], np.uint64)
        first, last = int(there[:, 0].min()), int((there[:, 0] + there[:, 1]).max())
        for key in reversed(self._keys):
            if key.base <= first and last <= key.base + key.size_bytes:
                break
        else:
            return False
        device = self._far.device
        if not device.is_virtual:
            there = there - np.array([key.base, 0], np.uint64)
        rows = np.ascontiguousarray(here), np.ascontiguousarray(there)
        wrong = self._far.read(*rows, device.desc(landing.key), key.key, self._fd)
        if wrong:  # the endpoint is gone, so the connection goes as well
            self._fail(OSError(errno.ECONNRESET, f"libfabric: {wrong}"))
        return not wrong


class Devices:
    """libfabric's devices for one engine, one for each NIC; none without the provider `ofi`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._by_nic: dict[str, Device] = {}

    def open(self, nic: str, host: str) -> None:
        """Open the device of a NIC."""
        self._by_nic[nic] = Device(self._config.fabric, host, self._config.devices)

    def open_end(self, nic: str) -> End:
        """An endpoint on a NIC, for one peer."""
        return self._by_nic[nic].open_end()

    def reachable(self) -> frozenset[str]:
        """Kinds of device memory that they read and fill without the CPU."""
        return frozenset(self._config.devices) if self._by_nic else frozenset()

    def register(self, core: Core, region: Region) -> None:
        """Let peers read the region (called under the lock)."""
        for nic, device in self._by_nic.items():
            key = device.register(region)
            if key is None:
                continue
            for peer in core.peers.values():
                for link in peer.links:
                    channel = link.channel
                    if link.nic == nic and isinstance(channel, FabricChannel):
                        channel.announce(key)

    def forget(self, region: Region) -> None:
        """The region was revoked (called under the lock)."""
        for device in self._by_nic.values():
            device.forget(region)

    def close(self) -> None:
        """Free everything, once no connection is left."""
        for device in self._by_nic.values():
            device.close()
        self._by_nic.clear()
