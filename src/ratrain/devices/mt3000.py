"""An emulated MT-3000 cluster: the CPU's memory, where products and FP16 attention are computed by
the tile programs of `kernels/`, in the machine's order and types of sums. All else is torch's, on
the CPU. Slow, and for small models: it shows what a step's numbers would be, not its time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ratrain.devices.cpu import CPU, Cpu
from ratrain.devices.operators import Intercepting
from ratrain.kernels import KERNELS, MACHINES, written
from ratrain.kernels.build import Kernel
from ratrain.kernels.execute import execute
from ratrain.kernels.gemm import Blocks, gemm_half, gemm_nn
from ratrain.kernels.program import TileProgram

K_C = 32
"""Terms of an FP16 sum before it is added in FP32."""
BLOCKS = Blocks(240, 240, 24, 256, 192)
"""Of every product. Others would make the same sums, as k is cut at multiples of K_C."""
ATEN = torch.ops.aten


@cache
def _product_program(m: int, n: int, depth: int, dtype: str) -> TileProgram:
    def write(k: Kernel) -> None:
        if dtype == "float16":
            gemm_half(k, m, n, depth, BLOCKS, K_C)
        else:
            gemm_nn(k, m, n, depth, "f4", BLOCKS)

    return written(write, MACHINES["mt-3000"], None)


@cache
def _attention_program(name: str, heads: int, length: int, width: int, causal: bool) -> TileProgram:
    sizes = {"heads": heads, "length": length, "width": width, "causal": int(causal)}
    return written(KERNELS[name].writing(sizes), MACHINES["mt-3000"], None)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b, of FP16 or FP32."""
    given = {"a": a.numpy(), "b": b.numpy(), "c": np.zeros((), "f4")}
    name = str(a.dtype).removeprefix("torch.")
    program = _product_program(a.shape[0], b.shape[1], a.shape[1], name)
    return torch.from_numpy(execute(program, given)["c"])


def _added(onto: Tensor, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """onto + a b, rounded once for the product and once for the sum."""
    total = onto + product(a, b)
    return total if out is None else out.copy_(total)


def _rows(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Of all heads, below each other."""
    return tensor.reshape(-1, tensor.shape[-1]).numpy()


def _attended(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    sequences, heads, length, width = q.shape
    program = _attention_program("attention", sequences * heads, length, width, causal)
    made = execute(program, {"q": _rows(q), "k": _rows(k), "v": _rows(v)})
    return (
        torch.from_numpy(made["o"]).view(q.shape),
        torch.from_numpy(made["lse"]).view(q.shape[:3]),
    )


def _attention_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, ...]:
    sequences, heads, length, width = q.shape
    program = _attention_program("attention-backward", sequences * heads, length, width, causal)
    tensors = {"q": q, "k": k, "v": v, "o": out, "do": grad, "lse": lse.unsqueeze(-1)}
    made = execute(program, {name: _rows(tensor) for name, tensor in tensors.items()})
    return tuple(torch.from_numpy(made[name]).view(q.shape) for name in ("dq", "dk", "dv"))


def answer(operator: Any, args: Sequence[Any], further: dict[str, Any]) -> Any:
    """What an operator gives: by a tile program where there is one, else by torch."""
    if operator is ATEN.mm.default and _is_ours(*args):
        return product(*args)
    if operator in _SUMS and _is_ours(*args[1:3]) and not set(further) - {"out"}:
        onto, a, b = args
        return _added(onto, a, b, onto if operator is ATEN.addmm_.default else further.get("out"))
    if operator in _ATTENTION and _is_plain(operator, args, further):
        return _ATTENTION[operator](args)
    return operator(*args, **further)


_SUMS = (ATEN.addmm.default, ATEN.addmm_.default, ATEN.addmm.out)
_FORWARD = ATEN._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default
_ATTENTION: dict[Any, Callable[..., Any]] = {
    _FORWARD: lambda args: _attended(args[0], args[1], args[2], args[4]),
    _BACKWARD: lambda args: _attention_gradients(*(args[at] for at in (0, 1, 2, 3, 4, 5, 7))),
}


def _is_ours(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.dtype in (torch.float16, torch.float32)


def _is_plain(func: Any, args: Sequence[Any], further: dict[str, Any]) -> bool:
    """FP16 attention of equally many heads, without a mask of its own or another scale."""
    q, k = args[:2] if func is _FORWARD else args[1:3]
    own = further.get("attn_mask") is not None or further.get("scale") is not None
    return not own and q.dtype == torch.float16 and q.shape == k.shape


class MT3000(Cpu):
    """One emulated cluster: work is done when its call returns, as on the CPU."""

    kind = "mt3000"
    narrow_terms = K_C
    words = "an emulated MT-3000 cluster (products and FP16 attention; the rest on the CPU)"

    @contextmanager
    def stream(self, lane: str) -> Generator[Any]:
        """The stream of a lane."""
        with Intercepting(answer), CPU.stream(lane) as stream:
            yield stream


def made(_number: int) -> MT3000:
    """Each rank has one of its own."""
    return MT3000()
