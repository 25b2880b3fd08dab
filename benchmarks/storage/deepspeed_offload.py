"""DeepSpeed's CPU and NVMe offload of a model like that of `beyond_memory.py`, one process.

    DS_ACCELERATOR=cpu python benchmarks/storage/deepspeed_offload.py --device nvme --folder FOLDER

To be run by a Python that has DeepSpeed (its source: `DS_BUILD_OPS=0 pip install
--no-build-isolation deepspeed==0.19.8`; its optimizer and its files are compiled at the first use,
which is timed apart; a process that is killed meanwhile leaves a file `lock` in
TORCH_EXTENSIONS_DIR, for which every later one waits without a word).
`--device cpu` keeps master weights and moments in host memory, `nvme` on disk (stage 3, weights
too); `none` is torch's AdamW of the same model, in memory. Each phase says when it ended, so that
what takes long is seen; of the steps their times, the process's largest memory, and the bytes that
the kernel counted to and from disks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

BEGAN_S = time.perf_counter()
VOCABULARY = 512


def said(what: str, **more: object) -> None:
    """A line with the seconds since the start."""
    row = {"at_s": round(time.perf_counter() - BEGAN_S, 1), "phase": what, **more}
    print(json.dumps(row), flush=True)


class Layer(nn.Module):
    """As a layer of Llama, but for how positions enter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 8 * width // 3 // 64 * 64
        self.heads = width // 64
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, 64)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        h = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    """Layers that are computed again in backward, as in the run that it is set beside."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        logits = self.head(x).flatten(0, 1)
        return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


def config(asked: argparse.Namespace) -> dict[str, Any]:
    """DeepSpeed's keys."""
    where: dict[str, Any] = {"device": asked.device, "pin_memory": False}
    zero: dict[str, Any] = {"stage": 3 if asked.device == "nvme" else 2}
    if asked.device == "nvme":
        where |= {"nvme_path": str(asked.folder), "pipeline_read": True, "pipeline_write": True}
        zero["offload_param"] = {"device": "nvme", "nvme_path": str(asked.folder)}
    return {
        "train_batch_size": asked.sequences,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": asked.sequences,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero | {"offload_optimizer": where},
        "aio": {"block_size": 1 << 20, "queue_depth": 8, "single_submit": False},
    }


def engine_of(model: Model, asked: argparse.Namespace) -> Any:
    """DeepSpeed's engine, with what it compiles compiled and timed apart."""
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    deepspeed: Any = importlib.import_module("deepspeed")
    said("imported", version=deepspeed.__version__)
    builders: Any = importlib.import_module("deepspeed.ops.op_builder")
    for name in ("CPUAdamBuilder", *(("AsyncIOBuilder",) if asked.device == "nvme" else ())):
        getattr(builders, name)().load(verbose=False)
        said(f"{name} compiled")
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    said("process group made")
    engine, *_ = deepspeed.initialize(model=model, config=config(asked))
    said("engine made")
    return engine


def moved_bytes() -> list[int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return [int(counts["read_bytes"]), int(counts["write_bytes"])]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["none", "cpu", "nvme"], default="cpu")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = Model(asked.layers, asked.hidden)
    said("model made", parameters=sum(each.numel() for each in model.parameters()))
    plain = asked.device == "none"
    engine: Any = model if plain else engine_of(model, asked)
    adam = torch.optim.AdamW(model.parameters(), 1e-4) if plain else None
    for step in range(asked.steps):
        tokens = torch.randint(0, VOCABULARY, (asked.sequences, asked.length + 1))
        before, began_s = moved_bytes(), time.perf_counter()
        for row in tokens:
            loss = engine(row[None])
            if adam is None:
                engine.backward(loss)
                engine.step()
            else:
                (loss / asked.sequences).backward()
        if adam is not None:
            adam.step()
            adam.zero_grad()
        took_s = time.perf_counter() - began_s
        moved = [now - then for now, then in zip(moved_bytes(), before, strict=True)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        said(f"step {step + 1}", step_s=round(took_s, 3), moved_bytes=moved, peak_bytes=peak)


if __name__ == "__main__":
    main()
