"""libfabric: a device for each NIC, the memory registered with it, an endpoint for each peer.

Every peer has its own endpoint, so that one that dies or stalls is closed without the others. Needs
the compiled part (fabric.c), which is built where libfabric's headers are.
"""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass
from typing import Any

from ratrain import compiled
from ratrain.errors import ProviderUnavailable
from ratrain.transport.config import DEVICES
from ratrain.transport.memory.regions import Region
from ratrain.transport.memory.rows import Iov

READ_LIMIT_S = 5.0
_FIX = "install libfabric-dev (Debian) or libfabric-devel, then install ratrain again"


@dataclass(frozen=True, slots=True)
class Key:
    """A registered region as a peer sees it."""

    base: int
    size_bytes: int
    key: int


def _library() -> Any:
    library = compiled.library("transport/providers", "fabric_c")
    if library is None:
        what = "ofi: its compiled part was not built"
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
                f'ofi: libfabric\'s provider "{name}" is not available{what}: {self.reason(rc)}',
                place=host,
                fix="choose another as Config.fabric; `fi_info` lists them",
            )
        self.is_virtual = bool(self.library.ratrain_fabric_is_virtual(self._device))
        self._regions: dict[int, tuple[ctypes.c_void_p, Key]] = {}

    def reason(self, code: int) -> str:
        """libfabric's message for an error."""
        return self.library.ratrain_fabric_reason(compiled.c_long(code)).decode()

    def register(self, region: Region) -> Key | None:
        """Register a region for remote reads; None if it is empty or known."""
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
        registered = self._regions.pop(region.key, None)
        if registered is not None:
            self.library.ratrain_fabric_forget(registered[0])

    def known(self) -> list[Key]:
        """Everything that is registered."""
        return [key for _, key in self._regions.values()]

    def desc(self, region_key: int) -> ctypes.c_void_p:
        """The local descriptor of a region that is read into."""
        registered = self._regions.get(region_key)
        if registered is None:
            return ctypes.c_void_p(None)
        return ctypes.c_void_p(self.library.ratrain_fabric_desc(registered[0]))

    def open_end(self) -> End:
        """An endpoint for one peer."""
        return End(self, self.library, self._device)

    def close(self) -> None:
        """Free everything; every end must have been closed."""
        for handle, _ in self._regions.values():
            self.library.ratrain_fabric_forget(handle)
        self._regions.clear()
        self.library.ratrain_fabric_close_device(self._device)


class End:
    """One endpoint: its `name` goes to the peer, which sends its own name back."""

    def __init__(self, device: Device, library: Any, handle: ctypes.c_void_p) -> None:
        self.device = device
        self._library = library
        self._end = ctypes.c_void_p()
        name, room = ctypes.create_string_buffer(256), ctypes.c_uint64(256)
        rc = library.ratrain_fabric_open_end(
            handle, ctypes.byref(self._end), name, ctypes.byref(room)
        )
        if rc:
            raise ProviderUnavailable(f"ofi: cannot open an endpoint: {device.reason(rc)}")
        self.name = name.raw[: room.value]

    def connect(self, name: bytes) -> None:
        """Connect to the peer's endpoint."""
        rc = self._library.ratrain_fabric_connect(self._end, name)
        if rc:
            raise ProviderUnavailable(
                f"ofi: the peer's endpoint is unknown: {self.device.reason(rc)}"
            )

    def fd(self) -> int | None:
        """A descriptor that is readable when the peer wants something; None if there is none."""
        fd = int(self._library.ratrain_fabric_fd(self._end))
        if fd == -errno.ENOSYS:
            return None
        if fd < 0:
            raise ProviderUnavailable(f"ofi: no descriptor for its queue: {self.device.reason(fd)}")
        return fd

    def serve(self) -> bool:
        """Serve the peer's reads; true when it is safe to sleep."""
        return not self._end or bool(self._library.ratrain_fabric_serve(self._end))

    def read(self, here: Iov, there: Iov, desc: ctypes.c_void_p, key: int, control_fd: int) -> str:
        """Read rows of the peer's region `key`; what went wrong, or "". After a failure (and when
        the peer closes the connection `control_fd`) the end is closed: nothing more lands."""
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
