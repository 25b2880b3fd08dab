"""The provider `ofi`: control over TCP, large payloads read by the receiver through libfabric.

The sender's frame names the place of the payload; the receiver, once it has allowed the piece,
reads it with fi_read. Registered memory is announced to each peer with its key. Every peer has
an endpoint of its own, so that one that dies or stalls is closed without the others.
Needs the compiled part (fabric.c), which is built where libfabric's headers are.
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from ratrain import compiled
from ratrain.errors import ProviderUnavailable
from ratrain.transport import frames
from ratrain.transport.config import DEVICES
from ratrain.transport.frames import Head
from ratrain.transport.memory import Region
from ratrain.transport.provider import Iov, Landing, Receiver
from ratrain.transport.rows import remote_rows
from ratrain.transport.stream import StreamChannel

READ_LIMIT_S = 5.0
CONNECT_S, CONNECT_SLEEP_S = 0.5, 0.005  # after a connection was made
READ_S, READ_SLEEP_S = 3.0, 0.001  # after the peer was told to read
SLEEP_S = 0.05
LEAST_PAGE_BYTES = 4096  # smaller ones cost more to read than to send
MAX_KEYS = 4096  # the latest announcements of a peer that are remembered
_FIX = "install libfabric-dev (Debian) or libfabric-devel, then install ratrain again"


@dataclass(frozen=True, slots=True)
class Key:
    """A registered region as a peer sees it."""

    base: int
    size_bytes: int
    key: int


def _library() -> Any:
    library = compiled.library("transport", "fabric_c")
    if library is None:
        what = "ofi: its compiled part is not there"
        raise ProviderUnavailable(what, place="Config.providers", fix=_FIX)
    library.ratrain_fabric_reason.restype = ctypes.c_char_p
    library.ratrain_fabric_desc.restype = ctypes.c_void_p
    for name in ("open_device", "register", "open_end", "connect", "fd", "serve", "read"):
        getattr(library, f"ratrain_fabric_{name}").restype = ctypes.c_int64
    return library


class Device:
    """One libfabric domain: one NIC."""

    def __init__(self, name: str, host: str, devices: tuple[str, ...] = ()) -> None:
        self.library = _library()
        self.kinds = frozenset(devices)
        self._device = ctypes.c_void_p()
        beyond = sorted(self.kinds - {"system"})
        rc = self.library.ratrain_fabric_open_device(
            name.encode(), host.encode(), compiled.c_long(len(beyond)), ctypes.byref(self._device)
        )
        if rc:
            what = f" for memory on {', '.join(beyond)}" if beyond else ""
            raise ProviderUnavailable(
                f'ofi: libfabric\'s provider "{name}" is not to be had{what}: {self.reason(rc)}',
                place=host,
                fix="choose another as Config.fabric; `fi_info` lists them",
            )
        self.is_virtual = bool(self.library.ratrain_fabric_is_virtual(self._device))
        self._regions: dict[int, tuple[ctypes.c_void_p, Key]] = {}

    def reason(self, code: int) -> str:
        """libfabric's words for an error."""
        return self.library.ratrain_fabric_reason(compiled.c_long(code)).decode()

    def register(self, region: Region) -> Key | None:
        """Register a region for reads from afar; None when it is empty or known."""
        if not region.size_bytes or region.key in self._regions:
            return None
        handle, number = ctypes.c_void_p(), ctypes.c_uint64()
        rc = self.library.ratrain_fabric_register(
            self._device,
            ctypes.c_void_p(region.base),
            compiled.c_long(region.size_bytes),
            compiled.c_long(DEVICES.index(region.memory.kind) if region.memory else 0),
            compiled.c_long(region.memory.ordinal if region.memory else 0),
            ctypes.byref(handle),
            ctypes.byref(number),
        )
        if rc:
            raise ProviderUnavailable(
                f"ofi: memory cannot be registered: {self.reason(rc)}",
                place=f"{region.size_bytes} bytes",
                fix="raise the limit of locked memory (ulimit -l)",
            )
        key = Key(region.base, region.size_bytes, number.value)
        self._regions[region.key] = handle, key
        return key

    def forget(self, region: Region) -> None:
        """The region was revoked."""
        found = self._regions.pop(region.key, None)
        if found is not None:
            self.library.ratrain_fabric_forget(found[0])

    def known(self) -> list[Key]:
        """All that is registered."""
        return [key for _, key in self._regions.values()]

    def desc(self, region_key: int) -> ctypes.c_void_p:
        """The local descriptor of a region that is read into."""
        found = self._regions.get(region_key)
        return ctypes.c_void_p(self.library.ratrain_fabric_desc(found[0]) if found else None)

    def open_end(self) -> End:
        """An endpoint for one peer."""
        return End(self, self.library, self._device)

    def close(self) -> None:
        """Free all; every end must be closed before."""
        for handle, _ in self._regions.values():
            self.library.ratrain_fabric_forget(handle)
        self._regions.clear()
        self.library.ratrain_fabric_close_device(self._device)


