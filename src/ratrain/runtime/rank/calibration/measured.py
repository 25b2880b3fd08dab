"""What a calibration says: seconds and rates, rank by rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ratrain.readers.json import as_table, parse_json

Moves = Mapping[str, tuple[float, float]]
"""Seconds by sort."""


@dataclass(frozen=True)
class UnitTimes:
    """Seconds of one unit's ops, and the most bytes that backward needed beside its states."""

    forward_s: float
    recovery_s: float
    backward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    update_s: float
    narrowing_s: float  # of a gradient that travels in fewer bits than it adds up in
    elements: int  # of the flat buffer of what is updated
    gathered_elements: int  # of what is gathered of its weights
    scratch_bytes: int
    passes: tuple[tuple[float, float], ...] = ()  # forward and back, of each pass that was timed
    # Of its states of each sort that wait in another tier, from there and back.
    moves_s: Moves = field(default_factory=dict[str, tuple[float, float]])
    moves_cpu_s: Moves = field(default_factory=dict[str, tuple[float, float]])  # of processors
    update_cpu_s: float = 0.0  # the same of its update
    averaging_s: float = 0.0  # of what is sent of it for averages, if that is narrower


@dataclass(frozen=True)
class LinkTimes:
    """A transfer takes `fixed_s` and its bytes over the rate; meanwhile this process's cores work
    `driving_s` and `driving_s_per_byte` for it. After a pause of the link some of the bytes pass at
    once."""

    fixed_s: float
    rate_bytes_per_s: float
    driving_s: float
    driving_s_per_byte: float
    at_once_bytes: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """One rank's."""

    program_rank: int
    units: tuple[UnitTimes, ...]
    message: LinkTimes | None  # to the next stage
    message_back: LinkTimes | None
    arrival: LinkTimes | None  # from the stage before, as this rank drives it
    arrival_back: LinkTimes | None
    collective: LinkTimes | None  # bytes that one rank sends, of reductions and gathers
    exchange_s: float  # a small round over all ranks
    delay_s_per_cpu_s: float  # of compute, by processor time spent beside it
    tensor: LinkTimes | None = None  # bytes that one rank sends, of sums over its tensor group
    between_s: float = 0.0  # from a compute op to the next, besides what both do
    gather: LinkTimes | None = None  # of views in unlike dtypes, as if all went in the widest
    across: LinkTimes | None = None  # as `collective`, of weights that sites average


def write_calibration(calibration: Calibration) -> bytes:
    return json.dumps(asdict(calibration)).encode()


def read_calibration(body: bytes) -> Calibration:
    """What `write_calibration` wrote."""
    table, _ = as_table(*parse_json(body, "a rank's calibration"))

    def link(name: str) -> LinkTimes | None:
        return None if table[name] is None else LinkTimes(**table[name])

    return Calibration(
        table["program_rank"],
        tuple(
            UnitTimes(**{**row, "passes": tuple(map(tuple, row["passes"]))})
            for row in table["units"]
        ),
        link("message"),
        link("message_back"),
        link("arrival"),
        link("arrival_back"),
        link("collective"),
        table["exchange_s"],
        table["delay_s_per_cpu_s"],
        link("tensor"),
        table["between_s"],
        link("gather"),
        link("across"),
    )
