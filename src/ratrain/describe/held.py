"""In what bytes the weights of layers that nobody updates are held, where their matrices are in 8
bits: each has a signed byte an element, and for a block of them a scale in fp32, by which they are
multiplied as they are used (as in QLoRA, arXiv 2305.14314, with a byte in place of half of one).
Blocks lie along the dimension that tensor groups do not divide, so none has parts on two ranks.
"""

from __future__ import annotations

from math import prod

from ratrain.describe.trained import NARROWING

BLOCK = 64
SCALES = ".scales"
"""What the name of a matrix' scales ends in."""
_FP32_BYTES = 4

Shape = tuple[int, ...]


def block_dim(name: str, shape: Shape) -> int:
    """The dimension of a matrix, or of a stack, along which blocks lie."""
    return 0 if name.removesuffix(".weight") in NARROWING else len(shape) - 1


def stored(name: str, shape: Shape, held: str | None) -> list[tuple[str, Shape]]:
    """The tensors of bytes in which a parameter is held, by name."""
    if held != "int8":
        return [(name, (*shape, _FP32_BYTES))]
    dim = block_dim(name, shape)
    blocks = tuple(-(-size // BLOCK) if at == dim else size for at, size in enumerate(shape))
    return [(name, shape), (f"{name}{SCALES}", (*blocks, _FP32_BYTES))]


def held_bytes(name: str, shape: Shape, held: str | None, weight_bytes: int) -> int:
    """What it takes; `weight_bytes`: an element in the dtype of compute."""
    if held is None:
        return weight_bytes * prod(shape)
    return sum(prod(each) for _, each in stored(name, shape, held))
