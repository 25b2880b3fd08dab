"""What the RATrain paper reports (arXiv 2606.10415, its tables as transcribed by two digests).

All values are second-hand: the paper's body was not at hand, only digests of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MainRow:
    """Main comparison: tokens/s and step time of a strategy. None: not stated, or out of memory."""

    model: str
    strategy: str
    step_s: float | None
    out_of_memory: bool = False


MAIN = (
    MainRow("baichuan2-13b", "ratrain", 688.09),
    MainRow("baichuan2-13b", "zero3-heavy", 717.93),
    MainRow("baichuan2-13b", "tensor-parallel-heavy", 826.53),
    MainRow("baichuan2-13b", "backward-checkpoint", 937.04),
    MainRow("baichuan2-13b", "tuned", 945.84),
    MainRow("qwen2.5-32b", "ratrain", 1592.51),
    MainRow("qwen2.5-32b", "zero3-heavy", 1798.78),
    MainRow("qwen2.5-32b", "tensor-parallel-heavy", 1922.66),
    MainRow("qwen2.5-32b", "backward-checkpoint", 2162.54),
    MainRow("qwen2.5-32b", "tuned", None),
    MainRow("qwen2.5-32b", "full-save", None, out_of_memory=True),
)

ABLATION = {
    # left out: (step relative to the full strategy, exposed tail likewise)
    "forward-recovery": (1.33, 1.01),
    "update-prefetch": (1.04, 2.31),
    "layerwise-state-pipeline": (1.03, 4.59),
}
"""One digest gives 1.24 and 1.30 for the last two steps; these are the consistent ones."""


@dataclass(frozen=True)
class ScaleRow:
    """Smallest feasible scale under 20 GB: clusters, pipeline depth, peak."""

    model: str
    clusters: int
    pipeline: int
    peak_gb: float
    too_few: int  # the next smaller scale that the deductions call infeasible


SMALLEST = (
    ScaleRow("llama-2-7b", 8, 2, 19.57, 4),
    ScaleRow("baichuan2-13b", 16, 8, 19.06, 8),
    ScaleRow("qwen2.5-32b", 64, 16, 18.14, 32),
    ScaleRow("llama-2-70b", 96, 48, 19.46, 64),
)

SCALE_OUT = {256: 29_069.73, 512: 57_558.07, 768: 85_465.01, 1024: 112_790.55}
"""LLaMA-2-7B: clusters to tokens/s. The last three are 0.99, 0.98, 0.97 of linear, exactly."""

PLANNER = {"llama-2-7b": 144.28, "qwen2.5-32b": 455.21, "baichuan2-13b": 276.61}
"""Measured step times of the planner's table, seconds; batch sizes are not stated."""