class End:
    """One endpoint: its `name` goes to the peer, whose name comes back."""

    def __init__(self, device: Device, library: Any, handle: ctypes.c_void_p) -> None:
        self.device = device
        self._library = library
        self._end = ctypes.c_void_p()
        name, room = ctypes.create_string_buffer(256), ctypes.c_uint64(256)
        rc = library.ratrain_fabric_open_end(
            handle, ctypes.byref(self._end), name, ctypes.byref(room)
        )
        if rc:
            raise ProviderUnavailable(f"ofi: no endpoint: {device.reason(rc)}")
        self.name = name.raw[: room.value]

    def connect(self, name: bytes) -> None:
        """Say whom this end talks to."""
        rc = self._library.ratrain_fabric_connect(self._end, name)
        if rc:
            raise ProviderUnavailable(f"ofi: the peer's endpoint is unknown: {rc}")

    def fd(self) -> int | None:
        """A descriptor that is readable when the peer asks for something, if there is one."""
        fd = int(self._library.ratrain_fabric_fd(self._end))
        if fd == -errno.ENOSYS:
            return None
        if fd < 0:
            raise ProviderUnavailable(f"ofi: its queue is not to be had: {self.device.reason(fd)}")
        return fd

    def serve(self) -> bool:
        """Serve the peer's reads; true when it is safe to sleep."""
        return not self._end or bool(self._library.ratrain_fabric_serve(self._end))

    def read(self, here: Iov, there: Iov, desc: ctypes.c_void_p, key: int, control_fd: int) -> str:
        """Read rows of the peer's region `key`; what went wrong, or nothing. After a failure (and
        when the peer closes the connection `control_fd`) the end is closed: nothing more lands."""
        if not self._end:
            return "the endpoint is closed"
        rc = self._library.ratrain_fabric_read(
            ctypes.byref(self._end),
            compiled.c_long(len(here)),
            compiled.address(here),
            compiled.address(there),
            desc,
            ctypes.c_uint64(key),
            compiled.c_long(control_fd),
            compiled.c_long(int(READ_LIMIT_S * 1000)),
        )
        return self.device.reason(rc) if rc else ""

    def close(self) -> None:
        """Free it; twice is harmless."""
        if self._end:
            self._library.ratrain_fabric_close_end(self._end)
            self._end = ctypes.c_void_p()


class FabricChannel(StreamChannel):
    """A TCP connection for frames, and an endpoint for what is large."""

    def use(self, end: End, peer_name: bytes) -> None:
        """Before `attach`: the endpoint that goes with the connection."""
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
        """Serve the peer's reads; seconds that may be slept. Connecting, and the answer to a read
        that the socket did not take at once, are not seen on libfabric's descriptor: while a peer
        may be reading, the sleep is short."""
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
        """Tell the peer of a region that it may read."""
        head = Head(frames.FEATURE, imm=3, tid=key.key, key=key.base, total=key.size_bytes)
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
        if head.imm == 3:
            self._keys.append(Key(head.key, head.total, head.tid))
        elif head.imm == 1:
            self.pulls = True

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
