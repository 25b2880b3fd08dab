"""Every number of a job against the others. Each check says which parts of a job it reads, so that
what is wrong in one table does not hide what is wrong in the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ratrain.describe.average_wires import AVERAGE_WIRES
from ratrain.describe.backends import BACKENDS, backend_named, base_of
from ratrain.describe.job import (
    BESIDE,
    Batch,
    ClusterChoice,
    JobSpec,
    LayoutSpec,
    ModelChoice,
    ScheduleSpec,
    dtypes_of_kinds,
    file_name,
)
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import nearest
from ratrain.describe.train import TrainSpec
from ratrain.describe.trained import check_tuning
from ratrain.describe.units import counted, format_bytes
from ratrain.errors import Infeasible, SpecError
from ratrain.readers.faults import Faults
from ratrain.readers.place import Place

FP32 = "fp32"


@dataclass(frozen=True)
class Check:
    """A check of some parts of a job. `run` takes the place of the job's root, then the parts, and
    raises a SpecError."""

    parts: tuple[str, ...]
    run: Callable[..., None]


def check_job(job: JobSpec, place: Place | None = None) -> None:
    """One SpecError with every number that does not agree with the others."""
    faults = Faults()
    check_parts(vars(job), place or Place(file_name(job.path)), faults)
    faults.raise_all()


def check_parts(
    parts: Mapping[str, Any], place: Place, faults: Faults, more: Sequence[Check] = ()
) -> None:
    """Runs each check, and `more`, whose parts are there. A part that is None was left out."""
    sound = dict(parts)
    if "cluster" in sound:
        with faults:
            _check_devices(place, sound.pop("cluster"))
            sound["cluster"] = parts["cluster"]
    for check in (*_CHECKS, *more):
        if all(sound.get(name) is not None for name in check.parts):
            with faults:
                check.run(place, *(sound[name] for name in check.parts))


def _check_devices(place: Place, cluster: ClusterChoice) -> None:
    """More devices than exist. Whatever else reads devices needs those that do."""
    try:
        cluster.members()
    except Infeasible as error:
        here = place.at("cluster", "devices")
        raise Infeasible(error.what, place=str(here), fix=error.fix) from None


def _check_positions(place: Place, chosen: ModelChoice) -> None:
    model = chosen.spec
    if model.position == "learned" and chosen.sequence_length > model.max_positions:
        raise SpecError(
            f"{model.name} has {model.max_positions} learned positions",
            place=str(place.at("model").at("sequence_length")),
            fix=f"use at most {model.max_positions}",
        )


def _check_tuning(place: Place, chosen: ModelChoice, train: TrainSpec) -> None:
    check_tuning(replace(chosen.spec, tuning=train.tuning), place.at("train"))
    if train.balance_loss and chosen.spec.experts is None:
        raise SpecError(
            f"{chosen.spec.name} has no experts whose balance could be trained for",
            place=str(place.at("train", "balance_loss")),
            fix="leave balance_loss out",
        )


def _check_published(place: Place, schedule: ScheduleSpec, train: TrainSpec) -> None:
    if train.publish_every and schedule.trains_apart:
        raise SpecError(
            "replicas that average their weights have no one version to publish",
            place=str(place.at("train", "publish_every")),
            fix="leave it out, or average_every",
        )


def _check_dtype(place: Place, schedule: ScheduleSpec) -> None:
    here, dtype, faults = place.at("schedule"), schedule.dtype, Faults()
    with faults:
        backend = backend_named(schedule.backend, str(here.at("backend")))
        if dtype not in backend.dtypes:
            raise SpecError(
                f"the backend {backend.name} has no {dtype}",
                place=str(here.at("dtype")),
                fix=nearest(dtype, backend.dtypes),
            )
    with faults:
        if schedule.gradient_dtype not in ("fp32", dtype):
            raise SpecError(
                f"gradients cannot be summed in {schedule.gradient_dtype} when everything else is "
                f"in {dtype}",
                place=str(here.at("gradient_dtype")),
                fix=f'use "fp32" or "{dtype}"',
            )
    for kind, of_kind in schedule.dtypes.items():
        with faults:
            if of_kind != dtype and (of_kind not in BESIDE or dtype == FP32):
                raise SpecError(
                    f"{kind} computes in {of_kind} and the rest in {dtype}: kinds may compute in "
                    f"{', '.join(BESIDE)} beside a dtype of 16 bits, in which all of them send",
                    place=str(here.at("dtypes", kind)),
                    fix=f'set dtype = "{of_kind}", and in dtypes "fp32" for the other kinds'
                    if dtype == FP32 and of_kind in BESIDE
                    else f'write "fp32", or leave {kind} out',
                )
    faults.raise_all()


def _check_dtypes(place: Place, cluster: ClusterChoice, schedule: ScheduleSpec) -> None:
    """Kinds that compute in a dtype of their own are the cluster's."""
    here, faults = place.at("schedule"), Faults()
    known = [kind.name for kind in cluster.spec.device]
    for name in schedule.dtypes:
        with faults:
            if name not in known:
                raise SpecError(
                    f"{cluster.spec.name} has no device kind {name}",
                    place=str(here.at("dtypes", name)),
                    fix=nearest(name, known),
                )
    faults.raise_all()


