"""How long each op of a program takes, as the event loop needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratrain.errors import ProgramError
from ratrain.program.kind import Kind
from ratrain.program.table import Table
from ratrain.program.units import Ints

Floats = npt.NDArray[np.float64]

NO_LINK = -1


@dataclass(frozen=True)
class Routes:
    """Which row of its work an op has, where that depends on its micro-batch too: the messages of a
    stage whose neighbour has several members."""

    row: Ints  # units x micro-batches
    unit: Ints  # of each row
    receiver: Ints  # of each row: a program rank


@dataclass(frozen=True)
class Work:
    """What an op of one kind costs on each unit (arrays over the program's units; with `routes`,
    over its rows).

    An op takes `fixed_s`, plus the time its `volume_bytes` need on its links. A link that
    several ops use at once is divided evenly. `interrupt_s` is taken from the rank's compute
    lane: the time its cores spend driving a transfer (LogP's overhead o).
    """

    fixed_s: Floats
    volume_bytes: Floats
    interrupt_s: Floats
    link: Ints  # of the op's own rank; NO_LINK: none
    peer_link: Ints  # the other end's
    routes: Routes | None = None

    def rows(self, unit: Ints, micro_batch: Ints) -> Ints:
        """The rows of ops, by their units and micro-batches."""
        return unit if self.routes is None else self.routes.row[unit, micro_batch]


@dataclass(frozen=True)
class Costs:
    """The work of every kind that a program uses, and the links' rates.

    Links are numbered; each direction of each rank's port is one link.
    """

    work: Mapping[Kind, Work]
    link_rate_bytes_per_s: Floats


def fixed_work(fixed_s: Floats) -> Work:
    """Work that needs no link."""
    none = np.full(len(fixed_s), NO_LINK, dtype=np.int64)
    zero = np.zeros(len(fixed_s))
    return Work(fixed_s, zero, zero, none, none)


@dataclass(frozen=True)
class OpCosts:
    """Columns over a table's ops."""

    fixed_s: Floats
    volume_bytes: Floats
    interrupt_s: Floats
    link: npt.NDArray[np.int32]
    peer_link: npt.NDArray[np.int32]


def costs_of_ops(table: Table, costs: Costs) -> OpCosts:
    """Each op's cost, looked up by its kind, its unit and its route. A kind without a cost is an
    error, and so is one whose times are negative or whose bytes have no link to go over."""
    kinds = np.unique(table.kind)
    n = len(table)
    floats = np.zeros((3, n))
    links = np.full((2, n), NO_LINK, dtype=np.int32)
    for kind in kinds.tolist():
        if Kind(kind) not in costs.work:
            raise ProgramError(f"the cost model has no time for {Kind(kind).name}")
        work = costs.work[Kind(kind)]
        _check(Kind(kind), work, costs.link_rate_bytes_per_s)
        ops = np.flatnonzero(table.kind == kind)
        rows = work.rows(table.unit[ops], table.micro_batch[ops])
        for number, column in enumerate((work.fixed_s, work.volume_bytes, work.interrupt_s)):
            floats[number, ops] = column[rows]
        links[0, ops], links[1, ops] = work.link[rows], work.peer_link[rows]
    return OpCosts(floats[0], floats[1], floats[2], links[0], links[1])


def _check(kind: Kind, work: Work, rates: Floats) -> None:
    """What the event loop relies on."""
    columns = np.stack([work.fixed_s, work.volume_bytes, work.interrupt_s])
    if not np.all(np.isfinite(columns) & (columns >= 0)):
        raise ProgramError(f"the cost of {kind.name} is negative or not a number")
    moving = work.volume_bytes > 0
    link, peer = work.link[moving], work.peer_link[moving]
    known = (link >= 0) & (link < len(rates)) & (peer >= NO_LINK) & (peer < len(rates))
    if not known.all():
        raise ProgramError(f"{kind.name} moves bytes over a link that does not exist")
    used = np.r_[link, peer[peer >= 0]]
    if not np.all(rates[used] > 0):
        raise ProgramError(f"{kind.name} moves bytes over a link without a rate")
