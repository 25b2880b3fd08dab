"""What every plan file says of its job, its strategy and its devices; what is refused there, and
what no program of replicas that differ can do, by its place.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from ratrain.cost.algorithms import DIRECT
from ratrain.describe.job import Batch, JobSpec
from ratrain.describe.job_file import job_from_table
from ratrain.describe.program_keys import said_by
from ratrain.errors import ProgramError, RatrainError, SpecError
from ratrain.plan.file.form import PlanFile
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import require_whole
from ratrain.plan.layout.plan import Plan, has_members
from ratrain.plan.layout.tiers import require_bucketable, require_tier
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import SKELETONS, joining_skeletons
from ratrain.program.skeletons import Place as Position
from ratrain.program.strategies import PREFETCH, Strategy
from ratrain.readers.place import Place


def job_of_plan(plan: PlanFile, place: Place, planned_for: JobSpec | None = None) -> JobSpec:
    """The job that a plan is about, without a layout, and with a micro-batch that says nothing: the
    one that it was planned for, where that is known, else what the file says of it."""
    if planned_for is not None:
        return replace(planned_for, layout=None, batch=Batch(plan.sequences, 1))
    table: dict[str, Any] = {
        "model": vars(plan.model),
        "cluster": vars(plan.cluster),
        "batch": {"sequences": plan.sequences, "micro_batch": 1},
        "schedule": {"skeleton": plan.skeleton, "recovery_buffer": plan.recovery_buffer},
        "train": {},
    }
    for key, value in said_by(plan):
        table[key.table][key.file_key] = value
    return job_from_table(table, place, Path(place.file))


@contextmanager
def named_at(here: Place, of: type[RatrainError]) -> Generator[None]:
    """What is refused by a rule that knows no files is refused there."""
    try:
        yield
    except of as error:
        raise SpecError(error.what, place=str(here), fix=error.fix) from None


def require_prefetch(plan: PlanFile, chosen: Strategy, place: Place) -> None:
    """Refuses a plan that contradicts its schedule."""
    if chosen.prefetch != plan.prefetch:
        value = chosen.prefetch
        raise SpecError(
            f"the schedule {plan.schedule!r} has prefetch {value!r}",
            place=str(place.at("prefetch")),
            fix=f"write {json.dumps(value)}"
            + (f', or add "{PREFETCH}" to without' if value else ""),
        )


def state_mode(plan: PlanFile, place: Place) -> StateMode:
    """Who owns what, as the first stage has it."""
    mode = StateMode(plan.replicas[0].stages[0].sharding, plan.accumulation == "sharded")
    if mode.sharded_gradients and mode.sharding < 2:
        raise SpecError(
            "sharded accumulation needs sharding 2 or 3",
            place=str(place.at("accumulation")),
            fix='write "local"',
        )
    return mode


def require_buckets(plan: PlanFile, job: JobSpec, chosen: Strategy, place: Place) -> None:
    """Refuses buckets where gradients cannot leave in them."""
    require_bucketable(job, chosen)
    require_tier(job)
    if plan.gradient_bucket_bytes is not None and plan.accumulation == "local":
        raise SpecError(
            "with local accumulation every rank keeps whole gradients: buckets cannot be used",
            place=str(place.at("gradient_bucket")),
            fix='leave it out, or write accumulation "sharded"',
        )


def require_round(groups: Sequence[Sequence[object]], pipeline: int, here: Place) -> None:
    """Refuses stages that come back to devices in another order than they left them."""
    for number, group in enumerate(groups):
        if len(groups) % pipeline or list(group) != list(groups[number % pipeline]):
            raise SpecError(
                "stages must visit the same devices in the same order",
                place=str(here.at("stages").at(number).at("devices")),
                fix="give each stage its own devices",
            )


def require_runnable(made: Plan, place: Place) -> None:
    """Refuses what no program of these replicas can do."""
    _require_members(made, place)
    _require_orders(made, place.at("replicas"))
    _require_program(made, place)
    _require_one_order(made, place)


def _require_members(made: Plan, place: Place) -> None:
    """Refuses what several members of a stage, which compute other micro-batches at other times,
    cannot do together."""
    if not has_members(made):
        return
    refused = [
        (
            made.mode.sharding == 3 and not made.strategy.gathers_once,
            "members of a stage use its views at other times, and cannot gather them together for "
            "each use",
            "replicas",
            'write sharding 2, or the schedule "pe-zero", which gathers once a pass',
        ),
        (
            made.mode.sharded_gradients,
            "members of a stage compute other micro-batches, and cannot reduce each of them",
            "accumulation",
            'write "local"',
        ),
        (
            made.job.schedule.average_every is not None and not made.job.sites,
            "members of a stage train one replica, and must reduce their gradients in every step",
            "average_every",
            'leave it out, give each stage one member, or write average_between "sites"',
        ),
    ]
    for is_asked, what, key, fix in refused:
        if is_asked:
            raise SpecError(what, place=str(place.at(key)), fix=fix)


def _require_orders(made: Plan, here: Place) -> None:
    """Refuses several stages on a device where the compute order places one, stages that join
    micro-batches where it cannot, and numbers of micro-batches for which it does not exist."""
    name = made.strategy.skeleton
    order = SKELETONS[name]
    for number, replica in enumerate(made.replicas):
        layout, at = replica.layout, here.at(replica.entry)
        if layout.virtual > 1 and not order.chunks:
            raise SpecError(
                f"{name} places one stage on a device, and devices repeat",
                place=str(at),
                fix='give each stage its own devices, or use the schedule "interleaved"',
            )
        if replica.joined and not order.joins:
            raise SpecError(
                f"the order {name} has no place for stages whose micro_batch differs",
                place=str(at.at("stages")),
                fix=f"use one of {', '.join(joining_skeletons())}, or one micro_batch for all "
                "stages of a replica",
            )
        counted = replica.micro_batches
        position = Position(0, layout.pipeline, layout.virtual, counted, replica=number)
        with named_at(at.at("micro_batches"), ProgramError):
            next(order.order(position), None)


def _require_program(made: Plan, place: Place) -> None:
    """Refuses what the strategy's passes cannot do with replicas that differ."""
    sequences = {replica.sequences for replica in made.replicas}
    alone = made.job.schedule.average_every is not None and not made.job.sites
    if alone and len(sequences) > 1:  # sites count by what they take
        raise SpecError(
            "replicas that average their weights must train on equally many sequences, not on "
            f"{', '.join(map(str, sorted(sequences)))}",
            place=str(place.at("average_every")),
            fix="leave it out, or give every replica the same share",
        )
    here = place.at("replicas")
    with named_at(here, ProgramError):
        replace(
            made.setup,
            sharding=made.mode.sharding,
            accumulation=made.choices.accumulation,
            gathers_per_pass=made.strategy.gathers_once,
            tied=made.choices.tie,
            averages=made.choices.asked_averages,
        )
    tensor = max(degree for replica in made.replicas for degree in replica.tensor)
    shards = made.mode.sharding > 0 and max(made.setup.holders.values()) > 1
    require_whole(made.job, tensor=tensor, shards=shards, place=str(here))


