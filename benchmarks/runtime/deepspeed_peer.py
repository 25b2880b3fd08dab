"""DeepSpeed's pipeline engine with ZeRO-1, over gloo: a peer that steps its own optimizer.

Needs `pip install deepspeed` (0.19.8 was tried) and no compiler: the one operator that it builds on
CPUs when it starts, an all-reduce through shared memory for inference, is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from cases import Case
from plain_model import loss_of
from torch import Tensor, nn
from torch.optim import Optimizer


class DeepSpeedPipeline:
    """1F1B; gradients are reduced behind the last backward, and each replica updates its part."""

    def __init__(
        self,
        case: Case,
        stage: Callable[[int], nn.Module],
        optimizer_of: Callable[[nn.Module], Optimizer],
    ) -> None:
        os.environ["DS_ACCELERATOR"] = "cpu"
        deepspeed: Any = import_module("deepspeed")
        pipe: Any = import_module("deepspeed.pipe")
        backend: Any = import_module("deepspeed.comm.torch")

        class Whole(nn.Module):
            """A stage as one layer, so that it is cut as everybody else's."""

            def __init__(self, number: int) -> None:
                super().__init__()
                self.stage = stage(number)

            def forward(self, x: Tensor) -> Tensor:
                return self.stage(x)

        backend.build_shm_op = lambda: None
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
        of_tokens, each = loss_of(case), case.micro_batch * case.sequence_length
        pipeline = pipe.PipelineModule(
            [pipe.LayerSpec(Whole, number) for number in range(case.pipeline)],
            num_stages=case.pipeline,
            loss_fn=lambda output, wanted: of_tokens(output, wanted) / each,
            partition_method="uniform",
        )
        self.case = case
        self.engine: Any = deepspeed.initialize(
            model=pipeline, optimizer=optimizer_of(pipeline), config=_config(case)
        )[0]
        # The optimizer that a method's caller makes of this finds no gradient: ZeRO takes them.
        self.module = pipeline

    def backward(self, tokens: Tensor, targets: Tensor) -> float | None:
        """A whole step, its update too; on the last stage, the mean replica's loss sum."""
        size = self.case.micro_batch
        pairs = zip(tokens.split(size), targets.split(size), strict=True)
        loss = self.engine.train_batch(data_iter=iter(list(pairs)))
        last = self.engine.is_last_stage()
        return float(loss) * self.case.tokens / self.case.data if last else None


def _config(case: Case) -> dict[str, Any]:
    return {
        "train_batch_size": case.sequences,
        "train_micro_batch_size_per_gpu": case.micro_batch,
        # Its own bucket is of 2 GB; DistributedDataParallel's is of 25 MB.
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 25_000_000 // 4},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
    }
