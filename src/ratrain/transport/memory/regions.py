"""Registered memory: any length and alignment, anything with a buffer or a data pointer."""

from __future__ import annotations

import ctypes
import secrets
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ratrain.errors import BadTarget, SpecError
from ratrain.transport.wire.address import Address, Descriptor, span_of


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """Memory of a device, which the CPU must not touch; `owner` keeps it alive."""

    kind: str
    """One of config.DEVICES: "cuda", "rocr", ...; "system" is RAM."""
    base: int
    size_bytes: int
    ordinal: int = 0
    owner: Any = None


class Region:
    """A registered span of local memory. Whoever knows `key`, a random number, may write to it."""

    __slots__ = (
        "_owner",
        "base",
        "holders",
        "key",
        "kind",
        "memory",
        "remote",
        "revoked",
        "size_bytes",
        "view",
    )

    def __init__(self, owner: Address, memory: object, *, remote: bool) -> None:
        self.memory = memory if isinstance(memory, DeviceSpan) else None
        if self.memory is None:
            self.kind = "host"
            self.view = bytes_of(memory)
            self.size_bytes = self.view.nbytes
            self.base = address_of(self.view)
        else:
            self.kind = self.memory.kind
            self.view = memoryview(b"")
            self.size_bytes, self.base = self.memory.size_bytes, self.memory.base
        self.key = secrets.randbits(63) | 1 << 63
        self.remote = remote
        self.revoked = False
        self.holders = 1
        self._owner = owner

    def __getitem__(self, span: slice) -> Span:
        start, size = span_of(span, self.size_bytes)
        return Span(self, start, size)

    def __len__(self) -> int:
        return self.size_bytes

    def descriptor(self) -> Descriptor:
        """What a peer needs to write into this region."""
        if not self.remote:
            raise BadTarget("this region is for local use only", fix="register it with remote=True")
        return Descriptor(self._owner, self.key, 0, self.size_bytes, self.kind)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a region."""

    region: Region
    offset: int
    size_bytes: int


class RegionTable:
    """The regions of one engine, by key and by their place in memory."""

    def __init__(self, owner: Address) -> None:
        self.owner = owner
        self.by_key: dict[int, Region] = {}
        self._by_place: dict[tuple[str, int, int, bool], Region] = {}

    def register(self, memory: object, *, remote: bool, own_key: bool = False) -> Region:
        """The region over `memory`. Registering the same bounds again returns the same region and
        counts one more holder; with `own_key` the region is always new, and revoked by itself."""
        region = Region(self.owner, memory, remote=remote)
        place = _place(region)
        if own_key:
            self.by_key[region.key] = region
            return region
        known = self._by_place.get(place) if region.size_bytes else None
        if known is not None:
            known.holders += 1
            return known
        self._by_place[place] = region
        if remote:
            self.by_key[region.key] = region
        return region

    def revoke(self, region: Region) -> bool:
        """Drop one holder; true when it was the last and the region is gone."""
        if region.revoked:
            return False
        region.holders -= 1
        if region.holders:
            return False
        region.revoked = True
        self.by_key.pop(region.key, None)
        place = _place(region)
        if self._by_place.get(place) is region:
            del self._by_place[place]
        return True


def _place(region: Region) -> tuple[str, int, int, bool]:
    return region.kind, region.base, region.size_bytes, region.remote


def source_of(src: Region | Span) -> tuple[Region, int, int]:
    """Region, offset and size that a write reads; BadTarget when the region was revoked."""
    region, offset, size = (
        (src, 0, src.size_bytes)
        if isinstance(src, Region)
        else (src.region, src.offset, src.size_bytes)
    )
    if region.revoked:
        raise BadTarget("the source region was revoked", fix="register it again")
    return region, offset, size


def too_small(size: int, dst: Descriptor) -> BadTarget:
    """The error for a write that is larger than its target."""
    return BadTarget(
        f"{size} bytes do not fit into a target of {dst.size_bytes}", place=str(dst.address)
    )


def bytes_of(memory: object) -> memoryview:
    """`memory` as writable bytes, without a copy: a buffer, an array, a host tensor,
    or (pointer, length, "cpu")."""
    if isinstance(memory, tuple):
        ptr, size, device = cast("tuple[int, int, str]", memory)
        if device != "cpu":
            raise _no_device(device)
        return _raw(ptr, size)
    if hasattr(memory, "data_ptr"):  # a torch tensor, without importing torch
        tensor = cast("Any", memory)
        if tensor.device.type != "cpu":
            raise _no_device(str(tensor.device))
        if not tensor.is_contiguous():
            raise SpecError("only contiguous tensors can be registered", fix="call .contiguous()")
        raw = (ctypes.c_ubyte * (tensor.numel() * tensor.element_size())).from_address(
            tensor.data_ptr()
        )
        raw._tensor = tensor  # keeps the storage alive as long as the view lives
        return memoryview(raw).cast("B")
    try:
        view = memoryview(cast("Any", memory))
        if not view.c_contiguous:
            raise SpecError("only contiguous arrays can be registered", fix="copy it first")
        return view.cast("B") if view.nbytes else memoryview(bytearray())
    except (TypeError, ValueError) as error:
        raise SpecError(f"{type(memory).__name__} has no buffer to register: {error}") from error


def address_of(view: memoryview) -> int:
    """The address of the first byte of `view` (0 for an empty one)."""
    return int(np.frombuffer(view, np.uint8).ctypes.data) if view.nbytes else 0


def _raw(ptr: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(ptr)).cast("B")


def _no_device(device: str) -> SpecError:
    return SpecError(
        f"memory on {device} cannot be registered: only host memory can",
        fix="write it with transport.Stage, or copy it to a host buffer first",
    )
