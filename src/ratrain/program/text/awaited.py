"""What a rank waits for, and what its ops do, in the words that terminals and pages print."""

from __future__ import annotations

from ratrain.program.kind import Kind, Lane, Waiting

AWAITED = {
    Waiting.BUBBLE: "other stages",
    Waiting.MESSAGE: "messages",
    Waiting.REDUCE: "gradient reductions",
    Waiting.GATHER: "weight gathers",
    Waiting.TENSOR: "tensor-parallel sums",
    Waiting.UPDATE: "optimizer updates",
    Waiting.DISK: "checkpoint writes",
    Waiting.OFFLOAD: "states offloaded to another tier",
    Waiting.FETCH: "states fetched from another tier",
    Waiting.LOAD: "optimizer states fetched from another tier",
    Waiting.STORE: "optimizer states stored in another tier",
}

_COMPUTED = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradients",
    Kind.W: "weight gradients",
    Kind.R: "recovery",
}


def op_words(kind: Kind) -> str:
    """What ops of a kind do: "backward", "weight gathers"; a compute kind of your own by its
    name."""
    if kind.lane is Lane.COMPUTE and not kind.is_message:
        return _COMPUTED.get(kind, kind.name)
    return AWAITED[kind.waiting]
