"""Who a peer is and where it listens: addresses and memory descriptors, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from ratrain.errors import BadTarget, SpecError
from ratrain.readers.json import as_table, parse_json

PROTOCOL_VERSION = 1
_HOST_CHARS = 255
_WROTE = "give the bytes, or the file, that the peer wrote"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place where an engine accepts connections: an IP and port, or a socket's path."""

    provider: str
    nic: str
    host: str
    port: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """An engine's name, its incarnation (random, new at each start), and its endpoints."""

    name: str
    incarnation: int
    host_id: str
    endpoints: tuple[Endpoint, ...]
    version: int = PROTOCOL_VERSION

    def __hash__(self) -> int:
        return self.incarnation

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation & 0xFFFF:04x}"

    def to_json(self) -> dict[str, Any]:
        """The address as plain JSON values."""
        ends = [[e.provider, e.nic, e.host, e.port] for e in self.endpoints]
        return {
            "name": self.name,
            "incarnation": self.incarnation,
            "host_id": self.host_id,
            "endpoints": ends,
            "version": self.version,
        }

    def to_bytes(self) -> bytes:
        """The address as bytes to hand to a peer by any means."""
        return json.dumps(self.to_json()).encode()

    @staticmethod
    def from_json(body: object) -> Address:
        """The address in `body`; SpecError when a part is missing or has the wrong type."""
        try:
            parts = cast("dict[str, Any]", body)
            rows = cast("Sequence[Sequence[Any]]", parts["endpoints"])
            if not 0 < len(rows) <= 256:
                raise ValueError(f"{len(rows)} endpoints; from 1 to 256 can be")
            ends = tuple(Endpoint(str(p), str(n), str(h), int(port)) for p, n, h, port in rows)
            if any(not 0 <= end.port < 1 << 16 for end in ends):
                raise ValueError("a port outside of 0 to 65535")
            if any(not _is_host(end) for end in ends):
                raise ValueError("a host that is neither an address nor a socket's name")
            incarnation = int(parts["incarnation"])
            if not 0 < incarnation < 1 << 64:
                raise ValueError("incarnation is not a 64-bit number")
            return Address(
                str(parts["name"])[:64],
                incarnation,
                str(parts["host_id"]),
                ends,
                int(parts["version"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(
                f"not an engine address: {_said(error)}", place="engine address", fix=_WROTE
            ) from error

    @staticmethod
    def from_bytes(data: bytes) -> Address:
        """The address that `to_bytes` wrote."""
        return Address.from_json(_parse(data, "engine address"))


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A remote span of memory: whoever holds it (and the job secret) may write to it."""

    address: Address
    key: int
    offset: int
    size_bytes: int
    kind: str = "host"
    """Whose memory it is: "host", or a kind of device."""

    def __getitem__(self, span: slice) -> Descriptor:
        start, size = span_of(span, self.size_bytes)
        return Descriptor(self.address, self.key, self.offset + start, size, self.kind)

    def to_bytes(self) -> bytes:
        """The descriptor as bytes to hand to a peer by any means."""
        body = {
            "address": self.address.to_json(),
            "key": self.key,
            "offset": self.offset,
            "size_bytes": self.size_bytes,
            "kind": self.kind,
        }
        return json.dumps(body).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Descriptor:
        """The descriptor that `to_bytes` wrote."""
        parts = _parse(data, "memory descriptor")
        try:
            return Descriptor(
                Address.from_json(parts["address"]),
                int(parts["key"]),
                int(parts["offset"]),
                int(parts["size_bytes"]),
                str(parts["kind"])[:16],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(
                f"not a memory descriptor: {_said(error)}", place="memory descriptor", fix=_WROTE
            ) from error


def span_of(span: slice, size_bytes: int) -> tuple[int, int]:
    """Start and length of `span` in a region of `size_bytes`; no silent clipping."""
    start = 0 if span.start is None else int(span.start)
    stop = size_bytes if span.stop is None else int(span.stop)
    if span.step not in (None, 1) or not 0 <= start <= stop <= size_bytes:
        raise BadTarget(
            f"slice [{start}:{stop}] is not inside a region of {size_bytes} bytes",
            fix=f"give bounds with 0 <= start <= stop <= {size_bytes}",
        )
    return start, stop - start


def _is_host(end: Endpoint) -> bool:
    """Whether a socket can be asked for a host of this name."""
    if end.provider == "shm":  # a path, or the name of a socket without one, which begins with NUL
        return "\0" not in end.host[1:]
    return len(end.host) <= _HOST_CHARS and end.host.isascii() and "\0" not in end.host


def _said(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _parse(data: bytes, what: str) -> dict[str, Any]:
    try:
        return as_table(*parse_json(data, what))[0]
    except SpecError as error:
        raise SpecError(f"no {what}: {error.what}", place=error.place, fix=_WROTE) from error
