"""Tokens to their experts and back, for mixture-of-experts layers with ragged counts.

Every rank has an inbox with room for `capacity` rows from each rank. Dispatch writes each row
straight from the token table into the inbox of its expert's rank, one paged write per rank, and
beside it the list of experts. Combine writes the results back in the same order. A rank starts
the next dispatch only after its combine, so every slot has been read before it is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratrain.errors import Infeasible, SpecError
from ratrain.transport.engine.transfer import Transfer
from ratrain.transport.memory.regions import Region
from ratrain.transport.surface.engine import Engine
from ratrain.transport.wire.address import Address, Descriptor

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
DISPATCH, COMBINE = 0x00E0_0001, 0x00E0_0002


@dataclass(frozen=True, slots=True)
class Inbox:
    """Where one rank takes rows, expert lists and results."""

    address: Address
    rows: Descriptor
    lists: Descriptor
    results: Descriptor


class ExpertExchange:
    """One rank of the exchange. `join` the inboxes of all ranks, in rank order, first."""

    def __init__(self, engine: Engine, rank: int, ranks: int, hidden: int, capacity: int) -> None:
        self._engine = engine
        self._rank = rank
        self._ranks = ranks
        self._capacity = capacity
        self._row_bytes = hidden * 4
        self._rows: Floats = np.zeros((ranks, capacity, hidden), np.float32)
        self._lists: Ints = np.zeros((ranks, capacity + 1), np.int64)
        self._results: Floats = np.zeros((ranks, capacity, hidden), np.float32)
        self._out_lists: Ints = np.zeros((ranks, capacity + 1), np.int64)
        self._sent: list[Ints] = []
        self._weights: Floats = np.zeros(0, np.float32)
        self._tokens = 0
        self._inboxes: Sequence[Inbox] = ()
        self._list_source = engine.register(self._out_lists, remote=False)
        self.inbox = Inbox(
            engine.address,
            engine.register(self._rows).descriptor(),
            engine.register(self._lists).descriptor(),
            engine.register(self._results).descriptor(),
        )

    def join(self, inboxes: Sequence[Inbox]) -> None:
        """Learn the other ranks' inboxes; with them, whose death fails a wait."""
        if len(inboxes) != self._ranks:
            raise SpecError(f"{len(inboxes)} inboxes for {self._ranks} ranks")
        self._inboxes = inboxes
        others = [i.address for i in inboxes if i.address != self._engine.address]
        for imm in (DISPATCH, COMBINE):
            self._engine.counter(imm, sources=others)

    def dispatch(
        self, tokens: Floats, experts: Ints, weights: Floats, experts_per_rank: int
    ) -> tuple[Floats, Ints]:
        """Send row t to the ranks of `experts[t, :]`; the rows that came here, by source rank and
        then in the sender's order, and the local expert of each."""
        flat = experts.reshape(-1)
        owner = flat // experts_per_rank
        self._weights, self._tokens = weights.reshape(-1), len(tokens)
        self._sent = [np.flatnonzero(owner == r) for r in range(self._ranks)]
        worst = max(len(s) for s in self._sent)
        if worst > self._capacity:
            raise Infeasible(
                f"{worst} rows for one rank, room for {self._capacity}",
                fix=f"build the exchange with capacity {worst} or more",
            )
        source = self._engine.register(tokens, remote=False)
        flying = [
            transfer
            for to in range(self._ranks)
            for transfer in self._send_rows(to, source, tokens, flat, experts.shape[1])
        ]
        self._engine.counter(DISPATCH).wait(2 * (self._ranks - 1))
        for transfer in flying:
            transfer.wait()
        self._engine.revoke(source)
        counts = [int(self._lists[r, 0]) for r in range(self._ranks)]
        rows = np.concatenate([self._rows[r, :n] for r, n in enumerate(counts)])
        lists = np.concatenate([self._lists[r, 1 : n + 1] for r, n in enumerate(counts)])
        return rows, lists - self._rank * experts_per_rank

    def combine(self, rows: Floats) -> Floats:
        """Send the results of `dispatch`'s rows back; the weighted sum for each token of this
        rank, added in rank order, so that it does not depend on timing."""
        source = self._engine.register(rows, remote=False)
        flying: list[Transfer] = []
        at = 0
        for to in range(self._ranks):
            count = int(self._lists[to, 0])
            if to == self._rank:
                self._results[to, :count] = rows[at : at + count]
            else:
                span = source[at * self._row_bytes : (at + count) * self._row_bytes]
                place = self._inboxes[to].results[self._rank * self._slot_bytes :]
                flying.append(self._engine.write(span, place, imm=COMBINE))
            at += count
        self._engine.counter(COMBINE).wait(self._ranks - 1)
        for transfer in flying:
            transfer.wait()
        self._engine.revoke(source)
        total = np.zeros((self._tokens, rows.shape[1]), np.float32)
        per_token = len(self._weights) // max(1, self._tokens)
        for rank, sent in enumerate(self._sent):
            part = self._results[rank, : len(sent)] * self._weights[sent, None]
            np.add.at(total, sent // per_token, part)
        return total

    @property
    def _slot_bytes(self) -> int:
        return self._capacity * self._row_bytes

    def _send_rows(
        self, to: int, source: Region, tokens: Floats, flat: Ints, per_token: int
    ) -> Iterator[Transfer]:
        chosen = self._sent[to]
        self._out_lists[to, 0] = len(chosen)
        self._out_lists[to, 1 : len(chosen) + 1] = flat[chosen]
        if to == self._rank:
            self._lists[to] = self._out_lists[to]
            self._rows[to, : len(chosen)] = tokens[chosen // per_token]
            return
        inbox = self._inboxes[to]
        list_bytes = (self._capacity + 1) * 8
        span = self._list_source[to * list_bytes : to * list_bytes + 8 * (len(chosen) + 1)]
        yield self._engine.write_paged(
            source,
            chosen // per_token,
            inbox.rows[self._rank * self._slot_bytes :],
            range(len(chosen)),
            self._row_bytes,
            imm=DISPATCH,
        )
        yield self._engine.write(span, inbox.lists[self._rank * list_bytes :], imm=DISPATCH)
