"""Values to bytes and back, for every format a flit can carry.

Formats with no numpy type (bf16, fp8) are rounded once, half to even, from fp64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc.opcodes import Format

_NATIVE = {
    Format.FP64: np.float64,
    Format.FP32: np.float32,
    Format.FP16: np.float16,
    Format.INT64: np.int64,
    Format.INT32: np.int32,
    Format.INT16: np.int16,
    Format.INT8: np.int8,
}
# (exponent bits, mantissa bits) of the formats that numpy lacks.
_SMALL = {Format.BF16: (8, 7), Format.FP8: (5, 2), Format.FP8_ALT: (4, 3)}


def encode(values: NDArray[np.generic], form: Format) -> NDArray[np.uint8]:
    """The little-endian bytes of `values` rounded to `form`; integers wrap."""
    if form in _SMALL:
        return _encode_small(values.astype(np.float64), *_SMALL[form], form.width_bytes)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.frombuffer(values.astype(_NATIVE[form]).tobytes(), np.uint8).copy()


def decode(data: NDArray[np.uint8], form: Format) -> NDArray[np.generic]:
    """The values in `data`: int64 for integer formats, else float64 (exact for all of them)."""
    raw = np.ascontiguousarray(data).tobytes()
    if form in _SMALL:
        return _decode_small(raw, *_SMALL[form], form.width_bytes)
    native = np.frombuffer(raw, _NATIVE[form])
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return native.astype(np.float64 if form.is_float else np.int64)


def _encode_small(
    values: NDArray[np.float64], exp_bits: int, man_bits: int, width: int
) -> NDArray[np.uint8]:
    bias, top = (1 << (exp_bits - 1)) - 1, (1 << exp_bits) - 1
    size = np.abs(values)
    finite = np.isfinite(values)
    _, exponent = np.frexp(np.where(finite, size, 0.0))
    exponent = np.maximum(exponent - 1, 1 - bias)
    digits = np.rint(np.ldexp(np.where(finite, size, 0.0), man_bits - exponent)).astype(np.int64)
    # A carry out of the digits runs into the exponent by itself; below 2^man_bits is subnormal.
    normal = ((exponent + bias - 1).astype(np.int64) << man_bits) + digits
    bits = np.where(digits < (1 << man_bits), digits, normal)
    bits = np.where(finite, np.minimum(bits, top << man_bits), top << man_bits)
    bits |= np.signbit(values).astype(np.int64) << (exp_bits + man_bits)
    bits = np.where(np.isnan(values), (top << man_bits) | (1 << (man_bits - 1)), bits)
    kind = np.uint16 if width == 2 else np.uint8
    return np.frombuffer(bits.astype(kind).tobytes(), np.uint8).copy()


def _decode_small(raw: bytes, exp_bits: int, man_bits: int, width: int) -> NDArray[np.float64]:
    bits = np.frombuffer(raw, np.uint16 if width == 2 else np.uint8).astype(np.int64)
    bias, top = (1 << (exp_bits - 1)) - 1, (1 << exp_bits) - 1
    exponent = (bits >> man_bits) & top
    mantissa = bits & ((1 << man_bits) - 1)
    digits = np.where(exponent == 0, mantissa, mantissa | (1 << man_bits)).astype(np.float64)
    value = np.ldexp(digits, np.maximum(exponent, 1) - bias - man_bits)
    value = np.where(exponent == top, np.where(mantissa == 0, np.inf, np.nan), value)
    return np.where((bits >> (exp_bits + man_bits)) & 1 == 1, -value, value)
