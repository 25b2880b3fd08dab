"""Every unit of every replica in one row of columns: what `g` counts in the rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ratrain.program.setup import Recovery, Setup

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

RECOVERY_CODE = {mode: code for code, mode in enumerate(Recovery)}


@dataclass(frozen=True)
class Units:
    """Columns over units. Ranks and stages are numbered over all replicas."""

    replica: Ints
    rank: Ints
    stage: Ints
    stage_in_replica: Ints
    unit_in_stage: Ints
    first_of_stage: Ints
    last_of_stage: Ints
    micro_batches: Ints
    recovery: Ints  # a RECOVERY_CODE
    recovered: Bools
    has_input: Bools  # all but the model's first unit
    has_output: Bools  # all but the model's last unit
    next_is_local: Bools
    next_is_remote: Bools
    previous_is_local: Bools
    previous_is_remote: Bools
    tied_to: Ints  # the unit that holds a copy of the same matrix; -1: none


def unit_columns(setup: Setup) -> Units:
    """The `Units` of a setup."""
    rows: list[tuple[int, ...]] = []
    stage_number = 0
    for index, replica in enumerate(setup.replicas):
        base = setup.first_rank[index]
        for local, stage in enumerate(replica.stages):
            first, last = len(rows), len(rows) + len(stage.units) - 1
            head = (index, base + stage.rank, stage_number, local)
            for number, unit in enumerate(stage.units):
                recovered = unit.recoverable and stage.recovery.again
                code = RECOVERY_CODE[stage.recovery]
                rows.append(
                    (*head, number, first, last, replica.micro_batches, code, int(recovered))
                )
            stage_number += 1
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    replica_of, rank = columns[0], columns[1]
    has_input = np.r_[False, replica_of[1:] == replica_of[:-1]]
    has_output = np.r_[has_input[1:], False]
    next_is_local = has_output & np.r_[rank[1:] == rank[:-1], False]
    previous_is_local = np.r_[False, next_is_local[:-1]]
    return Units(
        *columns[:9],
        recovered=columns[9].astype(bool),
        has_input=has_input,
        has_output=has_output,
        next_is_local=next_is_local,
        next_is_remote=has_output & ~next_is_local,
        previous_is_local=previous_is_local,
        previous_is_remote=has_input & ~previous_is_local,
        tied_to=_tied_to(setup, has_input, has_output),
    )


def _tied_to(setup: Setup, has_input: Bools, has_output: Bools) -> Ints:
    """Each replica's first unit and its last belong together, where the setup is tied."""
    found = np.full(len(has_input), -1, dtype=np.int64)
    if setup.tied:
        first, last = np.flatnonzero(~has_input), np.flatnonzero(~has_output)
        found[first], found[last] = last, first
    return found