def _check_rates(place: Place, cluster: ClusterChoice, schedule: ScheduleSpec) -> None:
    """Refuses a dtype that a device of the job does not have, where its backend has it. Beside
    kinds that have it, one without computes in another."""
    backend = BACKENDS.get(base_of(schedule.backend))
    known = backend.dtypes if backend else ()
    dtypes = dtypes_of_kinds(cluster, schedule)
    faults = Faults()
    for kind in cluster.kinds:
        dtype = dtypes.get(kind.name, schedule.dtype)
        here = place.at("schedule", *(("dtypes", kind.name) if kind.name in dtypes else ("dtype",)))
        if dtype in kind.dtypes or dtype not in known:
            continue
        with faults:
            try:
                kind.rate(dtype)
            except SpecError as error:
                raise SpecError(error.what, place=str(here), fix=error.fix) from None
    faults.raise_all()


def _check_wires(place: Place, schedule: ScheduleSpec) -> None:
    """A tensor is sent in the job's dtype, or an fp32 one in bf16: fp16 has another range, for
    which gradients would have to be scaled, and a wider type would only send zeros besides."""
    here, dtype, faults = place.at("schedule"), schedule.dtype, Faults()
    allowed = (dtype, "bf16") if dtype == "fp32" else (dtype,)
    for key, wire in (
        ("gradient_wire", schedule.gradient_wire),
        ("boundary_wire", schedule.boundary_wire),
    ):
        with faults:
            if wire is not None and wire not in allowed:
                raise SpecError(
                    f"tensors of {dtype} cannot be sent in {wire}",
                    place=str(here.at(key)),
                    fix=f"use {' or '.join(allowed)}, or leave it out",
                )
    with faults:
        if schedule.trains_apart and schedule.gradients_travel_in != dtype:
            raise SpecError(
                "replicas that average their weights send no gradients, and weights travel in fp32",
                place=str(here.at("gradient_wire")),
                fix="leave gradient_wire out, or average_every",
            )
    faults.raise_all()


def _check_period(place: Place, schedule: ScheduleSpec) -> None:
    """A wire is left to the planner with its period."""
    if schedule.average_wire == "auto" and not schedule.leaves_period_open:
        raise SpecError(
            "the planner chooses a wire with its period, by what part of a step may wait",
            place=str(place.at("schedule", "average_wire")),
            fix="leave average_every out and set average_exposed = 0.05, or name a wire: "
            f"{', '.join(AVERAGE_WIRES)}",
        )


def _check_error_feedback(place: Place, schedule: ScheduleSpec) -> None:
    """Error feedback needs an error: gradients that are sent, and rounded for it."""
    if not schedule.error_feedback:
        return
    here = str(place.at("schedule", "error_feedback"))
    if schedule.trains_apart:
        raise SpecError(
            "replicas that average their weights send no gradients, so there is no error to feed "
            "back",
            place=here,
            fix="leave error_feedback out, or average_every",
        )
    summed = schedule.gradients_add_up_in
    if schedule.gradients_travel_in == summed:
        rounds = 'gradient_wire = "bf16"' if schedule.dtype == "fp32" else 'gradient_dtype = "fp32"'
        raise SpecError(
            f"gradients add up in {summed} and are sent in {summed}: there is no rounding error "
            "to feed back",
            place=here,
            fix=f"set {rounds}, or leave error_feedback out",
        )


