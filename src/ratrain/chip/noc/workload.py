"""What the endpoints do: a graph of packets and work, each waiting for others to complete.

A packet of a multicast completes once at every destination; the packets of one reduction share
a group and complete once, at its destination. `After(task, at=node)` waits for one of these
completions, `After(task)` for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc.opcodes import Format, Opcode
from ratrain.chip.noc.spec import MeshSpec, masked
from ratrain.errors import SpecError

Place = tuple[int, int]

TASK_FIELDS = (
    "kind",
    "plane",
    "vc",
    "op",
    "format",
    "group",
    "src",
    "dst",
    "mask_x",
    "mask_y",
    "from_x",
    "from_y",
    "flits",
    "header_flits",
    "bytes",
    "read_at",
    "write_at",
    "release",
    "pending",
    "cycles",
    "unit",
    "injected_at",
    "first_at",
    "last_at",
)
_COLUMN = {name: i for i, name in enumerate(TASK_FIELDS)}


@dataclass(frozen=True)
class After:
    """Wait until `task` is complete (at node `at`, or everywhere), then `delay` cycles more."""

    task: int
    at: Place | None = None
    delay: int = 0


class Workload:
    """The task table of one simulation. Every method adds a task and returns its number."""

    def __init__(self, mesh: MeshSpec, *, memory_bytes: int = 0) -> None:
        self.mesh = mesh
        self.memory = np.zeros((mesh.nodes, memory_bytes), np.uint8)
        self._rows: list[list[int]] = []
        self._edges: list[tuple[int, int, int, int]] = []
        self._streams: list[tuple[int, int, int, int]] = []
        self._completions: list[int] = []
        self._units: dict[object, int] = {}
        self._bulk: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def packet(
        self,
        src: Place,
        dst: Place,
        flits: int,
        *,
        op: Opcode = Opcode.UNICAST,
        mask: Place = (0, 0),
        sources: Place = (0, 0),
        plane: int = 0,
        vc: int = 0,
        form: Format = Format.FP64,
        group: int | None = None,
        header_flits: int = 0,
        read_at: int = -1,
        write_at: int = -1,
        size_bytes: int | None = None,
        at: int = 0,
        after: Sequence[After] = (),
        stream: After | None = None,
    ) -> int:
        """Send a worm of `flits` from `src` to `dst` (to all of `mask` if a multicast).

        `sources` is the mask of the members of a reduction, `group` the first of its packets.
        `read_at`, `write_at` are offsets in the memory of source and destinations (-1: no
        values). `stream` names a task arriving at `src` whose beats this packet passes on.
        """
        task = len(self._rows)
        node, target = self.mesh.node(*src), self.mesh.node(*dst)
        if not 0 <= plane < len(self.mesh.planes):
            raise SpecError(
                f"plane {plane} of {len(self.mesh.planes)}",
                place=f"packet {task}",
                fix="use the number that MeshSpec.plane(name) returns",
            )
        self._check(op, dst, mask, src, sources, flits, header_flits, vc, form)
        if size_bytes is None:
            size_bytes = (flits - header_flits) * self.mesh.planes[plane].flit_bytes
        elif not self._fills(size_bytes, flits - header_flits, plane):
            raise SpecError(
                f"{size_bytes} bytes do not fill {flits - header_flits} flits",
                place=f"packet {task}",
                fix="leave size_bytes out, or send as many flits as it needs",
            )
        self._check_memory(read_at, size_bytes)
        self._check_memory(write_at, size_bytes)
        row = [0, plane, vc, op, form, task if group is None else group, node, target, *mask]
        row += [*sources, flits, header_flits, size_bytes, read_at, write_at, at, 0, 0, -1]
        bits = (mask[0].bit_count() + mask[1].bit_count()) if op is Opcode.MULTICAST else 0
        self._add([*row, -1, -1, -1], 1 << bits, after)
        if stream is not None:
            self._streams.append(self._edge(task, stream, src))
            self._rows[task][_COLUMN["pending"]] += 1
        return task

    def work(
        self,
        place: Place,
        cycles: int,
        *,
        unit: object = None,
        op: Opcode = Opcode.UNICAST,
        form: Format = Format.FP64,
        read_at: int = -1,
        write_at: int = -1,
        size_bytes: int = 0,
        at: int = 0,
        after: Sequence[After] = (),
    ) -> int:
        """Spend `cycles` on a node; `unit` names a serial server (an atomic unit, a core).

        With `read_at`, memory[write_at] becomes op(memory[write_at], memory[read_at]) at the end
        (a copy, for UNICAST).
        """
        if op is not Opcode.UNICAST and not Opcode.FP_ADD <= op <= Opcode.INT_MAX_U:
            raise SpecError(
                f"{op.name} is not arithmetic", place=f"task {len(self._rows)}", fix="use FP_ADD.."
            )
        if cycles < 0:
            raise SpecError(f"{cycles} cycles", place="work", fix="use 0 or more")
        self._check_memory(read_at, size_bytes)
        self._check_memory(write_at, size_bytes)
        number = -1 if unit is None else self._units.setdefault(unit, len(self._units))
        node, task = self.mesh.node(*place), len(self._rows)
        row = [1, 0, 0, op, form, task, node, node, 0, 0, 0, 0, 0, 0, size_bytes]
        self._add([*row, read_at, write_at, at, 0, cycles, number, -1, -1, -1], 1, after)
        return task

    def unicasts(
        self,
        src: NDArray[np.int64],
        dst: NDArray[np.int64],
        at: NDArray[np.int64],
        flits: int,
    ) -> None:
        """Add many independent unicast packets at once, by node index; nothing may follow."""
        table = np.zeros((len(src), len(TASK_FIELDS)), np.int64)
        for name in ("read_at", "write_at", "unit", "injected_at", "first_at", "last_at"):
            table[:, _COLUMN[name]] = -1
        columns = {"src": src, "dst": dst, "release": at, "flits": flits}
        columns["group"] = np.arange(len(self._rows), len(self._rows) + len(src))
        for name, values in columns.items():
            table[:, _COLUMN[name]] = values
        self._bulk = table

    def destinations(self, task: int) -> list[Place]:
        """Where a packet is delivered."""
        row = dict(zip(TASK_FIELDS, self._rows[task], strict=True))
        x, y = self.mesh.place(row["dst"])
        if row["op"] != Opcode.MULTICAST:
            return [(x, y)]
        return [(i, j) for j in masked(y, row["mask_y"]) for i in masked(x, row["mask_x"])]

    def write(self, place: Place, offset: int, data: NDArray[np.uint8]) -> None:
        """Put bytes into a node's memory before the run."""
        self.memory[self.mesh.node(*place), offset : offset + data.size] = data

    def read(self, place: Place, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        """Bytes of a node's memory."""
        return self.memory[self.mesh.node(*place), offset : offset + size_bytes].copy()

    def task_table(self) -> NDArray[np.int64]:
        """The tasks as the core reads them, one row each, in the order of TASK_FIELDS."""
        table = np.array(self._rows, np.int64).reshape(len(self._rows), len(TASK_FIELDS))
        return table if self._bulk is None else np.concatenate([table, self._bulk])

    def edge_table(self) -> NDArray[np.int64]:
        """(group, node, task, delay), sorted by group and node; node -1 is "anywhere"."""
        return _sorted_edges(self._edges)

    def stream_table(self) -> NDArray[np.int64]:
        return _sorted_edges(self._streams)

    @property
    def unit_count(self) -> int:
        return len(self._units)

    def _edge(self, task: int, after: After, default: Place | None) -> tuple[int, int, int, int]:
        group = self._rows[after.task][_COLUMN["group"]]
        place = after.at or default
        node = -1 if place is None else self.mesh.node(*place)
        return group, node, task, after.delay

    def _add(self, row: list[int], completions: int, after: Sequence[After]) -> None:
        task = len(self._rows)
        self._rows.append(row)
        self._completions.append(completions)
        for dependency in after:
            if not 0 <= dependency.task < task:
                raise SpecError(
                    f"task {task} waits for task {dependency.task}, which is not defined before it",
                    place="workload",
                    fix="add the earlier task first",
                )
            row[_COLUMN["pending"]] += 1 if dependency.at else self._completions[dependency.task]
            self._edges.append(self._edge(task, dependency, None))

    def _check(
        self,
        op: Opcode,
        dst: Place,
        mask: Place,
        src: Place,
        sources: Place,
        flits: int,
        header_flits: int,
        vc: int,
        form: Format,
    ) -> None:
        place = f"packet {len(self._rows)} ({op.name}) from {src} to {dst}"
        router = self.mesh.router
        if not 0 <= header_flits <= flits or flits < 1:
            raise SpecError(f"{flits} flits", place=place, fix="send at least one flit")
        if not 0 <= vc < router.virtual_channels:
            raise SpecError(
                f"virtual channel {vc} of {router.virtual_channels}",
                place=place,
                fix="use a lower number or give the router more virtual_channels",
            )
        if op is not Opcode.MULTICAST and mask != (0, 0):
            raise SpecError("only a multicast has a mask", place=place, fix="set op=MULTICAST")
        corners = ((dst, mask),) if op is Opcode.MULTICAST else ()
        if op.is_reduction:
            corners += ((src, sources),)
            if vc:
                raise SpecError("a reduction uses virtual channel 0", place=place, fix="vc=0")
            if op.is_arithmetic and not router.dca:
                raise SpecError(
                    "this chip has no Direct Compute Access, so its routers do no arithmetic",
                    place=place,
                    fix="set dca=True, or reduce in software",
                )
            if Opcode.INT_ADD <= op <= Opcode.INT_MAX_U and form.is_float:
                raise SpecError(f"{op.name} on {form.name}", place=place, fix="use an FP opcode")
        for (x, y), (mask_x, mask_y) in corners:
            for corner in ((x | mask_x, y | mask_y), (x & ~mask_x, y & ~mask_y)):
                try:
                    self.mesh.node(*corner)
                except SpecError as error:
                    raise SpecError(
                        f"mask ({mask_x:#x},{mask_y:#x}) reaches {corner}, outside the mesh",
                        place=place,
                        fix="use a mask whose members all exist (aligned power-of-two groups)",
                    ) from error

    def _fills(self, size_bytes: int, flits: int, plane: int) -> bool:
        width = self.mesh.planes[plane].flit_bytes
        return (flits - 1) * width < size_bytes <= flits * width or size_bytes == flits == 0

    def _check_memory(self, offset: int, size_bytes: int) -> None:
        room = self.memory.shape[1]
        if offset >= 0 and offset + size_bytes > room:
            raise SpecError(
                f"bytes {offset}..{offset + size_bytes} of a node memory of {room}",
                place=f"task {len(self._rows)}",
                fix=f"give the workload memory_bytes={offset + size_bytes}",
            )


def _sorted_edges(edges: list[tuple[int, int, int, int]]) -> NDArray[np.int64]:
    table = np.array(edges, np.int64).reshape(len(edges), 4)
    # Stable: edges of one completion fire in the order in which they were added.
    return table[np.lexsort((table[:, 1], table[:, 0]))] if len(edges) else table
