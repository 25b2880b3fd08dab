"""Published measurements of products on the FT-M7032 beside the clock's.

`data/ft-m7032.csv` holds every other row of the figures of P1 to P4 (see `machine`). What was
fitted to them stands in docs/notes/kernels.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ratrain.errors import SpecError
from ratrain.kernels import micro
from ratrain.kernels.blocking import Product, Writer, best_blocks
from ratrain.kernels.build import Kernel
from ratrain.kernels.clock import time_of
from ratrain.kernels.gemm import Blocks, gemm_nn, gemm_nt, gemm_tt
from ratrain.kernels.machine import FT_M7032, Machine
from ratrain.readers.csv import csv_table
from ratrain.readers.files import read_text
from ratrain.readers.numbers import real, whole

COLUMNS = ("id", "level", "dtype", "mode", "M", "K", "N", "cores", "KA", "value", "note")
GIVEN = Path(__file__).parent / "data" / "ft-m7032.csv"
TIMING_CALLS = 28
"""Cycles of the calls that take the time, in rows that are cycles."""
NN = {
    128: Blocks(6048, 72, 24, 128, 192),
    256: Blocks(3024, 144, 12, 256, 96),
    512: Blocks(1512, 252, 6, 512, 48),
}
NT = {
    256: Blocks(2880, 36, 12, 256, 64),  # not published; as at 512
    512: Blocks(1440, 36, 12, 512, 64),
    1024: Blocks(720, 72, 12, 1024, 32),
    2048: Blocks(288, 144, 6, 2048, 16),
}
RELEASED = Blocks(576, 144, 6, 512, 64, a_buffers=2)
"""Those of the released code, FP64; P1 gives the others."""
UNSIZED = "large"
"""A size that the publication does not state; in a `Row` it is 0."""
DTYPES = {"f64": "f8", "f32": "f4"}
GEMMS = {"NN": gemm_nn, "NT": gemm_nt, "TT": gemm_tt}


@dataclass(frozen=True)
class Row:
    """A measurement: GFLOPS of a core, or cycles."""

    name: str
    level: str
    dtype: str
    mode: str
    m: int
    depth: int
    n: int
    cores: int
    k_block: int
    value: float

    @property
    def group(self) -> str:
        """Rows that are summed up together."""
        if self.level == "uk":
            return f"micro-kernels, {self.mode}"
        cores = "one core" if self.cores == 1 else "2 to 8 cores"
        wide = self.mode == "NT" and self.cores > 1 and self.k_block >= 1024
        return f"{self.mode}, {cores}{', K_A from 1024 on' if wide else ''}"


@dataclass(frozen=True)
class Scored:
    """A row, and what the clock says of it."""

    row: Row
    ours: float

    @property
    def error(self) -> float:
        """(ours - measured) / measured."""
        return self.ours / self.row.value - 1


def read_rows(path: Path | None) -> list[Row]:
    """The rows of a file, or those that come with RATrain."""
    path = path or GIVEN
    table = csv_table(_with_notes(read_text(path)), str(path), COLUMNS)
    rows = [_row(cells, row.place) for cells, row in table]
    if not rows:
        raise SpecError("has no row", place=str(path), fix="give at least one below the header")
    return rows


def _with_notes(text: str) -> str:
    """The text where rows may leave out the last cell, the note."""
    lines = text.splitlines()
    commas = lines[0].count(",") if lines else 0
    return "\n".join(line + "," * (line.count(",") == commas - 1) for line in lines)


def _row(cells: dict[str, str], place: str) -> Row:
    missing = [column for column in COLUMNS[:-1] if not cells.get(column)]
    if missing:
        fix = f"the columns are {', '.join(COLUMNS)}"
        raise SpecError(f"has no {missing[0]}", place=place, fix=fix)
    if cells["dtype"] not in DTYPES:
        raise SpecError(f"{cells['dtype']} is no type here", place=place, fix="f32 or f64")
    try:
        m, depth, n = (
            0 if cells[c] == UNSIZED else whole(cells[c], low=1) for c in ("M", "K", "N")
        )
        cores = whole(cells["cores"], low=1)
        k_block = 0 if cells["KA"] == "-" else whole(cells["KA"], low=1)
        value = real(cells["value"])
    except ValueError as error:
        raise SpecError(str(error), place=place, fix="sizes are whole numbers from 1 on") from None
    if value <= 0:
        raise SpecError(f"a measurement of {value:g}", place=place, fix="it is more than 0")
    name, level, mode = cells["id"], cells["level"], cells["mode"]
    return Row(name, level, cells["dtype"], mode, m, depth, n, cores, k_block, value)


def scored(rows: Iterable[Row], machine: Machine = FT_M7032) -> Iterator[Scored]:
    """Each row of a stated size that there is a kernel for: not those of very short or thin
    matrices, which the published code transposes on chip, and which are not written here."""
    for row in rows:
        if not (row.m and row.depth and row.n):
            continue
        if row.level == "uk":
            yield Scored(row, _micro_kernel(row, machine))
        elif row.level == "gemm" and row.mode in GEMMS:
            yield Scored(row, _product(row, machine.with_cores(row.cores)))


def _micro_kernel(row: Row, machine: Machine) -> float:
    if row.mode == "NN":
        cycles = micro.nn_kernel(row.m, row.n // 16, row.depth)
    elif row.mode == "NT":
        cycles = row.depth + micro.NT_AROUND + micro.NT_CALL
    else:
        cycles = micro.merged_nt_kernel(row.n // 6, row.depth)
        if row.name.startswith("D"):
            return cycles + TIMING_CALLS
        cycles += micro.MERGED_CALL
    return 2 * row.m * row.n * row.depth * machine.clock_hz / cycles / 1e9


def _product(row: Row, machine: Machine) -> float:
    gemm = GEMMS[row.mode]

    def write(kernel: Kernel, blocks: Blocks) -> None:
        gemm(kernel, row.m, row.n, row.depth, DTYPES[row.dtype], blocks)

    blocks = _blocks(row, machine, write)
    timed = time_of(lambda kernel: write(kernel, blocks), machine)
    return 2.0 * row.m * row.n * row.depth / timed.time_s / row.cores / 1e9


def _blocks(row: Row, machine: Machine, write: Writer) -> Blocks:
    """Those of the measurement, where they were published."""
    if row.mode == "TT" or row.name.startswith("N"):
        return RELEASED
    blocks = (NT if row.mode == "NT" else NN).get(row.k_block)
    if blocks is None:
        mode = "nt" if row.mode == "NT" else "nn"
        product = Product(mode, row.m, row.n, row.depth, DTYPES[row.dtype])
        return best_blocks(machine, product, write)
    return blocks
