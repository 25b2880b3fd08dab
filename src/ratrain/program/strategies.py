"""Strategies: named combinations of a skeleton and passes. An ablation leaves one pass out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ratrain.errors import SpecError
from ratrain.program.passes.clipping import clip_global_norm
from ratrain.program.passes.recovery import (
    recover_at_backward,
    recover_by_stage,
    recover_forward,
)
from ratrain.program.passes.saving import save_states
from ratrain.program.passes.sharding import accumulate_sharded, shard_states
from ratrain.program.passes.state_pipeline import layerwise_state_pipeline, update_prefetch
from ratrain.program.passes.tensor import tensor_collectives
from ratrain.program.passes.tied import tie_embeddings
from ratrain.program.program import Program
from ratrain.program.setup import Accumulation, Recovery, Setup
from ratrain.program.skeletons import SKELETONS, build

LAYERWISE = "layerwise-state-pipeline"
PREFETCH = "update-prefetch"
FORWARD_RECOVERY = "forward-recovery"
PASSES = (FORWARD_RECOVERY, LAYERWISE, PREFETCH)
"""The three passes that RATrain adds to 1F1B, by the names that `--without` takes."""


@dataclass(frozen=True)
class Strategy:
    """What a name stands for."""

    doc: str
    recovery: Recovery
    sharding: int
    layerwise: bool
    prefetch: bool
    skeleton: str = "1f1b"
    recovers_heads: bool = False  # backward-time recovery checkpoints whole stages


_RATRAIN = Strategy(
    "1F1B, level 2, layer-wise state pipeline, update-prefetch, forward-side recovery",
    Recovery.FORWARD,
    sharding=2,
    layerwise=True,
    prefetch=True,
)

STRATEGIES: dict[str, Strategy] = {
    "ratrain": _RATRAIN,
    "backward-checkpoint": replace(
        _RATRAIN,
        doc="ratrain, but activations are recovered when backward arrives",
        recovery=Recovery.BACKWARD,
        recovers_heads=True,
    ),
    "full-save": replace(
        _RATRAIN, doc="ratrain, but every activation is kept", recovery=Recovery.NONE
    ),
    "zero3-heavy": replace(
        _RATRAIN, doc="ratrain with views sharded too: gathered for every use", sharding=3
    ),
    "tensor-parallel-heavy": replace(
        _RATRAIN,
        doc="tensor parallelism over a host in place of pipeline depth, backward-time recovery",
        recovery=Recovery.BACKWARD,
        recovers_heads=True,
    ),
    "tuned": Strategy(
        "the best pipeline x data x sharding without the three passes: all state work at the end",
        Recovery.BACKWARD,
        sharding=2,
        layerwise=False,
        prefetch=False,
        recovers_heads=True,
    ),
    "baseline-1f1b": Strategy(
        "plain 1F1B, optimizer sharded, backward-time recovery, all state work at the end",
        Recovery.BACKWARD,
        sharding=1,
        layerwise=False,
        prefetch=False,
        recovers_heads=True,
    ),
    "megatron": Strategy(
        "1F1B, whole layers recovered when backward arrives, nothing sharded, all at the end",
        Recovery.BACKWARD,
        sharding=0,
        layerwise=False,
        prefetch=False,
    ),
    "megatron-interleaved": Strategy(
        "megatron with several stages a rank", Recovery.BACKWARD, 0, False, False, "interleaved"
    ),
    "gpipe": Strategy("GPipe, everything kept", Recovery.NONE, 1, False, False, "gpipe"),
    "1f1b": Strategy("1F1B, everything kept", Recovery.NONE, 1, False, False),
    "interleaved": Strategy(
        "interleaved 1F1B, everything kept", Recovery.NONE, 1, False, False, "interleaved"
    ),
    "zb-h1": Strategy("zero-bubble H1, everything kept", Recovery.NONE, 1, False, False, "zb-h1"),
}


def strategy(name: str, without: tuple[str, ...] = (), *, file: str = "") -> Strategy:
    """The strategy of a name, with passes left out. Unknown names name the nearest known one.

    `file` is where the names stand, for messages.
    """
    if name not in STRATEGIES:
        raise SpecError(
            f"no strategy {name!r}",
            place=f"{file} [schedule] name".strip(),
            fix=_nearest(name, STRATEGIES),
        )
    found = STRATEGIES[name]
    for left_out in without:
        if left_out == FORWARD_RECOVERY:
            if found.recovery is Recovery.FORWARD:
                found = replace(found, recovery=Recovery.BACKWARD, recovers_heads=True)
        elif left_out == LAYERWISE:
            # Update-prefetch orders the per-layer tasks that this pass makes: both go.
            found = replace(found, layerwise=False, prefetch=False)
        elif left_out == PREFETCH:
            found = replace(found, prefetch=False)
        else:
            raise SpecError(
                f"no pass {left_out!r} to leave out",
                place=f"{file} [schedule] without".strip(),
                fix=_nearest(left_out, PASSES),
            )
    return found


@dataclass(frozen=True)
class Choices:
    """What a strategy leaves open: chosen by memory (see `plan`), or asked for by the job."""

    exempt_last: bool = True  # the last stage keeps its activations
    keep_all: bool = False  # every stage does
    accumulation: Accumulation = Accumulation.LOCAL
    bucket_bytes: int | None = None
    recovery: tuple[Recovery, ...] | None = None  # one mode a stage; None: as the flags above say
    clip: bool = False  # updates wait for the global norm of the gradient
    save: bool = False  # the step's new states go to a checkpoint
    tie: bool = False  # embedding and head are one matrix: their gradients add up


def apply_strategy(found: Strategy, setup: Setup, choices: Choices) -> Program:
    """The program of a strategy for a setup: skeleton first, then its passes in order.

    `setup.tensor` is the tensor-parallel degree; its units' bytes are those of one rank.
    """
    skeleton = SKELETONS[found.skeleton]
    degree = setup.tensor
    plain = replace(setup, tensor=1, split_backward=skeleton.split_backward, sharding=0)
    program = build(found.skeleton, plain)
    if choices.recovery is not None:
        program = recover_at_backward(program, heads=found.recovers_heads)
        program = recover_by_stage(program, choices.recovery)
    elif found.recovery is not Recovery.NONE and not choices.keep_all:
        program = recover_at_backward(program, heads=found.recovers_heads)
        if found.recovery is Recovery.FORWARD:
            program = recover_forward(program, lambda _, last: last and choices.exempt_last)
    program = tensor_collectives(program, degree)
    program = shard_states(program, found.sharding)
    if choices.accumulation is Accumulation.SHARDED and found.sharding >= 2:
        program = accumulate_sharded(program)
    if found.layerwise:
        program = layerwise_state_pipeline(program, choices.bucket_bytes)
        if found.prefetch:
            program = update_prefetch(program)
    if choices.clip:
        program = clip_global_norm(program)
    if choices.save:
        program = save_states(program)
    if choices.tie:
        program = tie_embeddings(program)
    return program


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}"
