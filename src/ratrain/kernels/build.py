"""How a kernel is written: plain loops over tiles, in the order in which one core alone would do
it all. Order between lanes follows from the tiles that ops use, so transfers run ahead as far as
buffers allow: two buffers are double buffering, three take the store off the way too.

    def scale(k, rows, columns):
        x, y = k.input("x", rows, columns, "f4"), k.output("y", rows, columns, "f4")
        for core, part in k.deal(rows, 64):
            tile = core.load(x[part, :], AM, "tile", buffers=3)
            core.map(tile, lambda x: 2 * x, tile, slots=1)
            core.store(tile, y[part, :])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ratrain.errors import ProgramError
from ratrain.kernels import micro, values
from ratrain.kernels.machine import AM, DDR, GSM, NO_PATH, SM, Machine, Tier
from ratrain.kernels.program import CHANNELS, COMPUTE, Memory, Op, State, Tensor, TileProgram
from ratrain.kernels.prove import SHARED
from ratrain.kernels.tiles import Array, Box, Tile
from ratrain.program.uses import READ, WRITE

F4 = np.dtype("f4")
MOST_OPS = 1_000_000
T = TypeVar("T")


@dataclass
class _Pool:
    """A buffer's slots, which tiles take in turn."""

    states: list[int]
    storages: list[int]
    taken: int = 0


@dataclass(frozen=True)
class Matrix:
    """A tensor in DDR, while a kernel is written."""

    kernel: Kernel
    number: int

    def __getitem__(self, index: tuple[slice, slice]) -> Tile:
        """Some rows and columns, as a tile in DDR."""
        return self.kernel._region(self.number, index)  # pyright: ignore[reportPrivateUsage]


