"""The text of a small kernel."""

from __future__ import annotations

from ratrain.kernels import AM, Kernel, program_text, written
from ratrain.kernels.machine import FT_M7032

GOLDEN = """\
machine ft-m7032, cores 2
input x 6 x 4 float32
output y 6 x 4 float32
memory AM of core 0: 32 B of 786 kB
memory AM of core 1: 32 B of 786 kB
core 0 compute
  map tile.0 <- tile.0  (reads tile.0@1; writes tile.0@2)
  map tile.0 <- tile.0  (reads tile.0@3; writes tile.0@4)
core 0 dma tile
  load tile.0 <- x[0:2, 0:4]  (reads x[0:6, 0:4]@0; writes tile.0@1)
  load tile.0 <- x[4:6, 0:4]  (reads x[0:6, 0:4]@0; writes tile.0@3)
core 0 dma tile out
  store y[0:2, 0:4] <- tile.0  (reads tile.0@2; writes y[0:2, 0:4]@1)
  store y[4:6, 0:4] <- tile.0  (reads tile.0@4; writes y[4:6, 0:4]@1)
core 1 compute
  map tile.0 <- tile.0  (reads tile.0@1; writes tile.0@2)
core 1 dma tile
  load tile.0 <- x[2:4, 0:4]  (reads x[0:6, 0:4]@0; writes tile.0@1)
core 1 dma tile out
  store y[2:4, 0:4] <- tile.0  (reads tile.0@2; writes y[2:4, 0:4]@1)
"""


def double(k: Kernel) -> None:
    x, y = k.input("x", 6, 4, "f4"), k.output("y", 6, 4, "f4")
    for core, part in k.deal(6, 2):
        tile = core.load(x[part, :], AM, "tile", buffers=1)
        core.map(tile, lambda x: 2 * x, tile, slots=1)
        core.store(tile, y[part, :])


def test_a_kernel_s_text_names_every_op_and_version() -> None:
    assert program_text(written(double, FT_M7032.with_cores(2), None)) == GOLDEN
