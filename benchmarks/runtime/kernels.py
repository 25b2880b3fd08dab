"""A layer and a head on one thread: ours with its C kernels and without, and plain torch.

    python benchmarks/runtime/kernels.py [--model deep] [--compile] [--rounds 5]

Each is timed as a stage has it: four layers in turns, gradients added to what is there. The
methods take turns; a figure is the median round's milliseconds of processor time for a sequence,
forward and backward. `--compile` has `torch.compile` make plain torch's layers, which takes half a
minute and a C++ compiler.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from cases import MODELS
from plain_model import Block, Head
from torch import Tensor, nn
from torch.nn import functional

from ratrain.describe.huggingface import load_config
from ratrain.describe.layer_profile import BlockName
from ratrain.describe.model import ModelSpec
from ratrain.models import kernels
from ratrain.profile.layers import LayersAsked, block_work

BLOCKS: tuple[BlockName, ...] = ("layer", "head")
LENGTH, LAYERS, SIZES, PASSES = 128, 4, (1, 2, 4, 8), 12


def plain(block: str, spec: ModelSpec, size: int, compiled: bool) -> Callable[[], None]:
    """Forward and backward of plain torch's blocks, as many as ours are timed with."""
    if block == "head":
        units: list[nn.Module] = [Head(spec)]
    else:
        units = [Block(spec, LENGTH) for _ in range(LAYERS)]
    for unit in units:
        for parameter in unit.parameters():
            nn.init.normal_(parameter, std=0.02)
            parameter.grad = torch.zeros_like(parameter)
    called = [torch.compile(unit) for unit in units] if compiled else units
    inputs, targets = torch.randn(size, LENGTH, spec.hidden), torch.zeros(size * LENGTH).long()

    def run() -> None:
        out: Tensor = inputs.detach().requires_grad_()
        for unit in called:
            out = unit(out)
        if block == "head":
            out = functional.cross_entropy(out.flatten(0, 1), targets, reduction="sum")
        out.backward(torch.ones_like(out))

    return run


def ours(block: BlockName, spec: ModelSpec, size: int) -> Callable[[], None]:
    """The same of ours, as `ratrain profile` times it."""
    work = block_work(LayersAsked(spec, LENGTH, (size,)), block, size)
    return lambda: work.backward(work.forward())


def without_kernels(run: Callable[[], None]) -> Callable[[], None]:
    def plainly() -> None:
        with patch.object(kernels, "kernels_for", lambda _: None):
            run()

    return plainly


def timed(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Seconds of processor time of one run, the median round's."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            start_s = time.process_time()
            for _ in range(PASSES):
                run()
            taken[name].append((time.process_time() - start_s) / PASSES)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--model", choices=MODELS, default="deep")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--compile", action="store_true")
    chosen = asked.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        MODELS[chosen.model].write_config(path)
        spec = load_config(path)
    for block in BLOCKS:
        for size in SIZES:
            runs = {"ours": ours(block, spec, size)}
            runs["without kernels"] = without_kernels(runs["ours"])
            runs["plain torch"] = plain(block, spec, size, False)
            if chosen.compile:
                runs["compiled"] = plain(block, spec, size, True)
            each = size * (LAYERS if block == "layer" else 1)
            texts = [
                f"{name} {seconds * 1e3 / each:5.2f} ms"
                for name, seconds in timed(runs, chosen.rounds).items()
            ]
            print(f"{block}, micro-batches of {size}: {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
