"""Causal attention, forward and backward, with torch's own kernels; nothing without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ratrain.profile.clock import median_s
from ratrain.profile.products import gpu_present, torch_installed

SHAPES = ((1, 8, 256, 64), (1, 8, 1024, 64), (1, 8, 1024, 128))
"""(sequences, heads, tokens of a sequence, elements of a head)."""
GPU_SHAPES = ((4, 16, 1024, 64), (4, 16, 2048, 128), (1, 32, 4096, 128))


@dataclass(frozen=True)
class AttentionTime:
    """One shape measured in both directions."""

    device: str  # cpu or cuda
    dtype: str
    sequences: int
    heads: int
    tokens: int
    head_dim: int
    forward_s: float
    backward_s: float

    @property
    def forward_flops(self) -> float:
        """Two products of 2 s^2 d for each head, half of it causal (docs/costs-blocks.md)."""
        return 2 * self.sequences * self.heads * self.tokens**2 * self.head_dim

    @property
    def flops_rate(self) -> float:
        """FLOP/s over both directions: a backward counts twice a forward."""
        return 3 * self.forward_flops / (self.forward_s + self.backward_s)


def attention_times() -> Iterator[AttentionTime]:
    """Every shape on the CPU, and on a GPU where there is one."""
    if not torch_installed():
        return
    for dtype in ("fp32", "bf16"):
        for shape in SHAPES:
            yield _timed("cpu", dtype, *shape)
    if gpu_present():
        for dtype in ("fp16", "bf16"):
            for shape in GPU_SHAPES:
                yield _timed("cuda", dtype, *shape)


def _timed(
    device: str, dtype: str, sequences: int, heads: int, tokens: int, head_dim: int
) -> AttentionTime:
    forward, both = _work(device, dtype, (sequences, heads, tokens, head_dim))
    forward_s = median_s(forward, within_s=0.3)
    # A backward cannot run without its forward, so its time is a difference.
    backward_s = max(median_s(both, within_s=0.6) - forward_s, 0.0)
    return AttentionTime(device, dtype, sequences, heads, tokens, head_dim, forward_s, backward_s)


def _work(
    device: str, dtype: str, shape: tuple[int, int, int, int]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """(a forward, a forward and its backward) on tensors made once."""
    import torch as module  # pyright: ignore[reportMissingImports]

    torch: Any = module
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    query, key, value = (
        torch.randn(*shape, device=device).to(kind).requires_grad_(True) for _ in range(3)
    )
    attend = torch.nn.functional.scaled_dot_product_attention
    gradient = torch.randn(*shape, device=device).to(kind)

    def settle() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def forward() -> None:
        attend(query, key, value, is_causal=True)
        settle()

    def both() -> None:
        out = attend(query, key, value, is_causal=True)
        torch.autograd.grad(out, (query, key, value), gradient)
        settle()

    return forward, both
