"""Run a workload on the compiled mesh; the results, and what went wrong if it could not end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc.binding import Simulation
from ratrain.chip.noc.opcodes import Opcode
from ratrain.chip.noc.spec import MeshSpec
from ratrain.chip.noc.workload import TASK_FIELDS, Place, Workload
from ratrain.errors import ChipError

Status = Literal["done", "time limit", "deadlock", "wedged", "lost operand"]
STATUS: tuple[Status, ...] = (
    "done",
    "time limit",
    "deadlock",
    "wedged",
    "lost operand",
)
PORTS = ("N", "E", "S", "W", "L")
NEVER = 1 << 60


@dataclass(frozen=True)
class Fault:
    """Where a run stopped: the router, the cycle, and what the flit there asked for."""

    place: Place
    plane: str
    cycle: int
    op: Opcode
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """What happened. Cycles count from 0, the cycle in which the first flit is offered."""

    mesh: MeshSpec
    status: Status
    cycles: int
    injected_flits: int
    ejected_flits: int
    undelivered: int
    """Messages that have left their source and not arrived anywhere."""
    injected_at: NDArray[np.int64]
    first_at: NDArray[np.int64]
    last_at: NDArray[np.int64]
    deliveries: NDArray[np.int64]
    """(group, node, cycle of the last flit), in order of time."""
    link_flits: NDArray[np.int64]
    """Flits that left by each port: [plane, row, column, N E S W L]."""
    combines: NDArray[np.int64]
    """Pairs combined by each reduction unit: [plane, row, column]."""
    trace: NDArray[np.int64]
    """(cycle, plane, node, port, task, flit) of every link transfer, if it was asked for."""
    fault: Fault | None

    @property
    def last_cycle(self) -> int:
        """The cycle of the last ejection or completed work; -1 if there was none."""
        return int(self.last_at.max(initial=-1))


def run(workload: Workload, *, until: int = NEVER, trace: bool = False, check: bool = True) -> Run:
    """Simulate to the end (or to cycle `until`); with `check` an unfinished run is an error."""
    sim = Simulation(workload, trace=trace)
    result = finish(sim, workload.mesh, sim.run(until))
    if check:
        raise_fault(result)
    return result


def finish(sim: Simulation, mesh: MeshSpec, status: int) -> Run:
    """The results of a simulation, up to the cycle that it has reached."""
    counters = sim.counters()
    links, combines = sim.links()
    deliveries = sim.deliveries(counters["deliveries"])
    column = {name: i for i, name in enumerate(TASK_FIELDS)}
    packets = sim.tasks[sim.tasks[:, column["kind"]] == 0]
    begun = packets[packets[:, column["injected_at"]] >= 0, column["group"]]
    fault = None
    if STATUS[status] == "lost operand":
        mask = counters["fault_inputs"]
        fault = Fault(
            place=mesh.place(counters["fault_node"]),
            plane=mesh.planes[counters["fault_plane"]].name,
            cycle=counters["now"],
            op=Opcode(counters["fault_op"]),
            inputs=tuple(p for i, p in enumerate(PORTS) if mask >> i & 1),
        )
    return Run(
        mesh=mesh,
        status=STATUS[status],
        cycles=counters["now"],
        injected_flits=counters["injected"],
        ejected_flits=counters["ejected"],
        undelivered=int(np.setdiff1d(begun, deliveries[:, 0]).size),
        injected_at=sim.tasks[:, column["injected_at"]].copy(),
        first_at=sim.tasks[:, column["first_at"]].copy(),
        last_at=sim.tasks[:, column["last_at"]].copy(),
        deliveries=deliveries,
        link_flits=links,
        combines=combines,
        trace=sim.trace(counters["traces"]),
        fault=fault,
    )


def raise_fault(result: Run) -> None:
    """Raise ChipError unless the run came to its end."""
    if result.fault is not None:
        fault = result.fault
        raise ChipError(
            f"{fault.op.name} needs {len(fault.inputs)} operands (from {' '.join(fault.inputs)}) "
            f"but the reduction unit takes two: the third would be lost",
            place=f"router {fault.place} plane {fault.plane} cycle {fault.cycle}",
            fix="reduce rows first and columns second, or choose reduction='kinput'",
        )
    if result.status == "deadlock":
        raise ChipError(
            f"deadlock: {result.ejected_flits} flits have arrived, the others block each other"
            f" ({result.undelivered} messages have not arrived anywhere)",
            place=f"mesh cycle {result.cycles}",
            fix="split it with ratrain.chip.noc.deadlock.serialise() into phases that cannot block",
        )
    if result.status != "done":
        raise ChipError(
            f"the run stopped unfinished ({result.status}) after {result.ejected_flits} flits "
            f"had arrived",
            place=f"mesh cycle {result.cycles}",
            fix="give it more cycles"
            if result.status == "time limit"
            else "look for a task that waits for one that never completes",
        )