def _check_budget(place: Place, cluster: ClusterChoice, schedule: ScheduleSpec) -> None:
    largest = max(device.kind.memory.capacity_bytes for device in cluster.members())
    asked = schedule.memory_budget_bytes
    if asked is not None and asked > largest:
        raise SpecError(
            f"the budget of {asked:,} bytes is more than the {largest:,} bytes that the job's "
            "largest device has",
            place=str(place.at("schedule").at("memory_budget")),
            fix=f'use at most "{format_bytes(largest)}"',
        )


def _check_degrees(place: Place, layout: LayoutSpec, cluster: ClusterChoice) -> None:
    asked = cluster.devices
    if layout.devices != asked:
        raise SpecError(
            f"pipeline {layout.pipeline} x data {layout.data} x tensor {layout.tensor} = "
            f"{layout.devices} devices, but the job has {asked}",
            place=str(place.at("layout")),
            fix=_degrees_fix(layout, cluster),
        )


def _degrees_fix(layout: LayoutSpec, cluster: ClusterChoice) -> str:
    """Other devices where they exist, or other replicas where those fit; else other degrees."""
    asked, replica = cluster.devices, layout.pipeline * layout.tensor
    fixes: list[str] = []
    if cluster.spec.size is None or layout.devices <= cluster.spec.size:
        fixes.append(f"cluster.devices = {layout.devices}")
    if asked % replica == 0:
        fixes.append(f"data = {asked // replica}")
    return f"set {', or '.join(fixes)}" if fixes else f"use degrees whose product is {asked}"


def _check_division(place: Place, layout: LayoutSpec, model: ModelChoice) -> None:
    here, faults = place.at("layout"), Faults()
    with faults:
        check_heads(layout, model.spec, here)
    with faults:
        check_layers(layout, model.spec, here.at("layers"))
    faults.raise_all()


def _check_sequence(
    place: Place, layout: LayoutSpec, model: ModelChoice, schedule: ScheduleSpec
) -> None:
    asked, length = schedule.sequence_parallel, model.sequence_length
    check_sequence(asked, length, layout, place.at("layout", "sequence_parallel"))


def check_heads(layout: LayoutSpec, model: ModelSpec, here: Place) -> None:
    """Refuses a tensor degree that does not divide attention heads."""
    if model.own and layout.tensor > 1:
        raise SpecError(
            f"{model.name} is made of modules of your own, which no tensor group divides",
            place=str(here.at("tensor")),
            fix="use tensor = 1",
        )
    for what, count in (("heads", model.heads), ("kv_heads", model.kv_heads)):
        if count % layout.tensor:
            degrees = [d for d in range(1, count + 1) if count % d == 0]
            near = min(degrees, key=lambda d: abs(d - layout.tensor))
            raise SpecError(
                f"{model.name} has {count} {what}, which {layout.tensor} ranks cannot share evenly",
                place=str(here.at("tensor")),
                fix=f"use tensor = {near}",
            )


def _check_batch(place: Place, layout: LayoutSpec, batch: Batch) -> None:
    group = layout.data * batch.micro_batch
    if batch.sequences % group:
        near = max(group, round(batch.sequences / group) * group)
        raise SpecError(
            f"{batch.sequences} sequences do not divide into {layout.data} replicas x "
            f"micro-batches of {batch.micro_batch}",
            place=str(place.at("batch").at("sequences")),
            fix=f"use sequences = {near}",
        )


