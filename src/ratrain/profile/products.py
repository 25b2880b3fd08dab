"""Matrix products of several shapes and dtypes: with torch where it is installed, else numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from ratrain.profile.doubt import Watch

SHAPES = (
    (1024, 1024, 1024),
    (256, 1024, 1024),
    (64, 1024, 1024),
    (1024, 1024, 64),
    (1, 1024, 1024),
)
"""(m, n, k): large; fewer and fewer rows, as micro-batches shrink; shallow; one row."""
LAUNCH = "launch"
GPU_SHAPES = tuple((8 * m, 8 * n, 8 * k) for m, n, k in SHAPES)


@dataclass(frozen=True)
class ProductTime:
    """One shape measured."""

    library: str
    device: str  # cpu or cuda
    dtype: str
    m: int
    n: int
    k: int
    time_s: float

    @property
    def figure(self) -> str:
        return product_figure(self.library, self.device, self.dtype, (self.m, self.n, self.k))

    @property
    def flops_rate(self) -> float:
        """FLOP/s reached: 2 m n k / t."""
        return 2 * self.m * self.n * self.k / self.time_s


def product_figure(library: str, device: str, dtype: str, shape: tuple[int, int, int]) -> str:
    """What a product is called in messages."""
    m, n, k = shape
    return f"product {library} {device} {dtype} {m} x {n} x {k}"


def torch_installed() -> bool:
    """Whether torch can be imported; it is not imported to find out."""
    return find_spec("torch") is not None


def gpu_present() -> bool:
    """Whether torch sees a CUDA device."""
    if not torch_installed():
        return False
    import torch  # pyright: ignore[reportMissingImports]

    return bool(torch.cuda.is_available())  # pyright: ignore


def product_times(watch: Watch) -> Iterator[ProductTime]:
    """Every product, numpy's first."""
    for dtype in ("fp32", "fp64"):
        for shape in SHAPES:
            yield _timed(watch, "numpy", "cpu", dtype, shape, _numpy_product(dtype, *shape))
    if not torch_installed():
        return
    for dtype in ("fp32", "bf16"):
        for shape in SHAPES:
            yield _timed(watch, "torch", "cpu", dtype, shape, _torch_product("cpu", dtype, *shape))
    if gpu_present():
        for dtype in ("fp16", "bf16", "fp32"):
            for shape in GPU_SHAPES:
                yield _timed(
                    watch, "torch", "cuda", dtype, shape, _torch_product("cuda", dtype, *shape)
                )


def large_product(watch: Watch, device: str, dtype: str) -> ProductTime:
    """The largest shape alone: with torch where it is installed, else with numpy."""
    shape = (GPU_SHAPES if device == "cuda" else SHAPES)[0]
    if torch_installed():
        product = _torch_product(device, dtype, *shape)
        return _timed(watch, "torch", device, dtype, shape, product)
    return _timed(watch, "numpy", device, dtype, shape, _numpy_product(dtype, *shape))


def product_count() -> int:
    """How many products `product_times` measures."""
    on_cpu = 2 * len(SHAPES)
    if not torch_installed():
        return on_cpu
    return 2 * on_cpu + (3 * len(GPU_SHAPES) if gpu_present() else 0)


def launch_s(watch: Watch) -> float:
    """Seconds of the smallest operator that numpy starts: a product of one element."""
    element = np.ones(1, dtype=np.float32)
    count = 1000

    def many() -> None:
        for _ in range(count):
            np.multiply(element, element, out=element)

    return watch.median_s(LAUNCH, many, within_s=0.15) / count


def _timed(
    watch: Watch,
    library: str,
    device: str,
    dtype: str,
    shape: tuple[int, int, int],
    work: Callable[[], object],
) -> ProductTime:
    figure = product_figure(library, device, dtype, shape)
    return ProductTime(library, device, dtype, *shape, watch.median_s(figure, work, within_s=0.3))


def _numpy_product(dtype: str, m: int, n: int, k: int) -> Callable[[], object]:
    kind = {"fp32": np.float32, "fp64": np.float64}[dtype]
    left, right = np.ones((m, k), dtype=kind), np.ones((k, n), dtype=kind)
    product = np.empty((m, n), dtype=kind)
    return lambda: np.matmul(left, right, out=product)


def _torch_product(device: str, dtype: str, m: int, n: int, k: int) -> Callable[[], object]:
    import torch as module  # pyright: ignore[reportMissingImports]

    torch: Any = module
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    left = torch.randn(m, k, device=device).to(kind)
    right = torch.randn(k, n, device=device).to(kind)

    def work() -> None:
        torch.matmul(left, right)
        if device == "cuda":
            torch.cuda.synchronize()

    return work
