"""What a rank writes to a checkpoint of a unit that is stored in smaller parts than it holds: those
of the least common multiple of tensor degrees, which ranks of every degree have whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from ratrain.cost.scratch import CHUNK_BYTES
from ratrain.models.division import Division
from ratrain.models.parameters import UnitParameters, aligned
from ratrain.ranges import Block, overlap
from ratrain.runtime.step.blocks import blocks_of, view_of


@dataclass(frozen=True)
class Stored:
    """What a rank writes of a slot to a checkpoint: elements begin .. end of the slot's own buffer,
    which are a block of the rank's buffer, and zeros behind them. `run`: the rows that it is in."""

    slot: Division
    begin: int
    end: int
    block: Block
    run: slice

    def pieces(self, values: Tensor) -> Iterator[Tensor]:
        """The elements, of what the run holds, piece by piece."""
        rows = view_of(values, self.block, begin=self.run.start)
        for piece in rows.split(max(1, CHUNK_BYTES // (4 * self.block.stride))):
            yield piece.reshape(-1)
        padding = self.end - self.begin - rows.numel()
        if padding:
            yield values.new_zeros(padding)


def stored_in(
    layout: Callable[[Division], UnitParameters],
    division: Division,
    count: int,
    owned: Iterable[tuple[Block, slice]],
) -> Iterator[Stored]:
    """Of each of `count` slots that are parts of a rank's division what it owns: blocks, each with
    the run of its buffer that it is in. They are whole rows, or of one row, so that they are in a
    row in a slot too."""
    blocks, each = list(owned), count // division.degree
    for number in range(division.rank * each, (division.rank + 1) * each):
        slot = Division(number, count)
        for part in blocks_of(layout(slot)):
            for block, run in blocks:
                pair = overlap(block, part)
                if pair is None:
                    continue
                held, stored = pair
                end = stored.end
                if end == part.end:
                    end = part.offset + aligned(part.elements)
                yield Stored(slot, stored.offset, end, held, run)
