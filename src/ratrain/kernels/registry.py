"""Kernels by name: what writes one, at which sizes, and what its values are compared with.

A kernel of somebody's own is declared in the same way, in a module that `RATRAIN_EXTENSIONS` names
(docs/how-to/kernels.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ratrain.errors import SpecError
from ratrain.kernels.build import Kernel
from ratrain.kernels.clock import Writing
from ratrain.kernels.tiles import Array
from ratrain.plugins import Registry

Sizes = Mapping[str, int]
Reference = Callable[..., Mapping[str, Array]]
Given = Callable[[np.random.Generator, str, tuple[int, int]], Array]


def normal(draw: np.random.Generator, name: str, shape: tuple[int, int]) -> Array:
    """Numbers of the normal distribution."""
    del name
    return draw.standard_normal(shape)


@dataclass(frozen=True)
class TileKernel:
    """A kernel's declaration. `sizes`: of its function's whole numbers, those of a large case that
    is timed, and of a small one that is computed. `reference`: the outputs by name from the inputs
    by name, in FP64, and the sizes. `ulps`: how far an output may be from it, in units in the last
    place of its largest element. `flops`: that the result needs, at the tiles' type."""

    name: str
    about: str
    write: Callable[..., None]
    timed: Sizes
    small: Sizes
    reference: Reference
    machine: str = "mt-3000"
    ulps: float = 8
    ulps_dtype: str = ""  # in whose last places; "": the output's own type
    flops: Callable[[Sizes], float] = field(default=lambda _: 0.0)
    flops_dtype: str = "f2"
    given: Given = normal
    forward: Reference | None = None  # makes those inputs that follow from others
    published: str = ""

    def writing(self, sizes: Sizes) -> Writing:
        """Writes the kernel of these sizes."""

        def write(kernel: Kernel) -> None:
            self.write(kernel, **sizes)

        return write

    def sized(self, base: Sizes, changes: Sizes) -> dict[str, int]:
        """Sizes with some of them changed; a `SpecError` names one that the kernel has not."""
        known = [name for name in inspect.signature(self.write).parameters if name != "k"]
        for name in changes:
            if name not in known:
                raise SpecError(
                    f"{self.name} has no size {name}",
                    place="--size",
                    fix=f"its sizes are {', '.join(known)}",
                )
        return {**base, **changes}


KERNELS: Registry[TileKernel] = Registry("kernel")


def declare_kernel(kernel: TileKernel) -> None:
    """Makes a kernel known by its name."""
    KERNELS.declare(kernel.name, kernel)


def kernel_named(name: str) -> TileKernel:
    """A `SpecError` where there is none."""
    if name not in KERNELS:
        raise SpecError(
            f"no kernel is named {name}", place="KERNEL", fix=f"kernels: {', '.join(KERNELS)}"
        )
    return KERNELS[name]
