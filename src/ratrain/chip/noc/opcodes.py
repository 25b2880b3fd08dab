"""What a flit may ask of the routers, and in which number format.

The 4-bit opcode travels with the address mask; the numbers are those of the published RTL
(FlooNoC v0.8.0). The format is not part of the flit in that RTL (its glue issues fp64 only);
here a message carries it, so that narrower formats can be studied.
"""

from __future__ import annotations

from enum import IntEnum


class Opcode(IntEnum):
    """The opcodes; the last three are set by the routers and network interfaces themselves."""

    UNICAST = 0
    MULTICAST = 1
    LSB_AND = 2
    FP_ADD = 3
    FP_MUL = 4
    FP_MIN = 5
    FP_MAX = 6
    INT_ADD = 7
    INT_MUL = 8
    INT_MIN_S = 9
    INT_MIN_U = 10
    INT_MAX_S = 11
    INT_MAX_U = 12
    SELECT_AW = 13
    COLLECT_B = 14
    SEQ_AW = 15

    @property
    def is_arithmetic(self) -> bool:
        """Combined in the reduction unit, one pair at a time ("sequential" in the RTL)."""
        return Opcode.FP_ADD <= self <= Opcode.INT_MAX_U or self is Opcode.SEQ_AW

    @property
    def is_parallel(self) -> bool:
        """Combined at the output, all inputs in one cycle ("parallel" in the RTL)."""
        return self in (Opcode.LSB_AND, Opcode.COLLECT_B, Opcode.SELECT_AW)

    @property
    def is_reduction(self) -> bool:
        return self.is_arithmetic or self.is_parallel


class Format(IntEnum):
    """The number format of the lanes of a flit; FP8 is E5M2, FP8_ALT an IEEE-style E4M3."""

    FP64 = 0
    FP32 = 1
    FP16 = 2
    BF16 = 3
    FP8 = 4
    FP8_ALT = 5
    INT64 = 6
    INT32 = 7
    INT16 = 8
    INT8 = 9

    @property
    def width_bytes(self) -> int:
        return (8, 4, 2, 2, 1, 1, 8, 4, 2, 1)[self]

    @property
    def is_float(self) -> bool:
        return self <= Format.FP8_ALT


# Latency of one combination in the borrowed FPU, cycles, by format (Snitch cluster RTL).
FPU_LATENCY_CYCLES = {
    Format.FP64: 3,
    Format.FP32: 2,
    Format.FP16: 1,
    Format.BF16: 1,
    Format.FP8: 1,
    Format.FP8_ALT: 1,
}

FP_OPCODES = {
    "add": Opcode.FP_ADD,
    "mul": Opcode.FP_MUL,
    "min": Opcode.FP_MIN,
    "max": Opcode.FP_MAX,
}
INT_OPCODES = {
    "add": Opcode.INT_ADD,
    "mul": Opcode.INT_MUL,
    "min": Opcode.INT_MIN_S,
    "max": Opcode.INT_MAX_S,
    "umin": Opcode.INT_MIN_U,
    "umax": Opcode.INT_MAX_U,
}
