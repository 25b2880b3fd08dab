"""One rank of a peer on torch's own parts, over gloo: `python peer.py METHOD HIDDEN LAYERS VOCAB
LENGTH BATCH STEPS PERIOD OUT`, at a place of a lab. Rank 0 writes each step's seconds."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import torch
import torch.distributed as dist
from plain_model import Block, Head, TokenTable  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec


class Steps(Protocol):
    """What is needed of an optimizer."""

    def step(self) -> object: ...

    def zero_grad(self) -> None: ...


def timed(model: nn.Module, optimizer: Steps, tokens: torch.Tensor, steps: int) -> list[float]:
    """Seconds of each step on the same sequences."""
    times: list[float] = []
    for _ in range(steps):
        began_s = time.monotonic()
        output = model(tokens[:, :-1])
        cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic() - began_s)
    return times


def begun(config: str, length: int) -> tuple[ModelSpec, nn.Sequential]:
    """This process among the others, and the same model as theirs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    spec = load_config(Path(config))
    layers = [Block(spec, length) for _ in range(spec.layers)]
    module = nn.Sequential(TokenTable(spec), *layers, Head(spec))
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    return spec, module


def main(method: str, config: str, length: int, batch: int, steps: int, period: int) -> list[float]:
    """Seconds of each step."""
    spec, module = begun(config, length)
    model = DistributedDataParallel(module, bucket_cap_mb=1)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if method == "local-sgd":
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        state = PostLocalSGDState(None, alone[dist.get_rank()], start_localSGD_iter=0)
        model.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=period, warmup_steps=0)
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
    tokens = torch.randint(spec.vocab, (batch, length + 1))
    dist.barrier()
    return timed(model, optimizer, tokens, steps)


if __name__ == "__main__":
    name, path, *numbers, out = sys.argv[1:]
    measured = main(name, path, *map(int, numbers))
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(measured))
    dist.barrier()
