"""Attention on this machine: torch's kernel, scores stored, and scores made again.

    python benchmarks/runtime/attention.py [--threads 1] [--heads 8] [--sequences 2]

Each row is one forward and one backward of a layer's attention of width 64 a head, the fastest of
nine: the machine may do other things. Bytes are those of the scores that are kept.
"""

from __future__ import annotations

import argparse
import time

import torch

from ratrain.models.functions.attention import FLASH, PLAIN, AttentionCore
from ratrain.models.functions.stored_attention import REMADE, STORED

CORES = {"flash": FLASH, "stored": STORED, "selective": REMADE}
WIDTH, REPEATS = 64, 9


def timed(core: AttentionCore, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[float, float]:
    """Milliseconds of the fastest forward and of the fastest backward."""
    batch, length, heads, width = shape
    q, k, v, grad = (
        torch.randn(batch, length, heads, width).to(dtype).transpose(1, 2) for _ in range(4)
    )
    took_s: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        output, kept = core.forward(q, k, v, PLAIN)
        middle_s = time.perf_counter()
        core.backward(grad, q, k, v, output, kept, PLAIN)
        took_s.append((middle_s - began_s, time.perf_counter() - middle_s))
    return min(f for f, _ in took_s) * 1e3, min(b for _, b in took_s) * 1e3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--heads", type=int, default=8)
    options.add_argument("--sequences", type=int, default=2)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    print("dtype  tokens  attention  forward ms  backward ms")
    for dtype in (torch.float32, torch.bfloat16):
        for length in (64, 128, 256, 512, 1024):
            shape = asked.sequences, length, asked.heads, WIDTH
            for name, core in CORES.items():
                forward_ms, backward_ms = timed(core, shape, dtype)
                words = f"{str(dtype).removeprefix('torch.'):8} {length:5}  {name:9}"
                print(f"{words} {forward_ms:10.2f} {backward_ms:12.2f}")


if __name__ == "__main__":
    main()
