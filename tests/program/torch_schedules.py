"""Schedules that PyTorch itself makes, lowers to messages and writes."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

from pipelining_files import text_of

TORCH = importlib.util.find_spec("torch") is not None
SINGLE = ("GPipe", "1F1B")
LOOPED = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def schedules() -> Any:
    """PyTorch's module."""
    return importlib.import_module("torch.distributed.pipelining.schedules")


@cache
def _stage_class() -> Any:
    """A stage of which a schedule learns its number alone."""
    base = importlib.import_module("torch.distributed.pipelining.stage")._PipelineStageBase

    class Stage(base):
        def __init__(self, number: int, stages: int, ranks: int) -> None:
            self.stage_index, self.num_stages = number, stages
            self.group_rank, self.group_size = number % ranks, ranks
            self.submod: Any = None

        def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> None: ...
        def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> None: ...
        def _create_grad_recv_info(self, *args: Any, **kwargs: Any) -> None: ...

    return Stage


@cache
def lowered(
    name: str,
    ranks: int,
    micro_batches: int,
    *,
    chunks: int = 2,
    comms: bool = True,
    late: bool = False,
) -> str:
    """The text of a schedule's file, with messages or without; `late` ones receive as late as
    PyTorch's rule of rank parity lets them."""
    torch = schedules()
    chunks = 1 if name in SINGLE else chunks
    stages = [_stage_class()(number * ranks, ranks * chunks, ranks) for number in range(chunks)]
    made = getattr(torch, f"Schedule{name}")(
        stages[0] if name in SINGLE else stages,
        micro_batches,
        loss_fn=min,
        **({"defer_pp_recv": True} if late else {}),
    )
    if name in SINGLE:
        rows = made._get_pipeline_order()
        if comms:
            rows = {rank: torch._add_unshard_reshard(row) for rank, row in rows.items()}
            rows = torch._add_send_recv(rows, lambda stage: stage, ranks)
    else:
        rows = made.pipeline_order_with_comms if comms else made.pipeline_order
    return text_of([["" if cell is None else str(cell) for cell in row] for row in rows.values()])
