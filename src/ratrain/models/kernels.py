"""What a layer does between its products, each in one pass: in C (`kernels.c`) for fp32 on a CPU
where torch computes on one thread, in Triton on a GPU (`gpu_kernels.py`).

With more threads torch's own kernels divide the work among them; other dtypes are theirs too, and
so is all of it where no C compiler was there at install, or no Triton. Each has the same formula in
torch beside its caller, equal but for rounding. What is written in place must be contiguous.
"""

from __future__ import annotations

from ctypes import CDLL, c_float, c_int64, c_void_p
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack

from ratrain.compiled import library
from ratrain.models.functions.chunks import CPU_KERNELS

if TYPE_CHECKING:
    from ratrain.models.gpu.kernels import GpuKernels


class Kernels(Protocol):
    """The functions, for the tensors of one kind of device."""

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """(w x r, r) with r = 1 / sqrt(mean(x^2) + epsilon), one a row."""
        ...

    def rms_norm_gradients(
        self, grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual_grad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(gradient of x, plus `residual_grad`; gradient of w)."""
        ...

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) up."""
        ...

    def gated_gradients_(self, grad: Tensor, gate: Tensor, up: Tensor) -> None:
        """The gradients of gate and up by that of silu(gate) up, written over gate and up."""
        ...

    def rotates(self, x: Tensor) -> bool:
        """Whether `rotate_` takes a tensor as it lies in memory."""
        ...

    def rotate_(self, x: Tensor, cosines: Tensor, sines: Tensor) -> None:
        """x [batch, S, heads, d] turned in place by angles [S, 1, d/2]: i with i + d/2."""
        ...


_SIZE, _AT = c_int64, c_void_p
_ARGUMENTS = {
    "rms_norm": (_SIZE, _SIZE, _AT, _AT, c_float, _AT, _AT),
    "rms_norm_gradients": (_SIZE, _SIZE, *[_AT] * 7),
    "gated": (_SIZE, *[_AT] * 3),
    "gated_gradients": (_SIZE, *[_AT] * 3),
    "rotate": (*[_SIZE] * 4, *[_AT] * 3),
}


@cache
def _built() -> CpuKernels | None:
    """The C functions, as Python calls them; None: they were not built."""
    built = library("models", "kernels_c")
    if built is None:
        return None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(built, name)
        function.argtypes, function.restype = arguments, None
    return CpuKernels(built)


@cache
def _for_gpus() -> GpuKernels | None:
    """Those in Triton; None: it is not installed."""
    if find_spec("triton") is None:
        return None
    from ratrain.models.gpu.kernels import GpuKernels

    return GpuKernels()


def kernels_for_gpu(x: Tensor) -> GpuKernels | None:
    """What is computed so on GPUs alone; None: x is not on one, or torch computes it."""
    return _for_gpus() if x.device.type == "cuda" and x.dtype != torch.float64 else None


def kernels_for(x: Tensor) -> Kernels | None:
    """What `x` is computed with; None: torch."""
    if x.device.type == "cuda":
        return kernels_for_gpu(x)
    on_cpu = x.device.type in CPU_KERNELS and torch.get_num_threads() == 1
    built = _built() if on_cpu and x.dtype == torch.float32 else None
    if built is None or (x.device.type == "cpu" and not _len_torch_dispatch_stack()):
        return built
    return declare_operators()


def declare_operators() -> Kernels | None:
    """Those in C as torch's operators, for who puts something in operators' places; None: they were
    not built."""
    from ratrain.models.queued_kernels import queued

    built = _built()
    return None if built is None else queued(built)


class CpuKernels:
    """Those in C. Inputs are made contiguous."""

    def __init__(self, c: CDLL) -> None:
        self._c = c

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """(w x r, r) with r = 1 / sqrt(mean(x^2) + epsilon), one a row."""
        x = x.contiguous()
        rows, width = x.shape
        out, rstd = torch.empty_like(x), x.new_empty((rows, 1))
        self._c.rms_norm(
            rows, width, x.data_ptr(), weight.data_ptr(), epsilon, out.data_ptr(), rstd.data_ptr()
        )
        return out, rstd

    def rms_norm_gradients(
        self, grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, residual_grad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(gradient of x, plus `residual_grad`; gradient of w)."""
        grad, x, rstd = grad.contiguous(), x.contiguous(), rstd.contiguous()
        residual = None if residual_grad is None else residual_grad.contiguous()
        dx, dw = torch.empty_like(x), torch.empty_like(weight)
        self._c.rms_norm_gradients(
            *x.shape,
            grad.data_ptr(),
            x.data_ptr(),
            rstd.data_ptr(),
            weight.data_ptr(),
            None if residual is None else residual.data_ptr(),
            dx.data_ptr(),
            dw.data_ptr(),
        )
        return dx, dw

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) up."""
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        self._c.gated(gate.numel(), gate.data_ptr(), up.data_ptr(), out.data_ptr())
        return out

    def gated_gradients_(self, grad: Tensor, gate: Tensor, up: Tensor) -> None:
        """The gradients of gate and up by that of silu(gate) up, written over gate and up."""
        grad = grad.contiguous()
        assert gate.is_contiguous()
        assert up.is_contiguous()
        self._c.gated_gradients(gate.numel(), grad.data_ptr(), gate.data_ptr(), up.data_ptr())

    def rotates(self, x: Tensor) -> bool:
        return x.is_contiguous()

    def rotate_(self, x: Tensor, cosines: Tensor, sines: Tensor) -> None:
        """x [batch, S, heads, d] turned in place by angles [S, 1, d/2]: i with i + d/2."""
        batch, length, heads, size = x.shape
        cosines, sines = cosines.contiguous(), sines.contiguous()
        assert x.is_contiguous()
        self._c.rotate(
            batch, length, heads, size // 2, x.data_ptr(), cosines.data_ptr(), sines.data_ptr()
        )
