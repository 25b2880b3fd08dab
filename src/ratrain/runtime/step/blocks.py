"""A unit's flat buffer as blocks of the model's parameters, and tensors of such blocks."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torch import Tensor

from ratrain.models.parameters import UnitParameters
from ratrain.ranges import Block, common


def blocks_of(layout: UnitParameters) -> list[Block]:
    """Of each parameter what a buffer holds of it; of vectors a row has one element."""
    blocks: list[Block] = []
    for held in layout.parameters:
        rows, *others = held.window
        width, whole_width = prod(held.shape[1:]), prod(held.whole_shape[1:])
        first = others[0].start * (whole_width // held.whole_shape[1]) if others else 0
        columns = (first, first + width)
        blocks.append(Block(held.name, (rows.start, rows.stop), columns, held.offset, width))
    return blocks


def blocks_within(layout: UnitParameters, begin: int, end: int) -> Iterator[Block]:
    """What of them is in elements begin .. end of the buffer."""
    for block in blocks_of(layout):
        first, last = common((begin, end), (block.offset, block.offset + block.elements))
        if first < last:
            yield from block.run(first - block.offset, last - block.offset)


def view_of(flat: Tensor, block: Block, *, begin: int = 0) -> Tensor:
    """A block's rows and columns in a flat buffer, of which `flat` begins with element `begin`."""
    sizes, strides = (block.height, block.width), (block.stride, 1)
    return flat.as_strided(sizes, strides, flat.storage_offset() + block.offset - begin)
