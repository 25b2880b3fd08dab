"""One rank of ours whose units sleep: `python emulated_rank.py CASE.json RUN_FOLDER`.

Everything but the units' arithmetic is the trainer's own: program, lanes, network, optimizer.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cases import Emulation, read_case


def main(case_path: Path, run: Path) -> int:
    """The rank's exit status."""
    case = read_case(case_path)
    emulation = case.emulation
    assert emulation is not None
    import torch
    from torch import Tensor

    from ratrain.engines.places import place_of
    from ratrain.models.parameters import UnitParameters
    from ratrain.models.shapes import unit_layout
    from ratrain.models.units import MicroBatch
    from ratrain.models.weights import Weights
    from ratrain.runtime.rank import trainer
    from ratrain.runtime.rank.rank_run import run_rank
    from ratrain.runtime.rank.stop import StopRequests

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, shape: tuple[int, ...], forward_s: float) -> Tensor:
            ctx.shape, ctx.forward_s = x.shape, forward_s
            time.sleep(forward_s)
            return torch.zeros(shape)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> tuple[Tensor, None, None]:
            time.sleep(2 * ctx.forward_s)
            return torch.zeros(ctx.shape), None, None

    @dataclass(frozen=True)
    class Sleeping:
        """A unit with the states of a real one."""

        layout: UnitParameters
        name: str
        hidden: int
        emulation: Emulation

        def forward(self, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor:
            times = {"e": 0.0, "h": self.emulation.head_s}
            shape = () if self.name == "h" else (*batch.tokens.shape, self.hidden)
            return Sleep.apply(x, shape, times.get(self.name, self.emulation.layer_s))

    def unit_of(spec: Any, name: str, **_: Any) -> Any:
        return Sleeping(unit_layout(spec, name), name, spec.hidden, emulation)

    trainer.unit_of = unit_of  # pyright: ignore[reportPrivateImportUsage]
    return run_rank(run, place_of(os.environ), StopRequests())


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
