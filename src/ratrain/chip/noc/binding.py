"""The compiled core (core/*.c) behind ctypes. Long calls release the interpreter lock."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratrain import compiled
from ratrain.chip.noc.spec import MeshSpec
from ratrain.chip.noc.workload import Workload
from ratrain.errors import ChipError

_MODES = {"rtl080": 0, "lossy": 1, "kinput": 2, "ideal": 3}
_COUNTERS = (
    "now",
    "injected",
    "ejected",
    "in_network",
    "open_tasks",
    "fault_node",
    "fault_plane",
    "fault_op",
    "fault_inputs",
    "fault_task",
    "deliveries",
    "traces",
)
_POINTER = ctypes.c_void_p
_INT = ctypes.c_int64


@cache
def _library() -> ctypes.CDLL:
    """The shared object built beside this file."""
    library = compiled.library("chip/noc", "_core")
    if library is None:
        raise ChipError(
            "the compiled mesh simulator is missing",
            place=str(Path(__file__).parent),
            fix="install a C compiler and run `pip install -e .` again; the models "
            "(`ratrain noc gemm`, `reproduce --models-only`) work without it",
        )
    library.noc_new.restype = _POINTER
    library.noc_new.argtypes = [_POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _POINTER, _INT]
    library.noc_new.argtypes += [_INT, _POINTER]
    library.noc_run.restype = _INT
    library.noc_run.argtypes = [_POINTER, _INT]
    library.noc_free.argtypes = [_POINTER]
    library.noc_free.restype = None
    for name, count in (
        ("noc_counters", 1),
        ("noc_read_links", 2),
        ("noc_read_deliveries", 1),
        ("noc_read_trace", 1),
    ):
        function = getattr(library, name)
        function.argtypes = [_POINTER] * (count + 1)
        function.restype = None
    return library


def _address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _config(mesh: MeshSpec, memory_bytes: int, trace: bool) -> NDArray[np.int64]:
    router = mesh.router
    widths = [plane.flit_bytes for plane in mesh.planes]
    values = [mesh.columns, mesh.rows, mesh.origin_x, len(mesh.planes), router.virtual_channels]
    values += [router.input_fifo_flits, router.output_fifo_flits, router.link_stages]
    values += [_MODES[router.reduction], router.reduction_latency_cycles]
    values += [int(router.fork == "lockstep"), round(1000 * router.core_fpu_load)]
    values += [memory_bytes, int(trace), *widths, *[0] * (8 - len(widths))]
    return np.array(values, np.int64)


class Simulation:
    """One run in progress; `run` may be called again with a later cycle."""

    def __init__(self, workload: Workload, *, trace: bool = False) -> None:
        self._library = _library()
        self._shape = (len(workload.mesh.planes), workload.mesh.rows, workload.mesh.columns)
        # The core keeps pointers into these arrays, so they live as long as it does.
        self.tasks = workload.task_table()
        self._edges = workload.edge_table()
        self._streams = workload.stream_table()
        self._memory = workload.memory
        config = _config(workload.mesh, workload.memory.shape[1], trace)
        self._handle = self._library.noc_new(
            _address(config),
            _address(self.tasks),
            len(self.tasks),
            len(self.tasks),
            _address(self._edges),
            len(self._edges),
            _address(self._streams),
            len(self._streams),
            workload.unit_count,
            _address(self._memory),
        )
        if not self._handle:
            raise ChipError(
                f"no memory for a mesh of {workload.mesh.nodes} nodes",
                place="mesh",
                fix="simulate a smaller mesh, or use the closed forms",
            )

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.noc_free(self._handle)
            self._handle = None

    def run(self, until: int) -> int:
        """Advance to cycle `until` or the end; the status number of mesh.STATUS."""
        return int(self._library.noc_run(self._handle, until))

    def counters(self) -> dict[str, int]:
        values = np.zeros(len(_COUNTERS), np.int64)
        self._library.noc_counters(self._handle, _address(values))
        return dict(zip(_COUNTERS, values.tolist(), strict=True))

    def links(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Flits by [plane, row, column, port], and combinations by [plane, row, column]."""
        links = np.zeros((*self._shape, 5), np.int64)
        combines = np.zeros(self._shape, np.int64)
        self._library.noc_read_links(self._handle, _address(links), _address(combines))
        return links, combines

    def deliveries(self, count: int) -> NDArray[np.int64]:
        rows = np.zeros((count, 3), np.int64)
        self._library.noc_read_deliveries(self._handle, _address(rows))
        return rows

    def trace(self, count: int) -> NDArray[np.int64]:
        rows = np.zeros((count, 6), np.int64)
        self._library.noc_read_trace(self._handle, _address(rows))
        return rows
