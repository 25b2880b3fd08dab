"""Runs on the device that finds missing order, and what they cover: all that is registered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from crew import Crew
from made import named_skeletons
from registered import declared_inside
from runs_made import Setting, Unlike
from training import RankResult, Result, train, train_rank

from ratrain.devices.deferred import Deferred, register
from ratrain.program.replicas import Recovery
from ratrain.program.strategies import PASSES, STRATEGIES
from ratrain.runtime.rank import trainer
from ratrain.runtime.step.schedule import Schedule

register()  # ahead of any backward of this process, which starts autograd's threads
RANKS = 4
SHORT = Setting(steps=2, sequences=4, timeout_s=30)
WIDE = (("num_key_value_heads", 4),)
EXPERTS = (("model_type", "mixtral"), ("num_local_experts", 4), ("output_router_logits", True))
TIED = (("tie_word_embeddings", True),)
PAGE = ("average_family", "weight_average")
"""Of docs/how-to/extending.md: a family of states, and a kind of op that keeps them."""
OFFLOADING = ("forward-recovery", "layerwise-state-pipeline", "update-prefetch", "offload-inputs")


def _at(setting: Setting, pipeline: int, data: int) -> Setting:
    """With two stages a rank where the schedule wants them."""
    chunks = setting.skeleton == "interleaved" or (
        setting.skeleton is None and STRATEGIES[setting.name].skeleton == "interleaved"
    )
    return replace(setting, pipeline=pipeline, data=data, virtual=2 if chunks else 1)


def _settings() -> Iterator[tuple[str, Setting]]:
    for name, strategy in STRATEGIES.items():
        tensor = 2 if "tensor" in name else 1
        model = WIDE if tensor > 1 else ()
        layout = (2, 1) if strategy.skeleton == "interleaved" or tensor > 1 else (2, 2)
        yield name, _at(replace(SHORT, name=name, tensor=tensor, model=model), *layout)
    for name in named_skeletons():
        if name != "interleaved":  # the strategies have it
            yield f"skeleton {name}", _at(replace(SHORT, skeleton=name), 2, 1)
    for name in PASSES:
        yield f"without {name}", _at(replace(SHORT, without=(name,)), 2, 2)
    offload = replace(SHORT, passes=OFFLOADING, recovery="everywhere")
    yield "pass offload-inputs", _at(offload, 2, 2)  # gather-once is a part of pe-zero
    for mode in Recovery:
        recovery = {"none": "keep-all", "forward": "everywhere", "backward": "everywhere"}
        name = "backward-checkpoint" if mode is Recovery.BACKWARD else "ratrain"
        chosen = recovery.get(mode.value, mode.value)
        if mode is not Recovery.SPILL:  # refused on this device
            yield f"recovery {mode.value}", _at(replace(SHORT, name=name, recovery=chosen), 2, 1)
    for level in range(4):
        for accumulation in ("local", "sharded"):
            sharded = replace(SHORT, sharding=level, accumulation=accumulation, clip_norm=0.5)
            if accumulation == "local" or level > 1:
                yield f"level {level}, {accumulation}", _at(sharded, 2, 2)
    parts = replace(SHORT, name="1f1b", model=WIDE, tensor=2, clip_norm=0.5)
    yield "tensor group", _at(parts, 1, 2)
    yield "sequence parallel", _at(replace(parts, sequence_parallel=True), 2, 1)
    experts = (*WIDE, *EXPERTS)
    yield "experts in a tensor group", _at(replace(parts, model=experts), 2, 1)
    yield "tied weights on two ranks", _at(replace(SHORT, model=TIED), 2, 2)
    yield "tied weights on one", _at(replace(SHORT, model=TIED), 1, 2)
    buckets = replace(SHORT, accumulation="sharded", skeleton="1f1b", bucket_bytes=4000)
    yield "buckets", _at(buckets, 2, 2)
    yield "buckets, split backward", _at(replace(buckets, skeleton="zb-h1"), 2, 2)
    yield "buckets, level 3", _at(replace(buckets, sharding=3), 1, 2)
    yield "averages", _at(replace(SHORT, name="1f1b", average_every=2, steps=3), 2, 2)
    yield "validation", _at(replace(SHORT, validate_every=1), 2, 2)
    for tier, dtype, level in (("host", "bf16", 2), ("disk", "bf16", 0), ("host", "fp32", 3)):
        away = replace(SHORT, optimizer_tier=tier, dtype=dtype, sharding=level, clip_norm=0.5)
        yield f"optimizer, {tier}, {dtype}", _at(away, 2, 2)
    narrow = replace(SHORT, gradient_wire="bf16", error_feedback=True)
    yield "error feedback", _at(narrow, 2, 2)
    yield "bf16", _at(replace(SHORT, dtype="bf16", clip_norm=0.5), 2, 2)
    halves = replace(SHORT, dtype="fp16", loss_scale=2.0**21, overflow="unit")
    yield "fp16 by unit", _at(halves, 2, 2)
    yield "replicas that differ", replace(SHORT, unlike=(Unlike((4,), 2), Unlike((1, 3), 2)))
    yield "joined micro-batches", replace(SHORT, unlike=(Unlike((2, 2), 4, joined=(2, 1)),))
    served = replace(SHORT, unlike=(Unlike((1, 3), 4),), serving=(("0-3",), ("0, 3", "1-2")))
    yield "members that share a stage", served


SETTINGS = dict(_settings())


def deferred(rank: int, seed: int) -> Deferred:
    return Deferred(rank, seed)


def make_first(rank: int, _size: int) -> None:
    """Ahead of a process' first backward, which starts autograd's threads."""
    Deferred(rank)


def run_put_off(crew: Crew, setting: Setting, folder: Path, seed: int) -> Result:
    return train(crew, setting, folder, make_device=partial(deferred, seed=seed))


@dataclass(frozen=True)
class Wait:
    """A wait of a rank's schedule."""

    rank: int
    op: int
    awaited: int
    before: bool  # for an op of the period before


def waits_of(schedule: Schedule) -> list[Wait]:
    """All of a rank's."""
    rank = schedule.rank
    inside = [Wait(rank, op.number, w, False) for op in schedule.ops for w in op.waits]
    return inside + [Wait(rank, op.number, w, True) for op in schedule.ops for w in op.waits_before]


def without(schedule: Schedule, wait: Wait) -> Schedule:
    """The same, but for one wait."""
    ops, op = list(schedule.ops), schedule.ops[wait.op]
    name = "waits_before" if wait.before else "waits"
    left = tuple(other for other in getattr(op, name) if other != wait.awaited)
    ops[wait.op] = replace(op, **{name: left})
    return replace(schedule, ops=tuple(ops))


def train_with_page(
    rank: int, size: int, setting: Setting, folder: Path, seed: int
) -> RankResult | str:
    """A rank of a run that uses the modules of a folder; what it said where it failed."""
    with declared_inside(folder / "page"):
        for name in PAGE:
            import_module(name)
        try:
            return train_rank(
                rank, size, setting, folder, None, make_device=partial(deferred, seed=seed)
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def train_without(
    rank: int, size: int, setting: Setting, folder: Path, wait: Wait, seed: int
) -> RankResult | str:
    """A rank of a run one of whose ranks lacks a wait; what it said where it failed."""
    whole = trainer.schedule_of
    if rank == wait.rank:
        trainer.schedule_of = lambda *given: without(whole(*given), wait)
    try:
        return train_rank(
            rank, size, setting, folder, None, make_device=partial(deferred, seed=seed)
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        trainer.schedule_of = whole
