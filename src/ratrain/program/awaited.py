"""What a rank waits for, in the words that terminals, reports and pages print."""

from __future__ import annotations

from ratrain.program.kind import Waiting

AWAITED = {
    Waiting.BUBBLE: "other stages",
    Waiting.MESSAGE: "messages",
    Waiting.REDUCE: "gradient reductions",
    Waiting.GATHER: "weight gathers",
    Waiting.TENSOR: "tensor-parallel sums",
    Waiting.UPDATE: "optimizer updates",
    Waiting.DISK: "checkpoint writes",
    Waiting.COPY: "host-memory copies",
}
