"""The CPU: work is done when its call returns."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


class _Done:
    def finish(self) -> None:
        """Nothing is under way."""

    def wait(self) -> None:
        """Nothing is under way."""


class Cpu:
    """The processors of this process."""

    kind = "cpu"
    words = "CPU"
    place = torch.device("cpu")
    own_memory = None

    @contextmanager
    def stream(self, lane: str) -> Generator[_Done]:
        yield _Done()

    def mark(self) -> _Done:
        return _Done()

    def finish(self) -> None:
        """Nothing is under way."""


CPU = Cpu()
