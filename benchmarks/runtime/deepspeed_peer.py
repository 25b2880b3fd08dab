"""DeepSpeed's pipeline engine with ZeRO-1. Only where its interpreter has DeepSpeed installed:

DS_BUILD_OPS=0 pip install deepspeed==0.19.8     # in an environment of its own, with torch
python benchmarks/runtime/sweep.py --deepspeed THAT/bin/python
"""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # pyright: ignore[reportMissingImports]
from cases import Case
from deepspeed.pipe import PipelineModule  # pyright: ignore[reportMissingImports]
from deepspeed.runtime.pipe.topology import (  # pyright: ignore[reportMissingImports]
    PipeDataParallelTopology,
)
from peers import optimizer_of
from plain_model import loss_of, stage_of
from torch import Tensor, nn

from ratrain.describe.model import ModelSpec
from ratrain.models.shapes import unit_names


class DeepSpeedPipeline:
    """One rank's engine; it reduces and updates by itself."""

    def __init__(self, case: Case, spec: ModelSpec) -> None:
        self.case = case
        deepspeed.init_distributed(dist_backend="gloo")
        whole = stage_of(
            spec,
            unit_names(spec),
            case.sequence_length,
            seed=case.seed,
            recovery=False,  # the engine's own, below
            emulation=case.emulation,
        )
        units = list(whole.units)
        each = case.micro_batch * case.sequence_length
        loss = loss_of(case)
        self.module: nn.Module = PipelineModule(
            layers=units,
            topology=PipeDataParallelTopology(num_pp=case.pipeline, num_dp=case.data),
            loss_fn=lambda output, wanted: loss(output, wanted) / each,
            partition_method="uniform",
            activation_checkpoint_interval=1 if case.recovery else 0,
        )
        self.engine, *_ = deepspeed.initialize(
            model=self.module, optimizer=optimizer_of(self.module), config=_config(case)
        )

    def backward(self, tokens: Tensor, targets: Tensor) -> float | None:
        """The whole step, update included."""
        size = self.case.micro_batch
        pairs: Iterator[tuple[Tensor, Tensor]] = iter(
            zip(tokens.split(size), targets.split(size), strict=True)
        )
        loss = self.engine.train_batch(data_iter=pairs)
        last = self.engine.is_last_stage()
        return float(loss) * self.case.tokens / self.case.data if last else None


def _config(case: Case) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": case.micro_batch,
        "gradient_accumulation_steps": case.micro_batches,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
