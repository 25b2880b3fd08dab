"""Attention on one GPU, forward and backward: ours beside torch's flash and cuDNN kernels.

    python benchmarks/devices/attention.py [OUT.json]

Medians of 20 calls, in microseconds; `repeats`: whether backward's bits were the same ten times.
torch's flash backward is timed with sums in one order and in any. `--tiles` tries other ways to cut
ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ratrain.models.gpu import attention as ours

SHAPES = ((4, 12, 12, 2048, 128), (4, 16, 4, 2048, 64), (2, 32, 8, 4096, 128))
CUTS = [
    ours.Tiles(*cut)
    for cut in (
        (128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 4, 3),
        (128, 32, 8, 3), (128, 32, 4, 3), (64, 64, 4, 3), (64, 128, 4, 2),
    )
]  # fmt: skip
ATEN: Any = torch.ops.aten


def took_us(work: Callable[[], Any]) -> float:
    for _ in range(3):
        work()
    took: list[float] = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) * 1e3)
    return median(took)


def repeats(work: Callable[[], tuple[Tensor, ...]]) -> bool:
    first = work()
    return all(torch.equal(a, b) for _ in range(9) for a, b in zip(first, work(), strict=True))


def made(shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    batch, heads, key_heads, length, width = shape
    torch.manual_seed(0)
    return tuple(
        torch.randn(batch, length, count, width, device="cuda", dtype=torch.bfloat16).transpose(
            1, 2
        )
        for count in (heads, key_heads, key_heads, heads)
    )


def flash(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> dict[str, Any]:
    output, sums, *_ = ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)
    length, nothing = q.shape[2], q.new_empty(0, dtype=torch.int64)

    def backward() -> tuple[Tensor, ...]:
        return ATEN._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, output, sums, None, None, length, length, 0.0, True, nothing, nothing
        )

    row: dict[str, Any] = {
        "forward": took_us(lambda: ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, True)),
    }
    for word, ordered in (("backward", True), ("backward, any order", False)):
        torch.use_deterministic_algorithms(ordered)
        row[word] = took_us(backward)
        row[f"{word}: repeats"] = repeats(backward)
    return row


def cudnn(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> dict[str, Any]:
    call = ATEN._scaled_dot_product_cudnn_attention
    made = call(q, k, v, None, True, 0.0, True, False)
    output, sums, cum_q, cum_k, max_q, max_k, seed, offset, _ = made

    def backward() -> tuple[Tensor, ...]:
        return ATEN._scaled_dot_product_cudnn_attention_backward(
            grad, q, k, v, output, sums, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, True
        )

    return {
        "forward": took_us(lambda: call(q, k, v, None, True, 0.0, True, False)),
        "backward": took_us(backward),
        "backward: repeats": repeats(backward),
    }


def triton(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> dict[str, Any]:
    output, sums = ours.forward(q, k, v)

    def backward() -> tuple[Tensor, ...]:
        return ours.gradients(grad, q, k, v, output, sums)

    return {
        "forward": took_us(lambda: ours.forward(q, k, v)),
        "backward": took_us(backward),
        "backward: repeats": repeats(backward),
    }


def difference(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> float:
    """Between our gradients and those in fp32, over the largest of these."""
    output, sums = ours.forward(q, k, v)
    got = ours.gradients(grad, q, k, v, output, sums)
    group = q.shape[1] // k.shape[1]
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(group, 1) for x in wide[1:])
    result = functional.scaled_dot_product_attention(wide[0], keys, values, is_causal=True)
    want = torch.autograd.grad(result, wide, grad.float())
    return max(
        float((a.float() - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True)
    )


def tiles(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> dict[str, list[Any]]:
    """Our kernels cut in other ways, the fastest first."""
    output, sums = ours.forward(q, k, v)

    def tried(work: Callable[[ours.Tiles], Any]) -> list[Any]:
        rows: list[Any] = []
        for cut in CUTS:
            try:
                rows.append((took_us(lambda cut=cut: work(cut)), *cut))
            except Exception:  # too much of a processor's memory
                continue
        return sorted(rows)[:6]

    return {
        "forward": tried(lambda cut: ours.forward(q, k, v, tiles=cut)),
        "by keys": tried(
            lambda cut: ours.gradients(
                grad, q, k, v, output, sums,
                tiles=(ours.Tiles(cut.columns, cut.rows, *cut[2:]), ours.BY_QUERIES),
            )
        ),
        "by queries": tried(
            lambda cut: ours.gradients(grad, q, k, v, output, sums, tiles=(ours.BY_KEYS, cut))
        ),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--tiles", action="store_true")
    said = parser.parse_args()
    figures: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    for shape in SHAPES[: 1 if said.tiles else None]:
        tensors = made(shape)
        rows: dict[str, Any] = {}
        for name, kind in (("flash", flash), ("cudnn", cudnn), ("triton", triton)):
            try:
                rows[name] = kind(*tensors)
            except Exception as error:
                rows[name] = f"{type(error).__name__}: {str(error)[:200]}"
        rows["difference from fp32"] = difference(*tensors)
        if said.tiles:
            rows["tiles"] = tiles(*tensors)
        figures[str(shape)] = rows
        print(json.dumps({str(shape): rows}, indent=1), flush=True)
    if said.out:
        said.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
