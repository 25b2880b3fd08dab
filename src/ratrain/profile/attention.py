"""Causal attention, forward and backward, with torch's own kernels; nothing without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ratrain.profile.doubt import Watch
from ratrain.profile.products import gpu_present, torch_installed

SHAPES = ((1, 8, 256, 64), (1, 8, 1024, 64), (1, 8, 1024, 128))
"""(sequences, heads, tokens of a sequence, elements of a head)."""
GPU_SHAPES = ((4, 16, 1024, 64), (4, 16, 2048, 128), (1, 32, 4096, 128))
TRIES = 3
"""Measurements, where other work makes a backward look as if it took no time."""


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
    def figure(self) -> str:
        shape = self.sequences, self.heads, self.tokens, self.head_dim
        return attention_figure(self.device, self.dtype, shape)

    @property
    def forward_flops(self) -> float:
        """Two products of 2 s^2 d for each head, half of it causal (docs/notes/costs-blocks.md)."""
        return 2 * self.sequences * self.heads * self.tokens**2 * self.head_dim

    @property
    def flops_rate(self) -> float:
        """FLOP/s over both directions: a backward counts twice a forward."""
        return 3 * self.forward_flops / (self.forward_s + self.backward_s)


def attention_figure(device: str, dtype: str, shape: tuple[int, int, int, int]) -> str:
    """What an attention is called in messages."""
    sequences, heads, tokens, head_dim = shape
    return f"attention torch {device} {dtype} {sequences} x {heads} heads, {tokens} x {head_dim}"


def attention_times(watch: Watch) -> Iterator[AttentionTime]:
    """Every shape on the CPU, and on a GPU where there is one."""
    if not torch_installed():
        return
    for dtype in ("fp32", "bf16"):
        for shape in SHAPES:
            yield _timed(watch, "cpu", dtype, shape)
    if gpu_present():
        for dtype in ("fp16", "bf16"):
            for shape in GPU_SHAPES:
                yield _timed(watch, "cuda", dtype, shape)


def attention_count() -> int:
    """How many shapes `attention_times` measures."""
    if not torch_installed():
        return 0
    return 2 * len(SHAPES) + (2 * len(GPU_SHAPES) if gpu_present() else 0)


def _timed(
    watch: Watch, device: str, dtype: str, shape: tuple[int, int, int, int]
) -> AttentionTime:
    figure = attention_figure(device, dtype, shape)
    forward, both = _work(device, dtype, shape)
    forward_s = both_s = 0.0
    for _ in range(TRIES):
        forward_s = watch.median_s(figure, forward, within_s=0.3)
        # A backward cannot run without its forward, so its time is a difference.
        both_s = watch.median_s(figure, both, within_s=0.6)
        if both_s > forward_s:
            break
    else:
        watch.doubt(figure, "forward and backward took no longer than forward alone")
    return AttentionTime(device, dtype, *shape, forward_s, max(both_s - forward_s, 0.0))


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
        output = attend(query, key, value, is_causal=True)
        torch.autograd.grad(output, (query, key, value), gradient)
        settle()

    return forward, both