def _require_one_order(made: Plan, place: Place) -> None:
    """Refuses replicas that would meet each other in different orders, and wait for ever."""
    mode = made.mode
    cuts = {(replica.layout.pipeline, replica.layout.layers) for replica in made.replicas}
    loops = any(replica.layout.virtual > 1 for replica in made.replicas)
    if mode.sharded_gradients and loops and len(cuts) > 1:
        raise SpecError(
            "with several stages per rank, replicas whose layers are divided differently finish "
            "the gradients of a micro-batch in different orders, so they cannot reduce them once "
            "per micro-batch",
            place=str(place.at("accumulation")),
            fix='write "local", or give each stage its own devices',
        )
    ahead: dict[int, set[bool]] = defaultdict(set)  # of each layer, whether holders recover it so
    for replica in made.replicas:
        ends = list(accumulate(replica.layers, initial=0))
        for (stage, _), recovery in zip(replica.held, replica.recovery, strict=True):
            for layer in range(ends[stage], ends[stage + 1]):
                ahead[layer].add(recovery is Recovery.FORWARD)
    if mode.sharding == 3 and max(map(len, ahead.values())) > 1:
        raise SpecError(
            "recovery ahead of backward changes the order of weight gathers: at sharding 3, "
            "ranks that gather together must recover the same layers ahead",
            place=str(place.at("replicas")),
            fix='write "forward" for the same layers everywhere, or for none',
        )


def untrainable(plan: Plan) -> list[tuple[str, str]]:
    """Why `ratrain train` cannot run a plan, each reason with what to write instead."""
    setup = replace(plan.setup, tied=plan.choices.tie)
    held = [sorted({*degrees}) for degrees in setup.mixed_degrees.values()]
    shares = setup.data > 1 or has_members(plan)  # else tied ends alone are held twice
    mixed = next((degrees for degrees in held if len(degrees) > 1 and shares), list[int]())
    who = "members" if has_members(plan) else "replicas"
    apart = f"{who} that hold a layer at tensor {' and '.join(map(str, mixed))} cannot"
    refused = [
        (
            bool(mixed) and plan.job.collective != DIRECT,
            f"{apart} reduce it by the collective {plan.job.collective} yet",
            f'write collective "direct", or let all {who} hold each layer at one tensor degree',
        ),
        (
            bool(mixed) and plan.job.schedule.error_feedback,
            f"{apart} use error feedback yet",
            f"leave error_feedback out, or let all {who} hold each layer at one degree",
        ),
        (
            any(() in replica.serves for replica in plan.replicas)
            and plan.job.train.overflow == "unit",
            "a member that serves no micro-batch cannot say which of its units overflowed",
            'let it serve one, or write overflow "step"',
        ),
        (
            not plan.is_layout and any(r.layout.virtual > 1 for r in plan.replicas),
            "replicas that differ cannot run with several stages on a device yet",
            "give each stage its own devices",
        ),
    ]
    return [(what, fix) for is_asked, what, fix in refused if is_asked]
