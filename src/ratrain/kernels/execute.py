"""Runs a tile program for its values, in any order that its lanes and its tiles allow."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from ratrain.errors import ProgramError
from ratrain.kernels.program import TileProgram
from ratrain.kernels.tiles import Array


def execute(
    program: TileProgram, given: Mapping[str, Array], *, seed: int | None = None
) -> dict[str, Array]:
    """The outputs of a proved program, from its inputs by name. `seed` draws one of the possible
    orders; all of them give the same bits."""
    if any(written < count for written, count in program.loops.values()):
        raise ProgramError("the kernel's loops are folded", fix="build it without limits")
    memory: dict[int, Array] = {
        storage: np.full(size_bytes, 0xFF, dtype=np.uint8)  # NaN to whoever reads it
        for storage, size_bytes in enumerate(program.storage_bytes)
        if size_bytes
    }
    for tensor in program.tensors:
        value = np.full(tensor.shape, np.nan, dtype=tensor.dtype)
        if tensor.is_input:
            value[:] = given[tensor.name]
        memory[tensor.storage] = value
    order = program.walked.order.tolist() if seed is None else drawn_order(program, seed)
    for op in order:
        try:
            program.ops[op].run(memory)
        except (ValueError, TypeError) as error:  # of a function that the kernel's author gave
            raise ProgramError(
                f"{program.place(op)} cannot be computed: {error}",
                fix="look at the shapes that its function is given, and at what it returns",
            ) from error
    return {tensor.name: memory[tensor.storage] for tensor in program.tensors if tensor.is_output}


def drawn_order(program: TileProgram, seed: int) -> list[int]:
    """One of the orders in which the program's ops can run."""
    draw = random.Random(seed)
    inside = program.edges.inside
    waits = np.bincount(inside.target, minlength=len(program.ops)).tolist()
    followers: dict[int, list[int]] = defaultdict(list)
    for source, target in zip(inside.source.tolist(), inside.target.tolist(), strict=True):
        followers[source].append(target)
    ready = [op for op, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        at = draw.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        op = ready.pop()
        order.append(op)
        for target in followers[op]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return order