class Kernel:
    """What a kernel's function is called with: its tensors, its cores, its loops.

    `limits` says how often folded loops are written out (`clock.time_of`); none: all of them.
    """

    def __init__(self, machine: Machine, limits: Mapping[str, int] | None = None) -> None:
        self.machine = machine
        self.cores = [Core(self, number) for number in range(machine.cores)]
        self._limits = limits
        self._loops: dict[str, tuple[int, int]] = {}
        self._tensors: list[Tensor] = []
        self._boxes: dict[int, dict[Box, int]] = defaultdict(dict)
        self._states: list[State] = []
        self._version: list[int] = []
        self._storage_bytes: list[int] = []
        self._pools: dict[tuple[int, Tier, str], _Pool] = {}
        self._channels: dict[str, int] = {}
        self._ops: list[Op] = []
        self._work = [0.0] * machine.cores

    # ---- tensors ------------------------------------------------------------------------

    def input(self, name: str, rows: int, columns: int, dtype: str) -> Matrix:
        """A matrix in DDR that is given."""
        return self._tensor(name, rows, columns, dtype, is_input=True, is_output=False)

    def output(self, name: str, rows: int, columns: int, dtype: str) -> Matrix:
        """A matrix in DDR that the kernel writes."""
        return self._tensor(name, rows, columns, dtype, is_input=False, is_output=True)

    def updated(self, name: str, rows: int, columns: int, dtype: str) -> Matrix:
        """A matrix in DDR that is given, and written."""
        return self._tensor(name, rows, columns, dtype, is_input=True, is_output=True)

    def _tensor(
        self, name: str, rows: int, columns: int, dtype: str, *, is_input: bool, is_output: bool
    ) -> Matrix:
        if any(tensor.name == name for tensor in self._tensors):
            raise ProgramError(f"the tensor {name} is there twice", fix="choose another name")
        if rows < 1 or columns < 1:
            raise ProgramError(f"{name} has {rows} x {columns} elements", fix="sizes from 1 on")
        storage = len(self._storage_bytes)
        self._storage_bytes.append(0)
        shape = (rows, columns)
        tensor = Tensor(name, storage, shape, np.dtype(dtype), is_input, is_output, ())
        self._tensors.append(tensor)
        return Matrix(self, len(self._tensors) - 1)

    def _region(self, number: int, index: tuple[slice, slice]) -> Tile:
        tensor = self._tensors[number]
        whole = (0, tensor.shape[0], 0, tensor.shape[1])
        tile = Tile(-1, tensor.storage, DDR, SHARED, tensor.dtype, tensor.shape, whole, tensor.name)
        tile = tile[index]
        box = tile.box if tensor.is_output else whole
        boxes = self._boxes[number]
        if box not in boxes:
            name = f"{tensor.name}[{box[0]}:{box[1]}, {box[2]}:{box[3]}]"
            boxes[box] = self._state(State(name, DDR, SHARED, 0, tensor.is_input))
        tile.state = boxes[box]
        return tile

    # ---- loops --------------------------------------------------------------------------

    def tiles(self, length: int, size: int, fold: str = "", least: int = 2) -> list[slice]:
        """Parts of a length: whole ones, and what is left over. `fold` names a loop whose whole
        parts all take the same time, but for the first `least`, so that the clock need not go over
        every one."""
        _check_size(size)
        whole = self._folded(fold, length // size, least)
        _check_count(whole)
        parts = [slice(at * size, (at + 1) * size) for at in range(whole)]
        rest = length % size
        return [*parts, slice(length - rest, length)] if rest else parts

    def deal(
        self, length: int, size: int, fold: str = "", least: int = 2
    ) -> list[tuple[Core, slice]]:
        """The same, dealt to the cores in turn; a folded round is one part for each core."""
        _check_size(size)
        count, cores = len(self.cores), -(-length // size)
        rounds = self._folded(fold, length // size // count, least)
        first = length // size // count * count
        _check_count(rounds * count)
        at = [*range(rounds * count), *range(first, cores)]
        parts = [slice(part * size, min((part + 1) * size, length)) for part in at]
        return [(self.cores[number % count], part) for number, part in zip(at, parts, strict=True)]

    def balanced(self, parts: list[T], work: Callable[[T], float]) -> Iterator[tuple[Core, T]]:
        """Each part with the core that has the least work so far."""
        for part in parts:
            core = min(range(len(self.cores)), key=self._work.__getitem__)
            self._work[core] += work(part)
            yield self.cores[core], part

    def _folded(self, fold: str, count: int, least: int) -> int:
        if not fold:
            return count
        limit = count if self._limits is None else self._limits.get(fold, least + 1)
        self._loops[fold] = (min(limit, count), count)
        return min(limit, count)

    # ---- shared memory ------------------------------------------------------------------

    def share(self, source: Tile, name: str, buffers: int = 1) -> Tile:
        """Loads a tile to GSM, for all cores."""
        return self.cores[0].load(source, GSM, name, buffers)

    # ---- what a core does ---------------------------------------------------------------

    def slot(self, core: int, tier: Tier, name: str, buffers: int, like: Tile) -> Tile:
        """The next slot of a buffer, for a tile of this shape and type."""
        owner = SHARED if tier.shared else core
        pool = self._pools.get((owner, tier, name))
        if pool is None:
            states = [
                self._state(State(f"{name}.{slot}", tier, owner, 0, given=False))
                for slot in range(buffers)
            ]
            first = len(self._storage_bytes)
            self._storage_bytes += [0] * buffers
            pool = _Pool(states, list(range(first, first + buffers)))
            self._pools[owner, tier, name] = pool
        turn = pool.taken % len(pool.states)
        pool.taken += 1
        state, storage = pool.states[turn], pool.storages[turn]
        if like.size_bytes > self._storage_bytes[storage]:
            self._enlarge(pool, like.size_bytes)
        shape = like.shape
        box = (0, shape[0], 0, shape[1])
        return Tile(state, storage, tier, owner, like.dtype, shape, box, self._states[state].name)

    def _enlarge(self, pool: _Pool, size_bytes: int) -> None:
        """All slots of a buffer are as large as its largest tile."""
        for state, storage in zip(pool.states, pool.storages, strict=True):
            self._states[state] = replace(self._states[state], size_bytes=size_bytes)
            self._storage_bytes[storage] = size_bytes

    def channel(self, name: str) -> int:
        """The DMA channel of a buffer; where there are more buffers than channels they share."""
        if name not in self._channels:
            self._channels[name] = 1 + len(self._channels) % CHANNELS
        return self._channels[name]

    def add(self, op: Op) -> None:
        """Adds an op behind all others: it reads what those before it have left, and writes its
        target."""
        if len(self._ops) >= MOST_OPS:
            raise ProgramError(
                f"the kernel has more than {MOST_OPS:,} ops",
                fix="take smaller sizes or larger tiles; of loops whose turns are alike, `fold`",
            )
        written, version = op.target.state, self._version
        reads = {tile.state for tile in op.sources}
        uses = [(READ, state, version[state]) for state in reads]
        version[written] += 1
        op.uses = (*uses, (WRITE, written, version[written]))
        self._ops.append(op)

    def _state(self, state: State) -> int:
        self._states.append(state)
        self._version.append(0)
        return len(self._states) - 1

    def program(self) -> TileProgram:
        """The program of all that was written."""
        if not self._ops:
            raise ProgramError("the kernel does nothing", fix="load, compute and store tiles")
        lanes = ["compute"] + [""] * CHANNELS
        for name, lane in self._channels.items():
            lanes[lane] = f"{lanes[lane]}+{name}" if lanes[lane] else f"dma {name}"
        tensors = (
            replace(tensor, boxes=tuple(self._boxes[number]) if tensor.is_output else ())
            for number, tensor in enumerate(self._tensors)
        )
        ops = sorted(self._ops, key=lambda op: (op.core, op.lane))
        return TileProgram(
            self.machine,
            tuple(self._states),
            tuple(tensors),
            tuple(self._storage_bytes),
            tuple(ops),
            tuple(lanes),
            dict(self._loops),
        )


@dataclass(frozen=True)
class Core:
    """One core: its transfers, and its vector unit."""

    kernel: Kernel
    number: int

    # ---- transfers ----------------------------------------------------------------------

    def load(self, source: Tile, tier: Tier, name: str, buffers: int = 2) -> Tile:
        """Copies a tile to the next slot of a buffer in another memory."""
        target = self.kernel.slot(self.number, tier, name, buffers, source)
        self._transfer("load", source, target, name)
        return target

    def store(self, source: Tile, target: Tile) -> None:
        """Copies a tile to a region of a tensor, or to another tile."""
        if source.shape != target.shape or source.dtype != target.dtype:
            raise ProgramError(
                f"{source.name} is {_form(source)}, and {target.name} {_form(target)}",
                place="store",
                fix="a transfer copies bytes: shapes and types must be the same",
            )
        self._transfer("store", source, target, f"{source.name.rpartition('.')[0]} out")

    def _transfer(self, verb: str, source: Tile, target: Tile, channel: str) -> None:
        tiers = frozenset({source.tier, target.tier})
        if tiers == NO_PATH or len(tiers) == 1 or source.turned or target.turned:
            what = "transposes" if len(tiers) == 2 and tiers != NO_PATH else "joins these memories"
            raise ProgramError(
                f"no DMA channel {what}: {source.name} in {source.tier} to {target.tier}",
                place=f"core {self.number}",
                fix="go over GSM" if tiers == NO_PATH else "use `core.turn` in AM",
            )
        for tile in (source, target):
            self._check_own(tile)

        def run(memory: Memory) -> None:
            target.array(memory)[:] = source.array(memory)

        over = DDR if DDR in tiers else GSM
        ddr = source if source.tier is DDR else target
        rows = ddr.strided_rows if over is DDR else 0
        lane, size_bytes = self.kernel.channel(channel), source.size_bytes
        self.kernel.add(
            Op(self.number, lane, verb, target, (source,), (), run, 0.0, size_bytes, rows, over)
        )

    # ---- the vector unit ----------------------------------------------------------------

    def tile(self, rows: int, columns: int, dtype: str, name: str, buffers: int = 1) -> Tile:
        """A tile in AM that nothing is loaded to; the first op on it writes all of it."""
        shape = (rows, columns)
        like = Tile(-1, -1, AM, self.number, np.dtype(dtype), shape, (0, rows, 0, columns), name)
        return self.kernel.slot(self.number, AM, name, buffers, like)

    def fill(self, out: Tile, value: float) -> None:
        """Sets all of a tile."""

        def run(memory: Memory) -> None:
            out.array(memory)[:] = value

        cycles = micro.loop_cycles(self.kernel.machine, 0, 0, out.size_bytes)
        self._compute("fill", out, (), run, cycles)

    def mm(self, c: Tile, a: Tile, b: Tile, k_c: int | None = None) -> None:
        """c += a b: scalars of a from SM, rows of b and c as vectors in AM. `k_c`, of FP16: after
        so many terms the FP16 sums are added to FP32 ones; 0: sums in FP32, at half of the rate."""
        self._check_product(c, a, b, b.shape[0], b.shape[1])
        for tile, tier in ((a, SM), (b, AM), (c, AM)):
            _check_tier("mm", tile, tier)
        machine, (m, k) = self.kernel.machine, a.shape
        wanted = {None: a.dtype, 0: F4}.get(k_c, F4)
        if c.dtype != wanted or (k_c is not None and a.dtype.itemsize != 2):
            raise ProgramError(
                f"{c.name} is {c.dtype.name}, and sums of {a.dtype.name} with k_c {k_c} are "
                f"{wanted.name}",
                place="mm",
                fix="FP16 sums are FP16, or FP32 where k_c says so; others have no k_c",
            )

        def run(memory: Memory) -> None:
            values.add_nn(c.array(memory), a.array(memory), b.array(memory), k_c)

        cycles = micro.nn_cycles(machine, m, b.shape[1], k, a.dtype, k_c)
        self._compute("mm", c, (c, a, b), run, cycles)

    def mm_nt(self, c: Tile, a: Tile, b: Tile) -> None:
        """c += a b^T: rows of a and b as vectors along k in AM, c in SM."""
        self._check_product(c, a, b, b.shape[1], b.shape[0])
        for tile, tier in ((a, AM), (b, AM), (c, SM)):
            _check_tier("mm_nt", tile, tier)
        machine, (m, k), n = self.kernel.machine, a.shape, b.shape[0]

        def run(memory: Memory) -> None:
            lanes = machine.lanes(a.dtype)
            values.add_nt(c.array(memory), a.array(memory), b.array(memory), lanes)

        cycles = micro.nt_cycles(machine, m, n, k, a.dtype)
        self._compute("mm_nt", c, (c, a, b), run, cycles)

    def map(self, out: Tile, what: Callable[..., Array], *sources: Tile, slots: float) -> None:
        """out = what(*sources), element by element in FP32: `slots` instructions a vector of 32.
        A source of one row or one column is the same for all of them."""
        self._loop("map", out, what, sources, slots)

    def reduce(
        self, out: Tile, what: Callable[..., Array], *sources: Tile, slots: float = 1
    ) -> None:
        """The same, where out is a row or a column of results: what(*sources) sums or compares down
        the lanes (one row is left) or across them (one column)."""
        across = out.shape[1] == 1 and sources[0].shape[1] > 1
        rows = sources[0].shape[0] if across else 0
        self._loop("reduce", out, what, sources, slots + across, rows * 2.0)

    def turn(self, out: Tile, source: Tile, *, add: bool = False) -> None:
        """out = the transpose of source, both in AM; or that added to it, beside the moves."""
        if out.shape != source.shape[::-1] or out.dtype != source.dtype:
            raise ProgramError(
                f"{out.name} is {_form(out)}, the transpose of {source.name} {_form(source.T)}",
                place="turn",
                fix="make the tile of the transposed shape and of the same type",
            )
        cycles = micro.turn_cycles(self.kernel.machine, source.size, source.dtype)

        def run(memory: Memory) -> None:
            turned = source.array(memory).T
            out.array(memory)[:] = out.array(memory) + turned if add else turned

        for tile in (out, source):
            _check_tier("turn", tile, AM)
        self._compute(
            "add^T" if add else "turn", out, (out, source) if add else (source,), run, cycles
        )

    def _loop(
        self,
        verb: str,
        out: Tile,
        what: Callable[..., Array],
        sources: tuple[Tile, ...],
        slots: float,
        further_cycles: float = 0.0,
    ) -> None:
        for tile in (out, *sources):
            _check_tier(verb, tile, AM)

        def run(memory: Memory) -> None:
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                arrays = [tile.array(memory).astype(F4) for tile in sources]
                out.array(memory)[:] = what(*arrays)

        moved = out.size_bytes + sum(tile.size_bytes for tile in sources)
        elements = max(tile.size for tile in (out, *sources))
        cycles = micro.loop_cycles(self.kernel.machine, elements, slots, moved) + further_cycles
        self._compute(verb, out, sources, run, cycles)

    def _compute(
        self,
        verb: str,
        target: Tile,
        sources: tuple[Tile, ...],
        run: Callable[[Memory], None],
        cycles: float,
    ) -> None:
        for tile in (target, *sources):
            self._check_own(tile)
        self.kernel.add(Op(self.number, COMPUTE, verb, target, sources, (), run, cycles))

    # ---- mistakes -----------------------------------------------------------------------

    def _check_own(self, tile: Tile) -> None:
        if tile.core not in (SHARED, self.number):
            raise ProgramError(
                f"{tile.name} lies in the {tile.tier} of core {tile.core}",
                place=f"core {self.number}",
                fix="store it to GSM, and load it from there",
            )

    def _check_product(self, c: Tile, a: Tile, b: Tile, k: int, n: int) -> None:
        if a.shape[1] != k or c.shape != (a.shape[0], n) or a.dtype != b.dtype:
            raise ProgramError(
                f"{c.name} {_form(c)} is no sum for {a.name} {_form(a)} and {b.name} {_form(b)}",
                place=f"core {self.number}",
                fix="rows and columns must fit, and both factors have one type",
            )


def _check_size(size: int) -> None:
    if size < 1:
        raise ProgramError(f"a tile of {size} rows or columns", fix="take at least 1")


def _check_count(count: int) -> None:
    if count > MOST_OPS:
        raise ProgramError(f"a loop of {count:,} tiles", fix="take larger tiles")


def _check_tier(verb: str, tile: Tile, tier: Tier) -> None:
    if tile.tier is not tier or (tile.turned and tier is AM):
        how = "transposed in " if tile.turned else ""
        raise ProgramError(
            f"{tile.name} lies {how}{tile.tier}, and {verb} needs it in {tier}",
            place=verb,
            fix=f"load it to {tier}" if not tile.turned else "use `core.turn` first",
        )


def _form(tile: Tile) -> str:
    return f"{tile.shape[0]} x {tile.shape[1]} {tile.dtype.name}"
