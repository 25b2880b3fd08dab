"""Pages of a KV-cache from a prefill process into a decode process's pool.

The decode side reserves pages and hands out a ticket; the prefill side writes its pages into
the ticket's, in one paged write. Each ticket has a key of its own: when a request is cancelled,
or its prefill process dies, revoking it makes its pages safe for reuse at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ratrain.errors import Infeasible, TransportError
from ratrain.readers.json import parse_json
from ratrain.transport.engine.transfer import Transfer
from ratrain.transport.memory.pages import Pages
from ratrain.transport.memory.regions import Region
from ratrain.transport.surface.engine import Engine
from ratrain.transport.surface.groups import ImmBlock
from ratrain.transport.wire.address import Address, Descriptor


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to fill `pages` of a decode process's pool once."""

    place: Descriptor
    pages: tuple[int, ...]
    page_bytes: int
    imm: int

    def to_bytes(self) -> bytes:
        """The ticket as bytes to hand to the prefill process."""
        head = [list(self.pages), self.page_bytes, self.imm]
        return json.dumps([self.place.to_bytes().decode(), *head]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Ticket:
        """The ticket that `to_bytes` wrote."""
        place, pages, page_bytes, imm = parse_json(data, "ticket")[0]
        return Ticket(Descriptor.from_bytes(place.encode()), tuple(pages), page_bytes, imm)


@dataclass(slots=True)
class _Use:
    region: Region
    block: ImmBlock
    pages: tuple[int, ...] = field(default=())


class PagePool:
    """The decode side: a pool of pages, and the tickets that are out."""

    def __init__(self, engine: Engine, pages: int, page_bytes: int) -> None:
        self._engine = engine
        self._page_bytes = page_bytes
        self.memory: npt.NDArray[np.uint8] = np.zeros((pages, page_bytes), np.uint8)
        self._free = list(range(pages))
        self._uses: dict[int, _Use] = {}
        self._blocks: list[ImmBlock] = []

    @property
    def free_pages(self) -> int:
        """Pages not reserved."""
        return len(self._free)

    def reserve(self, count: int) -> Ticket:
        """A ticket for `count` pages; Infeasible when the pool has too few free."""
        if count > len(self._free):
            raise Infeasible(
                f"{count} pages wanted, {len(self._free)} free", fix="release requests first"
            )
        pages = tuple(self._free[-count:]) if count else ()
        del self._free[len(self._free) - count :]
        block = self._blocks.pop() if self._blocks else self._engine.imm_block(1)
        region = self._engine.register(self.memory, own_key=True)
        imm = block.values[0]
        self._uses[imm] = _Use(region, block, pages)
        return Ticket(region.descriptor(), pages, self._page_bytes, imm)

    def wait(self, ticket: Ticket, source: Address | None, timeout_s: float | None = None) -> None:
        """Return when the ticket's pages are filled. When `source` dies or time runs out, the
        ticket is released, so that its pages can be reused, and the error is raised."""
        sources = None if source is None else [source]
        try:
            self._engine.counter(ticket.imm, sources).wait(1, timeout_s)
        except TransportError:
            self.release(ticket)
            raise
        self._engine.revoke(self._uses[ticket.imm].region)

    def release(self, ticket: Ticket) -> None:
        """Give the pages back: cancel the request, or end it. Nothing lands in them any more."""
        use = self._uses.pop(ticket.imm, None)
        if use is None:
            return
        self._engine.revoke(use.region)
        use.block.release()
        self._blocks.append(use.block)
        self._free.extend(use.pages)


def send_pages(
    engine: Engine,
    ticket: Ticket,
    source: Region,
    pages: Pages | Sequence[int],
    deadline_s: float | None = None,
) -> Transfer:
    """The prefill side: write `pages` of `source` into the ticket's pages."""
    return engine.write_paged(
        source,
        pages,
        ticket.place,
        ticket.pages,
        ticket.page_bytes,
        imm=ticket.imm,
        deadline_s=deadline_s,
    )
