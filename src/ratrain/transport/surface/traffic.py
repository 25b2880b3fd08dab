"""What goes between engines: writes, immediates and messages; and how they are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ratrain.errors import BadTarget, SpecError
from ratrain.transport.engine.core import Core
from ratrain.transport.engine.counters import Counter
from ratrain.transport.engine.transfer import BOTH_HOST, Transfer
from ratrain.transport.memory.pages import Offsets, Pages, page_offsets
from ratrain.transport.memory.regions import Region, Span, source_of, too_small
from ratrain.transport.wire import frames
from ratrain.transport.wire.address import Address, Descriptor

_EMPTY: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Target:
    """One destination of a scatter: which part of the source goes where."""

    offset: int
    size_bytes: int
    dst: Descriptor
    imm: int | None = None


class Traffic:
    """The half of an engine that talks to peers."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.config = core.station.config
        self.address = core.station.address

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
        (default: the page length) is its offset. If a destination page is named twice, which of
        the two it holds is undefined."""
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
        """Write a part of `src` to each target: one transfer, and one immediate, for each."""
        region, start, size = source_of(src)
        spans: list[Span] = []
        for target in targets:
            if target.offset + target.size_bytes > size:
                raise BadTarget(f"a target's part is outside the source of {size} bytes")
            spans.append(Span(region, start + target.offset, target.size_bytes))
        return [
            self.write(span, target.dst, imm=target.imm, deadline_s=deadline_s)
            for span, target in zip(spans, targets, strict=True)
        ]

    def imm(self, address: Address, value: int, *, deadline_s: float | None = None) -> Transfer:
        """Move the peer's counter of `value` by one; no data."""
        return self._submit(address, view=_EMPTY, base=0, total=0, imm=value, deadline_s=deadline_s)

    def send(self, address: Address, data: bytes, *, deadline_s: float | None = None) -> Transfer:
        """Send a message into the peer's receive pool; it waits for a free buffer, and is never
        dropped."""
        kept = memoryview(bytes(data))
        return self._submit(
            address, view=kept, base=0, total=len(kept), kind=frames.MSG, deadline_s=deadline_s
        )

    def cancel(self, transfer: Transfer) -> None:
        """See Transfer.cancel."""
        transfer.cancel()

    # --- receiving ------------------------------------------------------------------------

    def counter(self, imm: int, sources: Sequence[Address] | None = None) -> Counter:
        """The counter of immediate `imm`. With `sources`, its waits fail if one of them dies."""
        with self.core.station.use():
            counter = self.core.arrivals.counter(imm)
            if sources is not None:
                counter.sources = frozenset(s.incarnation for s in sources)
            return counter

    def on_imm(self, callback: Callable[[int, Address], None] | None) -> None:
        """Pass every immediate whose counter was never asked for to `callback(imm, source)`."""
        with self.core.station.use():
            self.core.arrivals.on_imm = callback

    def recv_pool(
        self, count: int, size_bytes: int, callback: Callable[[Address, bytes], None]
    ) -> None:
        """Take messages of up to `size_bytes`, at most `count` unserved from each peer."""
        if not 0 < size_bytes <= frames.MAX_PIECE_BYTES or count < 1:
            raise SpecError("a pool has 1 buffer or more, each of 1 byte to 4 MiB")
        with self.core.station.use():
            pool = self.core.arrivals.pool
            pool.count, pool.size_bytes, pool.callback = count, size_bytes, callback
            for peer in self.core.peers.values():
                if peer.links:
                    peer.grant(peer.links[0])

    # --- all of them ----------------------------------------------------------------------

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
        core, station = self.core, self.core.station
        with station.use():
            peer = core.peer(address)
            transfer = Transfer(
                station,
                peer.outbox,
                address,
                kind=kind,
                tid=station.next_tid(),
                view=view,
                base=base,
                total=total,
                key=key,
                dst_offset=dst_offset,
                imm=imm,
                deadline_s=station.now() + limit_s,
                nics=None if nics is None else frozenset(nics),
                kinds=kinds,
            )
            transfer.flags |= flags
            if pages is not None:
                transfer.src_pages, transfer.dst_pages, transfer.page_len = pages
            if peer.state == "DEAD":  # refused while it was asked for
                transfer.finish(station.dead[address.incarnation])
            else:
                core.submit(peer, transfer)
        return transfer
