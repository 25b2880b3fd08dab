"""Strategies: named combinations of a skeleton and passes. An ablation leaves one pass out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ratrain.errors import ProgramError, SpecError
from ratrain.plugins import Registry
from ratrain.program.passes.averaging import average_weights
from ratrain.program.passes.clipping import clip_global_norm
from ratrain.program.passes.feedback import feed_errors_back
from ratrain.program.passes.mirror import mirror
from ratrain.program.passes.offloading import (
    offload_activations,
    offload_gradients,
    offload_inputs,
    offload_optimizer,
    offload_views,
)
from ratrain.program.passes.recovery import (
    recover_at_backward,
    recover_by_stage,
    recover_forward,
)
from ratrain.program.passes.saving import save_states
from ratrain.program.passes.sharding import accumulate_sharded, gather_once, shard_states
from ratrain.program.passes.state_pipeline import layerwise_state_pipeline, update_prefetch
from ratrain.program.passes.tensor import tensor_collectives
from ratrain.program.passes.tied import tie_embeddings
from ratrain.program.passes.turns import network_in_turn, transfers_in_turn
from ratrain.program.program import Program
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Accumulation, Averages, Setup
from ratrain.program.skeletons import SKELETONS, build, exists, unknown_fix
from ratrain.program.tiers import DEVICE

LAYERWISE = "layerwise-state-pipeline"
PREFETCH = "update-prefetch"
FORWARD_RECOVERY = "forward-recovery"
BACKWARD_RECOVERY = "backward-recovery"
GATHER_ONCE = "gather-once"
PASSES = (FORWARD_RECOVERY, LAYERWISE, PREFETCH)
"""The three passes that RATrain adds to 1F1B, by the names that `--without` takes."""

FURTHER_PASSES: Registry[Callable[[Program], Program]] = Registry("pass")
"""Passes that a strategy may add to those, by name."""

_BUILT_IN = (FORWARD_RECOVERY, BACKWARD_RECOVERY, LAYERWISE, PREFETCH)


def declare_pass(name: str, make: Callable[[Program], Program]) -> None:
    """Makes a pass known by a name, for `[schedule] passes`."""
    if name in _BUILT_IN:
        raise ProgramError(f"the pass {name} is declared twice", fix="choose another name")
    FURTHER_PASSES.declare(name, make)


declare_pass("offload-inputs", offload_inputs)
declare_pass(GATHER_ONCE, gather_once)


def known_passes() -> tuple[str, ...]:
    """Every name that `[schedule] passes` takes."""
    return (*_BUILT_IN, *FURTHER_PASSES)


def _is_pass(name: str) -> bool:
    return name in _BUILT_IN or name in FURTHER_PASSES


@dataclass(frozen=True)
class Strategy:
    """What a name stands for: a skeleton, how activations are recovered where they do not fit, who
    owns which states (the sharding level, ZeRO's stage), and passes."""

    doc: str
    recovery: Recovery
    sharding: int
    layerwise: bool
    prefetch: bool
    skeleton: str = "1f1b"
    recovers_heads: bool = False  # recovery checkpoints whole stages, heads too
    recovers_all: bool = False  # also stages whose activations would fit
    further: tuple[str, ...] = ()  # passes by name, in order

    @property
    def gathers_once(self) -> bool:
        """Whether level 3 gathers a view once for all micro-batches of a pass."""
        return GATHER_ONCE in self.further


_RATRAIN = Strategy(
    "1F1B, level 2, layer-wise state pipeline, update-prefetch, forward-side recovery",
    Recovery.FORWARD,
    sharding=2,
    layerwise=True,
    prefetch=True,
)

STRATEGIES: Registry[Strategy] = Registry("strategy")


def declare_strategy(name: str, strategy: Strategy) -> None:
    """Makes a strategy known by a name, for `[schedule] name` and `--schedule`. Its skeleton and
    its passes must be declared."""
    if not exists(strategy.skeleton):
        raise ProgramError(
            f"the strategy {name} names the skeleton {strategy.skeleton}, which is not declared",
            fix=f"declare it first, or {_nearest(strategy.skeleton, SKELETONS)}",
        )
    for further in strategy.further:
        if further not in FURTHER_PASSES:
            raise ProgramError(
                f"the strategy {name} names the pass {further}, which is not declared",
                fix=f"declare it first, or {_nearest(further, FURTHER_PASSES)}",
            )
    STRATEGIES.declare(name, strategy)


_OURS: dict[str, Strategy] = {
    "ratrain": _RATRAIN,
    "backward-checkpoint": replace(
        _RATRAIN,
        doc="ratrain, but activations are recovered when backward arrives",
        recovery=Recovery.BACKWARD,
    ),
    "full-save": replace(
        _RATRAIN, doc="ratrain, but every activation is kept", recovery=Recovery.NONE
    ),
    "zero3-heavy": replace(
        _RATRAIN, doc="ratrain with views sharded too: gathered for every use", sharding=3
    ),
    "pe-zero": replace(
        _RATRAIN,
        doc="breadth-first with views sharded, gathered once per pass: pipeline-efficient ZeRO",
        sharding=3,
        skeleton="breadth-first",
        further=(GATHER_ONCE,),
    ),
    "tensor-parallel-heavy": replace(
        _RATRAIN,
        doc="tensor parallelism over a host in place of pipeline depth, backward-time recovery",
        recovery=Recovery.BACKWARD,
    ),
    "tuned": Strategy(
        "the best pipeline x data x sharding without the three passes: all state work at the end",
        Recovery.BACKWARD,
        sharding=2,
        layerwise=False,
        prefetch=False,
    ),
    "baseline-1f1b": Strategy(
        "plain 1F1B, optimizer sharded, backward-time recovery, all state work at the end",
        Recovery.BACKWARD,
        sharding=1,
        layerwise=False,
        prefetch=False,
    ),
    "megatron": Strategy(
        "1F1B, whole layers recovered when backward arrives, nothing sharded, all at the end",
        Recovery.BACKWARD,
        sharding=0,
        layerwise=False,
        prefetch=False,
        recovers_all=True,
    ),
    "megatron-interleaved": Strategy(
        "megatron with several stages per rank",
        Recovery.BACKWARD,
        0,
        False,
        False,
        "interleaved",
        recovers_all=True,
    ),
    "gpipe": Strategy("GPipe, everything kept", Recovery.NONE, 1, False, False, "gpipe"),
    "1f1b": Strategy("1F1B, everything kept", Recovery.NONE, 1, False, False),
    "interleaved": Strategy(
        "interleaved 1F1B, everything kept", Recovery.NONE, 1, False, False, "interleaved"
    ),
    "zb-h1": Strategy("zero-bubble H1, everything kept", Recovery.NONE, 1, False, False, "zb-h1"),
    "breadth-first": replace(
        _RATRAIN,
        doc="ratrain in breadth-first order: all micro-batches of a stage, then the next stage",
        skeleton="breadth-first",
    ),
}

_IN_PAPER = ("backward-checkpoint", "tensor-parallel-heavy", "tuned", "baseline-1f1b")
"""The paper's own baselines also recover what would fit: for its reproduction alone."""
_AS_IN_PAPER = {
    f"paper-{name}": replace(
        _OURS[name],
        doc=f"{name} as the RATrain paper describes it: every stage and its head recovered",
        recovers_heads=True,
        recovers_all=True,
    )
    for name in _IN_PAPER
}


_ZERO = re.compile(r"(?:zero[-_ ]?|fsdp)([0-3]?)", re.IGNORECASE)


def _of_zero(name: str) -> str:
    """The fix of a name that asks for sharded states: a key of its own, whatever the schedule."""
    asked = _ZERO.fullmatch(name)
    if asked is None:
        return ""
    return f'write sharding = {asked[1] or 3} (the stage of ZeRO) beside a name, such as "ratrain"'


def strategy(name: str, without: tuple[str, ...] = (), *, file: str = "") -> Strategy:
    """The strategy of a name, with passes left out. Unknown names name the nearest known one.

    `file` is where the names stand, for messages.
    """
    if name not in STRATEGIES:
        raise SpecError(
            f"unknown strategy {name!r}",
            place=f"{file} [schedule] name".strip(),
            fix=_of_zero(name) or _nearest(name, STRATEGIES),
        )
    chosen = STRATEGIES[name]
    for left_out in without:
        if left_out == FORWARD_RECOVERY:
            if chosen.recovery is Recovery.FORWARD:
                chosen = replace(chosen, recovery=Recovery.BACKWARD)
        elif left_out == LAYERWISE:
            # Update-prefetch orders the per-layer tasks that this pass makes: both go.
            chosen = replace(chosen, layerwise=False, prefetch=False)
        elif left_out == PREFETCH:
            chosen = replace(chosen, prefetch=False)
        elif left_out in chosen.further:
            kept = tuple(further for further in chosen.further if further != left_out)
            chosen = replace(chosen, further=kept)
        else:
            raise SpecError(
                f"no pass {left_out!r} to leave out",
                place=f"{file} [schedule] without".strip(),
                fix=_nearest(left_out, (*PASSES, *chosen.further)),
            )
    return chosen


def combined(
    base: Strategy, skeleton: str | None, passes: tuple[str, ...] | None, *, file: str = ""
) -> Strategy:
    """A strategy on another skeleton, or with exactly these passes in place of its own."""
    if skeleton is not None:
        if not exists(skeleton):
            raise SpecError(
                f"unknown skeleton {skeleton!r}",
                place=f"{file} [schedule] skeleton".strip(),
                fix=unknown_fix(skeleton) or _nearest(skeleton, SKELETONS),
            )
        base = replace(base, skeleton=skeleton)
    if passes is None:
        return base
    place = f"{file} [schedule] passes".strip()
    for name in passes:
        if not _is_pass(name):
            raise SpecError(
                f"unknown pass {name!r}", place=place, fix=_nearest(name, known_passes())
            )
    if PREFETCH in passes and LAYERWISE not in passes:
        raise SpecError(
            f"{PREFETCH} orders the tasks that {LAYERWISE} makes",
            place=place,
            fix=f"add {LAYERWISE!r}",
        )
    recovery = Recovery.NONE
    if BACKWARD_RECOVERY in passes:
        recovery = Recovery.BACKWARD
    if FORWARD_RECOVERY in passes:
        recovery = Recovery.FORWARD
    return replace(
        base,
        recovery=recovery,
        layerwise=LAYERWISE in passes,
        prefetch=PREFETCH in passes,
        further=tuple(name for name in passes if name in FURTHER_PASSES),
    )


@dataclass(frozen=True)
class Choices:
    """What a strategy leaves open: chosen by memory (see `plan`), or asked for by the job."""

    exempt_last: bool = True  # the last stage keeps its activations
    keep_all: bool = False  # every stage does
    accumulation: Accumulation = Accumulation.LOCAL
    bucket_bytes: int | None = None
    backward_sends: bool = False  # in buckets of that size, with sharded accumulation
    recovery: tuple[Recovery, ...] | None = None  # one mode a stage; None: as the flags above say
    recovery_of_replicas: tuple[tuple[Recovery, ...], ...] | None = None  # each one's members'
    average_steps: int = 0  # replicas average their weights every this many steps; 0: never
    averages: Averages = Averages.LOCAL_SGD  # in which order
    average_wire: str = ""  # in what they are sent, with an outer optimizer; "": fp32
    outer: bool = False  # an outer optimizer goes on from their mean
    average_turns: tuple[tuple[str, int], ...] = ()  # each unit's step, but for local SGD
    clip: bool = False  # updates wait for the global norm of the gradient
    save: bool = False  # the step's new states go to a checkpoint
    tie: bool = False  # embedding and head are one matrix: their gradients add up
    error_feedback: int = 0  # residuals that ranks keep of each gradient sent; 0: none
    mirror: bool = False  # a buddy keeps the states that each owner of a part has
    in_turn: bool = False  # a rank's network ops go one by one
    optimizer_tier: str = DEVICE  # where optimizer states wait for their update
    view_tier: str = DEVICE  # where weights wait for each use
    gradient_tier: str = DEVICE  # where whole gradients wait while they add up
    activation_tier: str = DEVICE  # where inputs of recovered units, and what is spilled, wait

    @property
    def asked_averages(self) -> Averages:
        """What a program's header says of them."""
        return self.averages if self.average_steps else Averages.NONE

    def modes_of(self, setup: Setup) -> tuple[tuple[Recovery, ...], ...] | None:
        """Each replica's recovery modes, one for each member of each stage; None where flags say
        what recovers."""
        if self.recovery_of_replicas is not None:
            return self.recovery_of_replicas
        return None if self.recovery is None else (self.recovery,) * len(setup.replicas)


def apply_strategy(chosen: Strategy, setup: Setup, choices: Choices) -> Program:
    """The program of a strategy for a setup: skeleton first, then its passes in order."""
    skeleton = SKELETONS[chosen.skeleton]
    plain = replace(
        setup,
        split_backward=skeleton.split_backward,
        arrival_places=skeleton.arrival_places,
        together=skeleton.together,
        sharding=0,
    )
    program = with_passes(build(chosen.skeleton, plain), chosen, choices)
    if skeleton.written is not None and skeleton.written.transfers:
        program = transfers_in_turn(program, skeleton.written.transfers)
    return program


def with_passes(program: Program, chosen: Strategy, choices: Choices) -> Program:
    """A plain program with the passes of a strategy, in order."""
    modes = choices.modes_of(program.setup)
    if modes is not None:
        program = recover_at_backward(program, heads=chosen.recovers_heads)
        program = recover_by_stage(program, modes)
    elif chosen.recovery is not Recovery.NONE and not choices.keep_all:
        program = recover_at_backward(program, heads=chosen.recovers_heads)
        if chosen.recovery is Recovery.FORWARD:
            program = recover_forward(program, lambda _, last: last and choices.exempt_last)
    program = tensor_collectives(program)
    program = shard_states(program, chosen.sharding, once=chosen.gathers_once)
    if choices.accumulation is Accumulation.SHARDED and chosen.sharding >= 2:
        program = accumulate_sharded(program)
    if chosen.layerwise:
        program = layerwise_state_pipeline(
            program, choices.bucket_bytes, backward_sends=choices.backward_sends
        )
        if chosen.prefetch:
            program = update_prefetch(program)
    for name in chosen.further:
        program = FURTHER_PASSES[name](program)
    if choices.clip:
        program = clip_global_norm(program)
    if choices.save:
        program = save_states(program)
    if choices.tie:
        program = tie_embeddings(program)
    if choices.error_feedback:
        program = feed_errors_back(program, choices.error_feedback)
    if choices.mirror:
        program = mirror(program)
    if choices.optimizer_tier:
        program = offload_optimizer(program, choices.optimizer_tier)
    if choices.activation_tier:
        program = offload_activations(program, choices.activation_tier)
    if choices.gradient_tier:
        program = offload_gradients(program, choices.gradient_tier)
    if choices.view_tier:
        program = offload_views(program, choices.view_tier)
    if choices.average_steps:
        program = average_weights(
            program,
            choices.average_steps,
            choices.averages,
            dict(choices.average_turns),
            outer=choices.outer,
            wire=choices.average_wire,
        )
    if choices.in_turn:
        program = network_in_turn(program)
    return program


def recovery_modes(chosen: Strategy, choices: Choices, stages: int) -> tuple[Recovery, ...]:
    """Each stage's mode, as `with_passes` sets it."""
    if choices.recovery is not None:
        return choices.recovery
    if choices.keep_all:
        return (Recovery.NONE,) * stages
    last = chosen.recovery
    if last is Recovery.FORWARD and choices.exempt_last:
        last = Recovery.NONE
    return (*(chosen.recovery,) * (stages - 1), last)


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}"


for _name, _strategy in {**_OURS, **_AS_IN_PAPER}.items():
    declare_strategy(_name, _strategy)
