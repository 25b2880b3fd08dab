"""Members of a plan file's stage: their devices, and the micro-batches that each of them serves."""

from __future__ import annotations

from collections.abc import Iterator

from ratrain.describe.ranges import read_ranges, write_ranges
from ratrain.describe.units import counted
from ratrain.errors import SpecError
from ratrain.plan.file.form import ALL, NONE, PlanFile, PlanMember, PlanReplica, PlanStage
from ratrain.plan.layout.replica import Served
from ratrain.readers.place import Place

MICRO_BATCHES = "micro-batch", "micro-batches"


def placed_members(stage: PlanStage, here: Place) -> Iterator[tuple[PlanMember, Place]]:
    """The members of a stage, each with its place in the file; `here` is the stage's."""
    for number, member in enumerate(stage.held_by):
        yield member, here if stage.members is None else here.at("members").at(number)


def devices_of_members(plan: PlanFile, number: int, stage: int, place: Place) -> list[list[int]]:
    """For each member of a stage its devices, over all replicas of an entry."""
    replica = plan.replicas[number]
    here = place.at("replicas").at(number).at("stages").at(stage)
    lists: list[list[int]] = []
    for member, at in placed_members(replica.stages[stage], here):
        where = str(at.at("devices"))
        devices = read_ranges(member.devices, where, plan.cluster.devices)
        if len(devices) != replica.count * member.tensor:
            raise SpecError(
                f"{counted(len(devices), 'device')} for {counted(replica.count, 'replica')} x "
                f"tensor {member.tensor}",
                place=where,
                fix=f"list {replica.count * member.tensor}",
            )
        lists.append(devices)
    return lists


def served_by_members(replica: PlanReplica, stage: PlanStage, here: Place) -> tuple[Served, ...]:
    """For each member of a stage what it serves. Refuses micro-batches that two members serve, or
    none; `here` is the stage's place."""
    server: dict[int, int] = {}
    shares: list[tuple[int, ...]] = []
    for number, (member, at) in enumerate(placed_members(stage, here)):
        where = str(at.at("serves"))
        share = _share(member.serves, where, replica.micro_batches)
        for micro_batch in share:
            if micro_batch in server:
                raise SpecError(
                    f"micro-batch {micro_batch} is served by member {server[micro_batch]} already",
                    place=where,
                    fix="let one member serve it",
                )
            server[micro_batch] = number
        shares.append(share)
    left = [number for number in range(replica.micro_batches) if number not in server]
    if left:
        raise SpecError(
            f"no member serves micro-batch{'es' * (len(left) > 1)} {write_ranges(left)}",
            place=str(here.at("members")),
            fix="add what is missing to the serves of a member",
        )
    return (None,) if len(shares) == 1 else tuple(shares)


def _share(text: str, where: str, micro_batches: int) -> tuple[int, ...]:
    """The micro-batches that a text names, ascending; one that it names twice is in it twice."""
    if text == ALL:
        return tuple(range(micro_batches))
    if text == NONE:
        return ()
    return tuple(sorted(read_ranges(text, where, micro_batches, MICRO_BATCHES)))


def share_text(served: Served) -> str:
    """A share as a plan file has it."""
    if served is None:
        return ALL
    return write_ranges(served) if served else NONE