def _check_joined(place: Place, layout: LayoutSpec, batch: Batch) -> None:
    """Refuses numbers of joined micro-batches that stages cannot pass on to each other."""
    joined = sorted(layout.joined)
    if not joined:
        return
    micro_batches = batch.sequences // (layout.data * batch.micro_batch)
    uneven = next((pair for pair in pairwise(joined) if pair[1] % pair[0]), None)
    what, fix = "", ""
    if len(joined) != layout.stages:
        what = f"{counted(len(joined), 'number')} for {counted(layout.stages, 'stage')}"
        fix = f"give one number for each of the {layout.stages} stages"
    elif min(joined) > 1:
        what = f"every stage joins {min(joined)} micro-batches or more"
        fix = f"write [batch] micro_batch = {min(joined) * batch.micro_batch} and smaller numbers"
    elif uneven is not None:
        what = f"{uneven[1]} is no multiple of {uneven[0]}: stages could not pass them on"
        fix = f"use {uneven[0]} or a multiple of it"
    elif micro_batches % joined[-1]:
        what = f"a replica's {micro_batches} micro-batches are no multiple of {joined[-1]}"
        fix = f"use sequences = {batch.sequences // micro_batches * joined[-1]} or a multiple of it"
    elif layout.virtual > 1:
        what, fix = "a device of several stages cannot join micro-batches", "leave joined out"
    elif layout.sequence_parallel:
        what = "ranks that divide the sequence divide the rows of all joined micro-batches"
        fix = "leave joined or sequence_parallel out"
    if what:
        raise SpecError(what, place=str(place.at("layout", "joined")), fix=fix)


def check_sequence(asked: bool | None, length: int, layout: LayoutSpec, here: Place) -> None:
    """Refuses sequence parallelism that a layout cannot have, of sequences of `length` tokens, or
    that a job's [schedule] did not ask for."""
    if asked is not None and asked != layout.sequence_parallel:
        raise SpecError(
            f"[schedule] says sequence_parallel = {str(asked).lower()}, but the layout does not",
            place=str(here),
            fix="leave it out in [schedule]: with a layout there is nothing to search",
        )
    if not layout.sequence_parallel:
        return
    if layout.tensor == 1:
        raise SpecError(
            "sequence parallelism divides a sequence among a tensor group, and tensor is 1",
            place=str(here),
            fix="leave sequence_parallel out, or use tensor = 2 or more",
        )
    if length % layout.tensor:
        raise SpecError(
            f"{length} tokens of a sequence do not divide among {layout.tensor} ranks",
            place=str(here),
            fix=f"use sequence_length = {-(-length // layout.tensor) * layout.tensor}, or leave "
            "sequence_parallel out",
        )


def check_layers(layout: LayoutSpec, model: ModelSpec, here: Place) -> None:
    """Refuses a cut that does not hold the whole model, or leaves a stage empty."""
    if not isinstance(layout.layers, tuple):
        if layout.stages > model.layers:
            raise SpecError(
                f"{counted(layout.stages, 'stage')} for {counted(model.layers, 'layer')}",
                place=str(here),
                fix=f"use at most {counted(model.layers, 'stage')}",
            )
        return
    if len(layout.layers) != layout.stages:
        raise SpecError(
            f"{len(layout.layers)} numbers for {layout.stages} stages",
            place=str(here),
            fix=f"give one number for each of the {layout.stages} stages",
        )
    total = sum(layout.layers)
    if total != model.layers:
        share, more = divmod(model.layers, layout.stages)
        equal = [share + (stage < more) for stage in range(layout.stages)]
        raise SpecError(
            f"the stages add up to {total} layers, {model.name} has {model.layers}",
            place=str(here),
            fix=f"use {equal}" if len(equal) <= 16 else f"let them add up to {model.layers}",
        )
    empty = next((stage for stage in range(1, layout.stages - 1) if not layout.layers[stage]), None)
    if empty is not None:
        raise SpecError(
            f"stage {empty} holds nothing: the embedding is on the first stage, the head on the "
            "last",
            place=str(here),
            fix="give it a layer, or use one stage fewer",
        )


_CHECKS = (
    Check(("model",), _check_positions),
    Check(("model", "train"), _check_tuning),
    Check(("schedule",), _check_dtype),
    Check(("schedule", "train"), _check_published),
    Check(("cluster", "schedule"), _check_rates),
    Check(("cluster", "schedule"), _check_dtypes),
    Check(("schedule",), _check_wires),
    Check(("schedule",), _check_period),
    Check(("schedule",), _check_error_feedback),
    Check(("cluster", "schedule"), _check_budget),
    Check(("layout", "cluster"), _check_degrees),
    Check(("layout", "model"), _check_division),
    Check(("layout", "model", "schedule"), _check_sequence),
    Check(("layout", "batch"), _check_batch),
    Check(("layout", "batch"), _check_joined),
)
