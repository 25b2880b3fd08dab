"""What every plan file says of its job, its strategy and its devices, and what is refused there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratrain.describe.job import Batch, JobSpec
from ratrain.describe.job_file import job_from_table
from ratrain.describe.program_keys import said_by
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.file.form import PlanFile
from ratrain.plan.layout.buckets import require_bucketable
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.tiers import require_tier
from ratrain.program.skeletons import SKELETONS
from ratrain.program.skeletons import Place as Position
from ratrain.program.strategies import PREFETCH, Strategy, strategy
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


def require_strategy(plan: PlanFile, place: Place) -> None:
    """Refuses a schedule that no strategy has."""
    try:
        strategy(plan.schedule, plan.without)
    except SpecError as error:
        raise SpecError(error.what, place=str(place.at("schedule")), fix=error.fix) from None


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


def require_chunks(chosen: Strategy, here: Place) -> None:
    """Refuses several stages on a device where the compute order places one."""
    if not SKELETONS[chosen.skeleton].chunks:
        raise SpecError(
            f"{chosen.skeleton} places one stage on a device, and devices repeat",
            place=str(here),
            fix='give each stage its own devices, or use the schedule "interleaved"',
        )


def require_order(chosen: Strategy, position: Position, here: Place) -> None:
    """Refuses a number of micro-batches, counted at `here`, for which the compute order does not
    exist."""
    try:
        next(SKELETONS[chosen.skeleton].order(position), None)
    except ProgramError as error:
        raise SpecError(error.what, place=str(here), fix=error.fix) from None


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
