"""A device with a wrong kernel, and a step of a small model on it, unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_models import batch_of, running
from torch import Tensor

from ratrain.check.device import Checked
from ratrain.check.rows import Where
from ratrain.describe.model import ModelSpec
from ratrain.devices import CPU, Stream
from ratrain.devices.cpu import Cpu
from ratrain.devices.operators import Intercepting
from ratrain.models.graphs import gradient_of_leaf, graph_of

Wrong = Callable[[Any, Sequence[Any], dict[str, Any], Where], Any]
"""An operator's answer in an op of a step; `NotImplemented`: torch's."""


class Planted(Cpu):
    """The CPU with a kernel of somebody's own."""

    def __init__(self, wrong: Wrong) -> None:
        self._wrong = wrong
        self.here = Where()

    def _answer(self, operator: Any, args: Sequence[Any], further: dict[str, Any]) -> Any:
        made = self._wrong(operator, args, further, self.here)
        return operator(*args, **further) if made is NotImplemented else made

    @contextmanager
    def stream(self, lane: str) -> Generator[Any]:
        with Intercepting(self._answer), CPU.stream(lane) as stream:
            yield stream


@dataclass(frozen=True)
class Op:
    """An op of a step."""

    where: Where
    word: str = ""
    uses: tuple[tuple[int, bool, bool], ...] = ()


def checked(wrong: Wrong, folder: Path | None = None) -> tuple[Checked, Planted]:
    """A planted device, its operators compared."""
    planted = Planted(wrong)
    device = Checked(planted, folder=folder)

    def where(op: Any, step: int) -> Where:
        assert step == op.where.step - 1
        planted.here = op.where
        return op.where

    device.where = where
    return device, planted


def step(
    device: Checked, spec: ModelSpec, dtype: torch.dtype = torch.float32, micro_batches: int = 3
) -> None:
    """Forward and backward of every unit, micro-batch by micro-batch."""
    model = running(spec, dtype=dtype)
    for micro_batch in range(micro_batches):
        batch = batch_of(spec)
        graphs: list[Any] = []
        with device.stream("compute") as stream:
            x = torch.empty(0, dtype=dtype)
            for name, unit in model.units.items():
                _begin(stream, Where(1, "F", name, micro_batch))
                leaf = x.detach().requires_grad_()
                output = unit.forward(model.weights[name], leaf, batch)
                graphs.append(graph_of(output, leaf))
                x = output
            seed: Tensor | None = torch.tensor(1 / 64)
            for name, graph in zip(reversed(model.units), reversed(graphs), strict=True):
                _begin(stream, Where(1, "B", name, micro_batch))
                assert seed is not None
                seed = gradient_of_leaf(graph, seed)


def _begin(stream: Stream, where: Where) -> None:
    stream.begin(Op(where), where.step - 1, lambda: (), str)
