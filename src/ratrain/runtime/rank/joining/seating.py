"""The ranks of an engine become those of the program, before anything else is settled.

All say on which host they are, of which kind it is, and what lies on its disk. Rank 0 of the engine
gives the seats (`engines/seating.py`); where they are not in the engine's order the ranks join once
more, by their new numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratrain.checkpoint.folder import rank_name
from ratrain.checkpoint.listing import listed
from ratrain.describe.job import JobSpec
from ratrain.engines.places import Place, kinds_of
from ratrain.engines.seating import Arrival, PlannedRank, seats
from ratrain.errors import Infeasible
from ratrain.readers.files import exists
from ratrain.runtime.environment import Launch
from ratrain.runtime.rank.joining.agreement import Reading
from ratrain.runtime.rank.joining.handshake import Gate
from ratrain.runtime.rank.joining.near_sockets import close_all
from ratrain.runtime.rank.joining.rendezvous import Joined, join, told_by_all
from ratrain.runtime.run_folder import RunFolder, RunSpec


def seated(
    joined: Joined,
    launch: Launch,
    folder: RunFolder,
    reading: Reading,
    gate: Gate,
    patience_s: float,
) -> Joined:
    """The ranks joined anew, by their seats. All ranks of an engine call this together."""
    assert launch.place is not None
    own_words = _own_words(launch.place, folder, reading)
    told = told_by_all(joined.everybody(json.dumps(own_words)))
    answer: dict[str, Any] = {}
    if joined.rank == 0:
        answer = _answer(told, reading)
    answer = told_by_all(joined.everybody(json.dumps(answer)))[0]
    if "refused" in answer:
        what, place, fix = answer["refused"]
        raise Infeasible(what, place=place, fix=fix)
    seat_of: list[int] = answer["seats"]
    if seat_of == sorted(seat_of):
        return joined
    first = seat_of.index(0)
    address, port = joined.book[first]
    listener = joined.listener.detach() if joined.rank == first else None
    again = replace(
        launch,
        rank=seat_of[joined.rank],
        address=address,
        port=port,
        listener=listener,
        told_in=None,
    )
    joined.broadcast.close()
    close_all([joined.near, None if listener is not None else joined.listener])
    return join(again, gate, patience_s)


def _own_words(place: Place, folder: RunFolder, reading: Reading) -> dict[str, Any]:
    """What rank 0 must know of this process and its host. Of each host one asks for its kind."""
    words: dict[str, Any] = {"host": place.host, "kinds": [], "holds": {}}
    job = reading.job
    if job is None or reading.spec is None:
        return words
    if len(job.cluster.spec.device) > 1 and not place.local_rank:
        words["kinds"] = kinds_of(place.engine, os.environ)
    if job.checkpoint.disks == "per-host":
        words["holds"] = _held(folder, reading.spec.seats.world_size)
    return words


def _held(folder: RunFolder, ranks: int) -> dict[str, list[int]]:
    """Of each checkpoint on this disk the ranks whose files are here."""
    return {
        checkpoint.path.name: [
            rank for rank in range(ranks) if exists(Path(str(checkpoint.path), rank_name(rank)))
        ]
        for checkpoint in listed(folder.checkpoints)
    }


def _answer(told: list[dict[str, Any]], reading: Reading) -> dict[str, Any]:
    """Everybody's seat, or why there is none. Where this rank could not read the run, or there are
    too few ranks, what follows says so better."""
    order = list(range(len(told)))
    job, spec = reading.job, reading.spec
    if job is None or spec is None or len(told) != spec.seats.world_size:
        return {"seats": order}
    known = {kind.name for kind in job.cluster.spec.device}
    kinds: dict[str, tuple[str, ...]] = {}
    for words in told:
        said = tuple(kind for kind in words["kinds"] if kind in known)
        kinds[words["host"]] = kinds.get(words["host"]) or said
    step = _latest_everywhere(told) if job.checkpoint.disks == "per-host" else None
    arrivals = [
        Arrival(
            words["host"],
            kinds[words["host"]],
            frozenset(words["holds"][step]) if step is not None else None,
        )
        for words in told
    ]
    try:
        return {"seats": seats(planned_ranks(job, spec), arrivals)}
    except Infeasible as error:
        return {"refused": [error.what, error.place, error.fix]}


def _latest_everywhere(told: list[Mapping[str, Any]] | list[dict[str, Any]]) -> str | None:
    """The newest checkpoint of which every disk has a part."""
    common = set.intersection(*(set(words["holds"]) for words in told))
    return max(common, default=None)


def planned_ranks(job: JobSpec, spec: RunSpec) -> list[PlannedRank]:
    """Where the plan has each rank."""
    devices = job.cluster.members()
    numbers = spec.device_numbers
    if max(numbers) >= len(devices):  # a run keeps its plan where its cluster has become smaller
        return [PlannedRank(rank, "") for rank in range(len(numbers))]
    return [PlannedRank(devices[number].host, devices[number].kind.name) for number in numbers]
