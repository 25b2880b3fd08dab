"""The machines that tile programs are for: cores, memories, rates, and where each figure is from.

Sources: [P1] the NUDT paper on GEMM for multi-core GPDSPs, and its notes on micro-kernels
(github.com/VVinstonSmith/BLAS-for-multi-core-DSP); [H] the hthread device header of the MT-3000
tool chain; [T] arXiv 2605.25655 (THInfer). "fit": set by looking at published rows of P1; which
ones, and how well the others are met, stands in docs/notes/kernels.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

import numpy as np

from ratrain.errors import SpecError


class Tier(StrEnum):
    """A memory. AM and SM are each core's own; GSM is shared by the cores, and so is DDR."""

    DDR = "DDR"
    GSM = "GSM"
    AM = "AM"
    SM = "SM"

    @property
    def shared(self) -> bool:
        return self in (Tier.DDR, Tier.GSM)


DDR, GSM, AM, SM = Tier

NO_PATH = frozenset({AM, SM})
"""The only pair of memories that no DMA channel joins [P1]."""


@dataclass(frozen=True, eq=False)  # hashed by identity: cycles are looked up by it
class Machine:
    """One cluster: cores that compute on their own AM and SM, and share GSM and DDR."""

    name: str
    cores: int
    clock_hz: float
    ddr_bytes: int
    ddr_bytes_per_s: float  # what all cores' transfers reach together
    strided_row_s: float  # further DDR time of each row of a tile that is no whole row
    gsm_bytes_per_s: float  # of one port
    gsm_port_cores: int  # neighbours that share a port
    gsm_bytes: int = 6 * 2**20  # [P1]
    am_bytes: int = 768 * 2**10  # of a core [P1]
    sm_bytes: int = 64 * 2**10  # of a core [P1]
    transfer_cycles: float = 70.0  # launch and wait of a transfer; measured 62 [P1]; fit
    call_cycles: float = 17.0  # between two micro-kernels of a tile; fit
    start_cycles: float = 60.0  # of a loop over vectors: its pipeline fills; assumed
    vector_bytes: int = 128  # 1024 bits [P1]
    vector_units: int = 3  # VMAC1 to VMAC3 [H]
    am_bytes_per_cycle: int = 512  # two loads of two vectors [P1]

    def capacity_bytes(self, tier: Tier) -> int:
        """Of a core's memory, or of the shared one."""
        return {
            DDR: self.ddr_bytes,
            GSM: self.gsm_bytes,
            AM: self.am_bytes,
            SM: self.sm_bytes,
        }[tier]

    def lanes(self, dtype: np.dtype) -> int:
        """Elements of a vector: 16 of FP64, 32 of FP32, 64 of FP16."""
        return self.vector_bytes // dtype.itemsize

    def peak_flops(self, dtype: np.dtype) -> float:
        """Of one core, a second."""
        return 2 * self.vector_units * self.lanes(dtype) * self.clock_hz

    @cache  # noqa: B019  # machines are few, and live for ever
    def with_cores(self, cores: int) -> Machine:
        """The same with some of its cores alone."""
        if not 1 <= cores <= self.cores:
            raise SpecError(
                f"{self.name} has {self.cores} cores in a cluster, not {cores}",
                place="--cores",
                fix=f"take 1 to {self.cores}",
            )
        return replace(self, cores=cores)


FT_M7032 = Machine(
    name="ft-m7032",
    cores=8,  # [P1]
    clock_hz=1.8e9,  # [P1]
    ddr_bytes=8 * 2**30,  # not published: of the host's memory; assumed
    ddr_bytes_per_s=44.5e9,  # fit
    strided_row_s=7.6e-9,  # fit
    gsm_bytes_per_s=62.5e9,  # not published; fit
    gsm_port_cores=4,  # fit: two cores reach together half of what eight do
)
MT_3000 = Machine(
    name="mt-3000",
    cores=24,  # [T]
    clock_hz=0.88e9,  # [T]: 8.1 TFLOP/s of FP16 a cluster, at 3 x 64 FMA a cycle and core
    ddr_bytes=20 * 10**9,  # arXiv 2606.10415
    ddr_bytes_per_s=30e9,  # [T]: what software reaches
    strided_row_s=0.0,  # in that rate already
    gsm_bytes_per_s=108e9,  # assumed: the least that the FT-M7032 shows
    gsm_port_cores=24,  # assumed
)

MACHINES = {machine.name: machine for machine in (FT_M7032, MT_3000)}
