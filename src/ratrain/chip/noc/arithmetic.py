"""The opcodes' arithmetic in numpy: what the compiled core must agree with, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc.numbers import decode, encode
from ratrain.chip.noc.opcodes import Format, Opcode

Bytes = NDArray[np.uint8]
_SIGNED = {8: np.int64, 4: np.int32, 2: np.int16, 1: np.int8}
_UNSIGNED = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}


def combine(op: Opcode, form: Format, a: Bytes, b: Bytes) -> Bytes:
    """op(a, b) lane by lane, as bytes. Each result is rounded once to the format.

    LsbAnd and CollectB keep all of `a` but the bit or byte they are about. min and max follow
    RISC-V: a number beats a NaN, and -0 is less than +0. Every NaN is the canonical one.
    """
    if op in (Opcode.SEQ_AW, Opcode.SELECT_AW, Opcode.UNICAST, Opcode.MULTICAST):
        return a.copy()
    if op is Opcode.LSB_AND:
        return _first_byte(a, int(a[0]) & ~1 | (int(a[0]) & int(b[0]) & 1))
    if op is Opcode.COLLECT_B:
        return _first_byte(a, int(b[0]) if a[0] == 0 else int(a[0]))
    if not form.is_float:
        return _combine_int(op, form, a, b)
    x, y = decode(a, form).astype(np.float64), decode(b, form).astype(np.float64)
    with np.errstate(all="ignore"):
        if op is Opcode.FP_ADD:
            z = x + y
        elif op is Opcode.FP_MUL:
            z = x * y
        else:
            z = _extreme(x, y, largest=op is Opcode.FP_MAX)
    # Adding zero-sign NaNs: numpy leaves their sign open, the routers do not.
    return encode(np.where(np.isnan(z), np.nan, z), form)


def fold(parts: list[Bytes], op: Opcode, form: Format) -> Bytes:
    """op over the parts from left to right, rounded to the format after each."""
    result = parts[0]
    for part in parts[1:]:
        result = combine(op, form, result, part)
    return result


def _first_byte(data: Bytes, value: int) -> Bytes:
    changed = data.copy()
    changed[0] = value
    return changed


def _extreme(
    x: NDArray[np.float64], y: NDArray[np.float64], *, largest: bool
) -> NDArray[np.float64]:
    # Not np.fmin: it turns a signalling NaN and a number into NaN, RISC-V into the number.
    better = np.maximum(x, y) if largest else np.minimum(x, y)
    better = np.where(np.isnan(x), y, np.where(np.isnan(y), x, better))
    both_negative, either_negative = np.signbit(x) & np.signbit(y), np.signbit(x) | np.signbit(y)
    zero = np.where(both_negative if largest else either_negative, -0.0, 0.0)
    return np.where((x == 0) & (y == 0), zero, better)


def _combine_int(op: Opcode, form: Format, a: Bytes, b: Bytes) -> Bytes:
    unsigned, signed = _UNSIGNED[form.width_bytes], _SIGNED[form.width_bytes]
    x, y = np.frombuffer(a.tobytes(), unsigned), np.frombuffer(b.tobytes(), unsigned)
    table: dict[Opcode, Callable[[], NDArray[np.generic]]] = {
        Opcode.INT_ADD: lambda: x + y,
        Opcode.INT_MUL: lambda: x * y,
        Opcode.INT_MIN_S: lambda: np.minimum(x.view(signed), y.view(signed)),
        Opcode.INT_MAX_S: lambda: np.maximum(x.view(signed), y.view(signed)),
        Opcode.INT_MIN_U: lambda: np.minimum(x, y),
        Opcode.INT_MAX_U: lambda: np.maximum(x, y),
    }
    integer_op = {
        Opcode.FP_ADD: Opcode.INT_ADD,
        Opcode.FP_MUL: Opcode.INT_MUL,
        Opcode.FP_MIN: Opcode.INT_MIN_S,
        Opcode.FP_MAX: Opcode.INT_MAX_S,
    }
    return np.frombuffer(table[integer_op.get(op, op)]().tobytes(), np.uint8).copy()
