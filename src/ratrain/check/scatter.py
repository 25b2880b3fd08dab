"""Rounding as it might have fallen: operators whose every result is the exact one, and beside it
anything that its rule allows, by chance.

What whole units and whole runs of such operators give, again and again, shows how far a device that
breaks no rule can be from exact arithmetic (random rounding: Parker 1997, Monte Carlo arithmetic;
perturbed references for training: TTrace, arXiv 2506.09280).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ratrain.check.bounds import exact_results, limits
from ratrain.check.call import Call, on_host
from ratrain.check.device import is_compared
from ratrain.devices import Device, Mark, Stream
from ratrain.devices.operators import Intercepting


class Drawn:
    """Operators that err as much as they may; `draw` 0: they do not err, but for one rounding."""

    def __init__(self, draw: int, narrow_terms: int = 0) -> None:
        self._narrow_terms = narrow_terms
        self._chance = torch.Generator().manual_seed(draw) if draw else None

    def answer(self, operator: Any, args: Sequence[Any], further: dict[str, Any]) -> Any:
        """An operator's exact results, moved."""
        if not is_compared(operator, args):
            return operator(*args, **further)
        with _disable_current_modes():
            call = Call(operator, on_host(tuple(args)), on_host(dict(further)), self._narrow_terms)
        made = operator(*args, **further)
        with _disable_current_modes():
            results = call.results(made, args, further)
            try:
                exact = exact_results(call)
            except (NotImplementedError, RuntimeError):
                return made
            allowed = limits(call, exact, [result.dtype for result in results])
            for result, value, within in zip(results, exact, allowed, strict=True):
                if result.is_floating_point() and result.numel():
                    result.copy_(self._moved(value, within))
        return made

    def _moved(self, exact: Tensor, within: Tensor) -> Tensor:
        if self._chance is None:
            return exact
        by = torch.rand(exact.shape, generator=self._chance, dtype=torch.float64) * 2 - 1
        moved = exact + (by * within).nan_to_num(0, 0, 0)
        return torch.where(exact.isfinite(), moved, exact)


class Scattered:
    """A device whose operators are `Drawn`, on every lane. `narrow_terms`: as of the device that it
    stands in for."""

    def __init__(self, device: Device, draw: int, narrow_terms: int) -> None:
        self._device, self._draw = device, draw
        self.kind, self.place, self.own_memory = device.kind, device.place, device.own_memory
        self.words = f"{device.words}, its operators in fp64 and rounded"
        self.narrow_terms = narrow_terms

    @contextmanager
    def stream(self, lane: str) -> Generator[Stream]:
        drawn = Drawn(self._draw, self.narrow_terms)
        with self._device.stream(lane) as stream, Intercepting(drawn.answer):
            yield stream

    def mark(self) -> Mark:
        return self._device.mark()

    def name(self, value: object, words: str, /) -> None:
        self._device.name(value, words)

    def finish(self) -> None:
        self._device.finish()


def scatter(
    make: Callable[[], dict[str, Tensor]], draws: int, narrow_terms: int
) -> list[dict[str, Tensor]]:
    """What a function of tensors makes, by name, in so many draws."""
    made: list[dict[str, Tensor]] = []
    for draw in range(1, draws + 1):
        with Intercepting(Drawn(draw, narrow_terms).answer):
            made.append(make())
    return made
