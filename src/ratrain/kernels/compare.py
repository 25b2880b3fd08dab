"""A kernel's values beside its reference in FP64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ratrain.kernels.clock import written
from ratrain.kernels.execute import execute
from ratrain.kernels.machine import Machine
from ratrain.kernels.registry import Sizes, TileKernel
from ratrain.kernels.tiles import Array


@dataclass(frozen=True)
class Difference:
    """How far an output is from the reference, in units in the last place of its largest
    element."""

    tensor: str
    ulps: float
    allowed: float

    @property
    def within(self) -> bool:
        return self.ulps <= self.allowed


def differences(
    declared: TileKernel, machine: Machine, sizes: Sizes, seed: int = 0
) -> list[Difference]:
    """Runs a kernel on random inputs."""
    program = written(declared.writing(sizes), machine, None)
    draw = np.random.default_rng(seed)
    given: dict[str, Array] = {
        tensor.name: declared.given(draw, tensor.name, tensor.shape).astype(tensor.dtype)
        for tensor in program.tensors
        if tensor.is_input
    }
    _complete(declared, given, sizes)
    results = execute(program, given)
    return compared(declared, given, results, sizes)


def compared(
    declared: TileKernel, given: Mapping[str, Array], results: Mapping[str, Array], sizes: Sizes
) -> list[Difference]:
    """The outputs that the reference has, each against it."""
    exact = {name: value.astype(np.float64) for name, value in given.items()}
    rows: list[Difference] = []
    for name, wanted in declared.reference(exact, **sizes).items():
        got = results[name].astype(np.float64)
        largest = np.abs(wanted).max()
        unit = np.finfo(declared.ulps_dtype or results[name].dtype).eps * largest
        error = np.abs(got - wanted).max() / unit if largest else np.abs(got).max()
        rows.append(Difference(name, float(error), declared.ulps))
    return rows


def _complete(declared: TileKernel, given: dict[str, Array], sizes: Sizes) -> None:
    """What backward reads of forward follows from its other inputs."""
    if declared.forward is not None:
        exact = {name: value.astype(np.float64) for name, value in given.items()}
        for name, value in declared.forward(exact, **sizes).items():
            given[name] = value.astype(given[name].dtype)
