"""The surface: register memory, write to a peer's, count arrivals, and hear of every failure."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ratrain.errors import BadTarget, EngineClosed, SpecError
from ratrain.transport import frames, segments
from ratrain.transport.address import Address, Descriptor
from ratrain.transport.config import Config
from ratrain.transport.core import Core
from ratrain.transport.counters import Counter
from ratrain.transport.dispatch import Dispatcher
from ratrain.transport.groups import ImmBlock, PeerGroup, Target
from ratrain.transport.memory import DeviceSpan, Region, Span, source_of, too_small
from ratrain.transport.paging import Pages, page_offsets
from ratrain.transport.progress import Driver
from ratrain.transport.sockets import Sockets, address_of
from ratrain.transport.stats import snapshot
from ratrain.transport.transfer import BOTH_HOST, Offsets, Transfer
from ratrain.transport.words import Word

COMPILED = not __file__.endswith(".py")
_EMPTY: Final = memoryview(b"")


class Engine:
    """One process's end of the transport. Use it as a context manager."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.lock = threading.RLock()
        self._pid = os.getpid()
        self._closed = False
        self._dispatcher = Dispatcher(config)
        self._next_imm = 1
        self._words: list[Word] = []
        self._open()

    def _open(self) -> None:
        self._driver = Driver(self.lock, self.config.spin_s)
        self._sockets = Sockets(self.config, self._driver)
        try:
            self.address = address_of(self.config, self._sockets.listen())
        except BaseException:
            self._driver.stop()
            raise
        self.core = Core(self, self.config, self.address, time.monotonic, self._sockets.connect)
        self._sockets.start(self.core)
        self._driver.start(self.core, self.config.name)

    # --- life -----------------------------------------------------------------------------

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Fail what is in flight, tell the peers, free threads and sockets. Twice is harmless."""
        with self.lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            for peer in list(self.core.peers.values()):
                for link in list(peer.links):
                    link.post(frames.Head(frames.BYE))
                gone = EngineClosed("this engine was closed", place=str(self.address))
                self.core.peer_down(peer, "engine closed", error=gone)
            self._sockets.close()
            for word in self._words:
                word.stop()
            for segment in self.core.segments:
                os.close(segment.fd)
            self.core.segments.clear()
        self._driver.stop()
        self._sockets.join()
        self._sockets.close_devices()
        self._dispatcher.close()

    # --- memory ---------------------------------------------------------------------------

    def register(self, memory: object, *, remote: bool = True, own_key: bool = False) -> Region:
        """Make memory known: bytes of any length and alignment; `remote` lets peers write.
        `own_key` gives the same memory a further, separate region: one per use, to revoke it."""
        with self._use():
            if isinstance(memory, DeviceSpan) and memory.kind not in self.reachable():
                raise SpecError(
                    f"no provider of this engine reaches memory on {memory.kind}",
                    place="Engine.register",
                    fix='write it with transport.staging.Stage, or open the engine with "ofi" '
                    f'and Config.devices=("{memory.kind}",)',
                )
            region = self.core.regions.register(memory, remote=remote, own_key=own_key)
            self._share(region)
            return region

    def allocate(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed memory that peers on this host can map: writes out of it over `shm` cost one
        plain copy. It lives as long as the engine or the array, whichever is longer."""
        with self._use():
            segment = segments.create(size_bytes)
            self.core.segments.append(segment)
            for peer in self.core.peers.values():
                for link in peer.links:
                    if link.channel.provider == "shm":
                        link.channel.offer(segment)
            return segment.array

    def revoke(self, region: Region) -> None:
        """Forget a region. When this returns, no byte of it changes any more by a peer's hand."""
        with self._use():
            if self.core.regions.revoke(region):
                self._unshare(region)
                for peer in self.core.peers.values():
                    peer.ledger.revoke(region.key)

    # --- writing --------------------------------------------------------------------------

    def write(
        self,
        src: Region | Span,
        dst: Descriptor,
        *,
        imm: int | None = None,
        nics: Sequence[str] | None = None,
        deadline_s: float | None = None,
    ) -> Transfer:
        """Copy `src` to the start of `dst`. With `imm`, the receiver's counter of that value
        moves by one when all bytes are placed."""
        region, offset, size = source_of(src)
        if size > dst.size_bytes:
            raise too_small(size, dst)
        return self._submit(
            dst.address,
            view=region.view[offset : offset + size],
            base=region.base + offset,
            total=size,
            key=dst.key,
            dst_offset=dst.offset,
            imm=imm,
            deadline_s=deadline_s,
            nics=nics,
            kinds=(region.kind, dst.kind),
        )

    def write_paged(
        self,
        src: Region | Span,
        src_pages: Pages,
        dst: Descriptor,
        dst_pages: Pages,
        page_bytes: int,
        *,
        src_stride: int | None = None,
        dst_stride: int | None = None,
        imm: int | None = None,
        imm_per: str = "op",
        deadline_s: float | None = None,
    ) -> Transfer:
        """Copy page `src_pages[i]` to page `dst_pages[i]`. A page number times its stride
        (default: the page length) is its offset. A destination page named twice holds one of
        the two, which one is not defined."""
        region, offset, size = source_of(src)
        from_b, to_b = page_offsets(
            (src_pages, src_stride or page_bytes, size),
            (dst_pages, dst_stride or page_bytes, dst.size_bytes),
            page_bytes,
            str(dst.address),
        )
        if imm_per not in ("op", "page"):
            raise SpecError(f'imm_per is "op" or "page", not {imm_per!r}')
        return self._submit(
            dst.address,
            view=region.view[offset : offset + size],
            base=region.base + offset,
            total=from_b.size * page_bytes,
            key=dst.key,
            dst_offset=dst.offset,
            imm=imm,
            flags=frames.PER_PAGE if imm_per == "page" and imm is not None else 0,
            pages=(from_b, to_b, page_bytes),
            deadline_s=deadline_s,
            kinds=(region.kind, dst.kind),
        )

    def scatter(
        self,
        src: Region | Span,
        targets: Sequence[Target],
        *,
        deadline_s: float | None = None,
    ) -> list[Transfer]:
        """Write a part of `src` to each target: one transfer, and one immediate, each."""
        region, start, size = source_of(src)
        spans: list[Span] = []
        for target in targets:
            if target.offset + target.size_bytes > size:
                raise BadTarget(f"a target's source part leaves the source of {size} bytes")
            spans.append(Span(region, start + target.offset, target.size_bytes))
        return [
            self.write(span, target.dst, imm=target.imm, deadline_s=deadline_s)
            for span, target in zip(spans, targets, strict=True)
        ]

    def imm(self, address: Address, value: int, *, deadline_s: float | None = None) -> Transfer:
        """Move the peer's counter of `value` by one; no data."""
        return self._submit(address, view=_EMPTY, base=0, total=0, imm=value, deadline_s=deadline_s)

    def cancel(self, transfer: Transfer) -> None:
        """See Transfer.cancel."""
        with self._use():
            transfer.peer.cancel(transfer)

    # --- counting -------------------------------------------------------------------------

    def counter(self, imm: int, sources: Sequence[Address] | None = None) -> Counter:
        """The counter of immediate `imm`. With `sources`, its waits fail when one of them dies."""
        with self._use():
            found = self.core.counters.get(imm)
            if found is None:
                found = self.core.counters[imm] = Counter(self, imm)
            if sources is not None:
                found.sources = frozenset(s.incarnation for s in sources)
            return found

    def imm_block(self, count: int) -> ImmBlock:
        """`count` immediates not used before in this engine (8 bits generation, 24 bits id)."""
        with self._use():
            ids = range(self._next_imm, self._next_imm + count)
            self._next_imm += count
            if self._next_imm > 1 << 24:
                raise SpecError("no unused immediates left", fix="release blocks and reuse them")
            for i in ids:
                self.core.generations[i] = 0
            return ImmBlock(self, ids)

    def on_imm(self, callback: Callable[[int, Address], None] | None) -> None:
        """Give every immediate that no counter was asked for to `callback(imm, source)`."""
        with self._use():
            self.core.on_imm = callback

    # --- messages, groups, words ----------------------------------------------------------

    def send(self, address: Address, data: bytes, *, deadline_s: float | None = None) -> Transfer:
        """Send a message into the peer's receive pool; waits for a free buffer, never drops."""
        kept = memoryview(bytes(data))
        return self._submit(
            address, view=kept, base=0, total=len(kept), kind=frames.MSG, deadline_s=deadline_s
        )

    def recv_pool(
        self, count: int, size_bytes: int, callback: Callable[[Address, bytes], None]
    ) -> None:
        """Take messages of up to `size_bytes`, at most `count` unserved from each peer."""
        if not 0 < size_bytes <= frames.MAX_PIECE_BYTES or count < 1:
            raise SpecError("a pool has 1 buffer or more, each of 1 byte to 4 MiB")
        with self._use():
            self.core.on_message = callback
            self.core.message_bytes = size_bytes
            self.core.message_count = count
            for peer in self.core.peers.values():
                if peer.links:
                    self.core.grant(peer, peer.links[0])

    def peer_group(self, members: Sequence[Address]) -> PeerGroup:
        """A group for barriers; `members` name every engine, this one as well or not."""
        return PeerGroup(self, tuple(m for m in members if m != self.address))

    def watch(
        self,
        callback: Callable[[int, int], object],
        period_s: float = 0.001,
        memory: object = None,
    ) -> Word:
        """A 64-bit cell; `callback(old, new)` when a sample differs; False from it ends it.
        The cell is sampled: steps may be skipped, the last value never. With `memory` (8 bytes
        that others write: a peer, a device into pinned memory) a sample every `period_s`."""
        with self._use():
            self._words.append(Word(self, callback, period_s, memory))
            return self._words[-1]

    def on_peer_down(self, callback: Callable[[Address, Exception], None]) -> None:
        """Call `callback(address, error)` once for every peer that goes down."""
        with self._use():
            self.core.on_peer_down.append(callback)

    def connect(self, address: Address, timeout_s: float | None = None) -> None:
        """Reach a peer now (a first write would do it too); the typed error when it fails."""
        with self._use():
            peer = self.core.peer(address)
        self.wait_until(lambda: peer.state != "CONNECTING", timeout_s)
        if address.incarnation in self.core.dead:
            raise self.core.dead[address.incarnation]

    def stats(self) -> dict[str, Any]:
        """Counts of this engine, and for each peer and NIC: bytes, rate, round trip."""
        with self.lock:
            mine = {"callback_errors": self.callback_errors, "compiled": COMPILED}
            return {**snapshot(self.core), **mine}

    # --- for the parts --------------------------------------------------------------------

    def reachable(self) -> frozenset[str]:
        """Kinds of device memory that a provider here reads and fills by itself."""
        return self._sockets.reachable()

    def reaches(self, address: Address, kind: str) -> bool:
        """Whether writes between this engine and a peer reach memory of `kind` by themselves."""
        if kind == "host":
            return True
        self.connect(address)
        with self._use():
            peer = self.core.peers.get(address.incarnation)
            links = [] if peer is None else peer.links
            return bool(links) and all(kind in (k.channel.reaches or ()) for k in links)

    def _share(self, region: Region) -> None:
        self._sockets.register(self.core, region)

    def _unshare(self, region: Region) -> None:
        self._sockets.forget(region)

    def stop_listening(self) -> None:
        """Take no more connections (called under the lock, when the engine has failed)."""
        self._sockets.close()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Serve the network until `ready()`; false after `timeout_s`."""
        if ready():
            return True
        if self._closed or not self._driver.wait_until(ready, timeout_s):
            if ready():
                return True
            if self._closed:
                raise EngineClosed("this engine was closed", place=str(self.address))
            if self.core.failure is not None:
                raise self.core.failure
            return False
        return True

    def dispatch(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback on the dispatcher thread."""
        self._dispatcher.put(callback, args)

    @property
    def callback_errors(self) -> int:
        """How many callbacks have raised."""
        return self._dispatcher.errors

    def _use(self) -> threading.RLock:
        if self._closed or os.getpid() != self._pid:
            what = "this engine was closed" if self._closed else "this engine belongs to the parent"
            raise EngineClosed(what, place=str(self.address), fix="open an engine of its own")
        if self.core.failure is not None:
            raise self.core.failure
        return self.lock

    def _submit(
        self,
        address: Address,
        *,
        view: memoryview,
        base: int,
        total: int,
        kind: int = frames.WRITE,
        key: int = 0,
        dst_offset: int = 0,
        imm: int | None = None,
        flags: int = 0,
        pages: tuple[Offsets, Offsets, int] | None = None,
        deadline_s: float | None,
        nics: Sequence[str] | None = None,
        kinds: tuple[str, str] = BOTH_HOST,
    ) -> Transfer:
        if imm is not None and not 0 <= imm < 1 << 32:
            raise SpecError(f"immediate {imm} is not a 32-bit number")
        if address.incarnation == self.address.incarnation:
            raise SpecError("an engine does not write to itself", fix="copy the memory instead")
        limit_s = self.config.deadline_s if deadline_s is None else deadline_s
        with self._use():
            core = self.core
            peer = core.peer(address)
            transfer = Transfer(
                self,
                peer,
                kind=kind,
                tid=core.next_tid(),
                view=view,
                base=base,
                total=total,
                key=key,
                dst_offset=dst_offset,
                imm=imm,
                deadline_s=core.now() + limit_s,
                nics=None if nics is None else frozenset(nics),
                kinds=kinds,
            )
            transfer.flags |= flags
            if pages is not None:
                transfer.src_pages, transfer.dst_pages, transfer.page_len = pages
            if peer.state == "DEAD":  # refused while it was asked for
                transfer.finish(core.dead[address.incarnation])
            else:
                core.submit(transfer)
        return transfer
