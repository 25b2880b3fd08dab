"""The stimuli of the golden vectors: what the RTL bench offered, as workloads.

The numbers come from the real routers (FlooNoC v0.8.0 in Verilator): FIFO 2+2, one virtual
channel, 64-bit payload, reduction latency 4, sinks always ready, injection offered at cycle 0.
"""

from __future__ import annotations

import numpy as np

from ratrain.chip.noc.opcodes import Format, Opcode
from ratrain.chip.noc.spec import MeshSpec, Plane, RouterSpec
from ratrain.chip.noc.workload import Place, Workload

ADD = Opcode.INT_ADD


def bench(size: int, *, memory_bytes: int = 0, **router: object) -> Workload:
    spec = RouterSpec(**router)  # type: ignore[arg-type]
    mesh = MeshSpec(size, size, planes=(Plane("bench", 8),), router=spec)
    return Workload(mesh, memory_bytes=memory_bytes)


def row_multicast(w: Workload, source: Place, flits: int) -> int:
    k = w.mesh.columns
    return w.packet(source, (0, source[1]), flits, op=Opcode.MULTICAST, mask=(k - 1, 0))


def column_multicast(w: Workload, source: Place, flits: int) -> int:
    k = w.mesh.columns
    return w.packet(source, (source[0], 0), flits, op=Opcode.MULTICAST, mask=(0, k - 1))


def broadcast(w: Workload, source: Place, flits: int) -> int:
    k = w.mesh.columns
    return w.packet(source, (0, 0), flits, op=Opcode.MULTICAST, mask=(k - 1, k - 1))


def reduction(
    w: Workload,
    members: list[Place],
    mask: Place,
    dst: Place,
    flits: int,
    *,
    op: Opcode = ADD,
    late: dict[Place, int] | None = None,
    with_values: bool = False,
) -> int:
    group = None
    for place in members:
        task = w.packet(
            place,
            dst,
            flits,
            op=op,
            sources=mask,
            form=Format.INT64,
            group=group,
            at=(late or {}).get(place, 0),
            read_at=0 if with_values else -1,
            write_at=8 * flits if with_values else -1,
        )
        group = task if group is None else group
    assert group is not None
    return group


def row(w: Workload, y: int) -> list[Place]:
    return [(x, y) for x in range(w.mesh.columns)]


def row_reductions(w: Workload, flits: int) -> None:
    for y in range(w.mesh.rows):
        reduction(w, row(w, y), (w.mesh.columns - 1, 0), (0, y), flits)


def column_reductions(w: Workload, flits: int) -> None:
    for x in range(w.mesh.columns):
        members = [(x, y) for y in range(w.mesh.rows)]
        reduction(w, members, (0, w.mesh.rows - 1), (x, 0), flits)


def two_directions(w: Workload, flits: int, *, diagonal: bool) -> None:
    """T2 and T2d: every row multicast, and queued after it every column multicast."""
    k = w.mesh.columns
    for y in range(k):
        row_multicast(w, (y if diagonal else 0, y), flits)
    for x in range(k):
        column_multicast(w, (x, x if diagonal else 0), flits)


def values_of(w: Workload, flits: int) -> None:
    """Node number i holds 100 (i + 1), one 64-bit integer per flit."""
    for node in range(w.mesh.nodes):
        data = np.full(flits, 100 * (node + 1), np.int64)
        w.write(w.mesh.place(node), 0, data.view(np.uint8))
