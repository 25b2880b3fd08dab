"""The compiled copy against the plain one, over every size and alignment."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain import compiled
from ratrain.transport.memory import segments

ROOM = 1 << 18
LIBRARY = compiled.library("transport/memory", "copy_c")


@pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")
@given(
    size=st.one_of(st.integers(0, 300), st.integers(16_000, 17_000), st.integers(0, ROOM - 256)),
    source_at=st.integers(0, 127),
    target_at=st.integers(0, 127),
    seed=st.integers(0, 1 << 32),
)
def test_a_copy_brings_every_byte_and_touches_no_other(
    size: int, source_at: int, target_at: int, seed: int
) -> None:
    source = np.random.default_rng(seed).integers(0, 256, ROOM, np.uint8)
    target = np.full(ROOM, 7, np.uint8)
    expected = target.copy()
    expected[target_at : target_at + size] = source[source_at : source_at + size]
    assert LIBRARY is not None
    LIBRARY.ratrain_copy(
        ctypes.c_void_p(target.ctypes.data + target_at),
        ctypes.c_void_p(source.ctypes.data + source_at),
        compiled.c_long(size),
    )
    assert np.array_equal(target, expected)


@given(size=st.integers(1, 3 * segments.COPY_BYTES))
def test_a_segment_is_copied_the_same_with_and_without_the_compiled_part(size: int) -> None:
    segment = segments.create(4 * segments.COPY_BYTES)
    segment.array[:] = np.arange(segment.array.size, dtype=np.uint64).astype(np.uint8)
    target = np.zeros(size, np.uint8)
    segments.copy(target.ctypes.data, segment.base + 17, size)
    assert np.array_equal(target, segment.array[17 : 17 + size])
    os.close(segment.fd)
