"""Frozen weights in a buffer of bytes: written once, and read as they are used, each time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ratrain.describe.held import BLOCK, SCALES, block_dim
from ratrain.describe.runs_on import is_gpu
from ratrain.models.functions.chunks import chunk_elements
from ratrain.models.parameters import Parameter, UnitParameters

AT_ONCE = 1 << 18
"""Elements that are widened at once on a CPU; `cost.scratch` counts as many."""
_MOST = 127
Read = Callable[[int, int], Tensor]
"""Values begin .. end of the buffer as it would be in fp32."""


def quantised(name: str, values: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix, or a stack, in fp32 as bytes and the scales of its blocks: the largest of a block
    is 127 of them."""
    dim = block_dim(name, tuple(values.shape))
    rows = values.movedim(dim, -1)
    width = rows.shape[-1]
    blocks = functional.pad(rows, (0, -width % BLOCK)).unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1) / _MOST
    divisors = torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
    numbers = (blocks / divisors).round_().to(torch.int8).flatten(-2)[..., :width]
    return numbers.movedim(-1, dim).contiguous(), scales.movedim(-1, dim).contiguous()


def packed_range(frozen: UnitParameters, read: Read, begin: int, end: int) -> Tensor:
    """Bytes begin .. end of the buffer in which a unit's frozen weights are held; one parameter is
    read at a time."""
    assert frozen.packed is not None
    flat, held = torch.zeros(end - begin, dtype=torch.uint8), frozen.packed.by_name
    for parameter in frozen.parameters:
        name = parameter.name
        parts = [held[each] for each in (name, f"{name}{SCALES}") if each in held]
        if all(part.end <= begin or end <= part.offset for part in parts):
            continue
        values = read(parameter.offset, parameter.end).view(parameter.shape)
        tensors = quantised(name, values) if len(parts) > 1 else (values,)
        for part, tensor in zip(parts, tensors, strict=True):
            low, high = max(begin, part.offset), max(begin, min(end, part.end))
            bytes_of = tensor.contiguous().view(torch.uint8).view(-1)
            flat[low - begin : high - begin] = bytes_of[low - part.offset : high - part.offset]
    return flat


class Packed:
    """A unit's frozen weights, read out of their bytes."""

    def __init__(self, frozen: UnitParameters, flat: Tensor) -> None:
        assert frozen.packed is not None
        self._held, self._flat = frozen.packed.by_name, flat

    def read(self, parameter: Parameter, dtype: torch.dtype, number: int | None = None) -> Tensor:
        """A parameter in the dtype of compute; `number`: one matrix of a stack."""
        scales = self._held.get(f"{parameter.name}{SCALES}")
        if scales is None:
            return self._part(parameter.name, torch.float32).view(parameter.shape).to(dtype)
        numbers = self._part(parameter.name, torch.int8).view(parameter.shape)
        factors = self._part(scales.name, torch.float32).view(scales.shape[:-1])
        if number is not None:
            numbers, factors = numbers[number], factors[number]
        return _product(numbers, factors, block_dim(parameter.name, parameter.shape), dtype)

    def every(self, frozen: UnitParameters, dtype: torch.dtype) -> Tensor:
        """The buffer as it would be in this dtype."""
        flat = self._flat.new_zeros(frozen.size, dtype=dtype)
        for each in frozen.parameters:
            flat[each.offset : each.end] = self.read(each, dtype).view(-1)
        return flat

    def _part(self, name: str, dtype: torch.dtype) -> Tensor:
        held = self._held[name]
        return self._flat[held.offset : held.end].view(dtype)


def as_packed(frozen: UnitParameters, flat: Tensor) -> Tensor:
    """What frozen weights, given in fp32, are once they were held as the layout says."""
    if frozen.packed is None:
        return flat
    held = packed_range(frozen, lambda low, high: flat[low:high], 0, frozen.packed.size)
    return Packed(frozen, held).every(frozen, torch.float32)


def _product(numbers: Tensor, scales: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Each number times its block's scale, rounded once, some rows at a time."""
    made = torch.empty(numbers.shape, dtype=dtype, device=numbers.device)
    rows = made.view(-1, made.shape[-1])
    numbers, scales = numbers.view(rows.shape), scales.view(-1, scales.shape[-1])
    elements = chunk_elements(made) if is_gpu(made.device.type) else AT_ONCE
    step = max(BLOCK, elements // rows.shape[1] // BLOCK * BLOCK)
    for begin in range(0, len(rows), step):
        here = slice(begin, min(begin + step, len(rows)))
        narrow = dtype != torch.float32
        wide = numbers[here].to(torch.float32) if narrow else rows[here].copy_(numbers[here])
        if dim > 0:
            _scale_(wide, scales[here].unsqueeze(-1))
        else:
            _scale_(wide.t(), scales[begin // BLOCK : -(-here.stop // BLOCK)].t().unsqueeze(-1))
        if narrow:
            rows[here] = wide
    return made


def _scale_(wide: Tensor, scales: Tensor) -> None:
    """Multiplies each row's blocks, the last of which may be shorter, by scales [rows, blocks,
    1]."""
    whole = wide.shape[1] // BLOCK
    wide[:, : whole * BLOCK].unflatten(1, (whole, BLOCK)).mul_(scales[:, :whole])
    if wide.shape[1] % BLOCK:
        wide[:, whole * BLOCK :].mul_(scales[:, whole])
